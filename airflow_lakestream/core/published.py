"""Marker of a publication: the part of another engine's branch already on main.

It is part of the ledger, so it is committed with the rows, and a rollback of main takes it back with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PublicationMarker:
    """The newest published snapshot of a branch.

    :param sequence: the snapshot's sequence number. Numbers rise along a branch, so lower snapshots need no look, even
        after their expiry.
    :param ends: by partition, the offset up to which the engine had read by then.
    """

    snapshot_id: int
    sequence: int
    ends: Mapping[int, int] = field(default_factory=dict)
