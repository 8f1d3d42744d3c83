"""The marker of a publication: how far the branch that another engine writes is on main.

It is part of the ledger, so it is committed with the rows, and a rollback of main takes it back with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Published:
    """The newest snapshot of a branch whose files are on main.

    :param sequence: its sequence number. Numbers rise along a branch, so what is below needs no look, also once the
        snapshots have expired.
    :param ends: by partition, the offset up to which the engine had read by then.
    """

    snapshot_id: int
    sequence: int
    ends: Mapping[int, int] = field(default_factory=dict)
