"""Where keys are found among others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from airflow_lakestream.cdc.newest import Numbers


def places(rows: pa.Table, among: pa.Table, key: Sequence[str]) -> Numbers:
    """Return for each row the place of its key in the other table, whose keys are all different; -1 where it is not."""
    found = np.full(len(rows), -1, np.int64)
    if not len(rows) or not len(among):
        return found
    names = list(key)
    mine = plain(rows.select(names)).append_column("__mine", pa.array(np.arange(len(rows))))
    theirs = plain(among.select(names)).append_column("__theirs", pa.array(np.arange(len(among))))
    both = mine.join(
        theirs.cast(mine.select(names).schema.append(pa.field("__theirs", pa.int64()))), names, join_type="inner"
    )
    found[both["__mine"].to_numpy()] = both["__theirs"].to_numpy()
    return found


def plain(keys: pa.Table) -> pa.Table:
    """Return keys of types that Arrow can join and sort by."""
    columns = [
        column.cast(column.type.storage_type) if isinstance(column.type, pa.BaseExtensionType) else column
        for column in keys.columns
    ]
    return pa.table(dict(zip(keys.column_names, columns, strict=True)))
