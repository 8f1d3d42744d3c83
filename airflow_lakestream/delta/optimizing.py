"""Claim of a Delta table for one OPTIMIZE at a time.

delta-rs lets two OPTIMIZE that ran at the same time rewrite the same files: each row would be there twice. But delta-rs
refuses an OPTIMIZE if the table's metadata was changed since its begin. So each one begins with such a change.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from airflow_lakestream.tables.tries import tries

# Property of the table that each OPTIMIZE changes first.
OPTIMIZER = "lakestream.optimizer"
TRIES, PAUSE = 8, 0.2


def claimed(open_table: Callable[[], DeltaTable]) -> DeltaTable:
    """Return the version that claims the table: an OPTIMIZE that began before fails.

    Raises CommitFailedError if other writers were faster at each try.
    """
    last: CommitFailedError | None = None
    for _ in tries(TRIES, PAUSE):
        delta = open_table()
        try:
            delta.alter.set_table_properties({OPTIMIZER: uuid.uuid4().hex}, raise_if_not_exists=False)
        except CommitFailedError as e:
            last = e
        else:
            # Not a newer version, which might have the claim of another one.
            return delta
    assert last is not None, "a try was made"
    raise last
