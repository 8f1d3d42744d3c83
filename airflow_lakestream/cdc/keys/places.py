"""Finds keys among others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from airflow_lakestream.cdc.keys.identity import by_place
from airflow_lakestream.cdc.merge.newest import Numbers


def places(rows: pa.Table, among: pa.Table, key: Sequence[str]) -> Numbers:
    """Return for each row the place of its key in the other table, whose keys are unique; -1 if it is not there."""
    found = np.full(len(rows), -1, np.int64)
    if not len(rows) or not len(among):
        return found
    mine, theirs = by_place(rows, key), by_place(among, key)
    both = mine.append_column("mine", pa.array(np.arange(len(rows)))).join(
        theirs.cast(mine.schema).append_column("theirs", pa.array(np.arange(len(among)))),
        mine.column_names,
        join_type="inner",
    )
    found[both["mine"].to_numpy()] = both["theirs"].to_numpy()
    return found
