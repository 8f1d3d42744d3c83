"""Rows of any number in a table's sort order, within bounded memory: sorted runs go to a local file, and are merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from tempfile import TemporaryFile
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder

from airflow_lakestream.iceberg.write.files import sort_keys, sorted_positions

# Bytes of rows that are sorted in memory, and make a run.
RUN_BYTES = 64 * 2**20
# Bytes of rows of a run that are in memory while runs are merged.
BATCH_BYTES = 2**20


def sorted_rows(
    parts: Iterable[pa.Table], schema: Schema, order: SortOrder, run_bytes: int = RUN_BYTES
) -> Iterator[pa.Table]:
    """Yield the rows in the order, equal rows in the order given. All parts have the same columns."""
    with ExitStack() as files:
        runs = list[_SortedRun]()
        collected, size = list[pa.Table](), 0
        for part in parts:
            collected.append(part)
            size += part.nbytes
            if size >= run_bytes:
                runs.append(_SortedRun(files.enter_context(TemporaryFile()), _sorted(collected, schema, order)))
                collected, size = [], 0
        if not runs:
            if collected:
                yield _sorted(collected, schema, order)
            return
        if collected:
            runs.append(_SortedRun(files.enter_context(TemporaryFile()), _sorted(collected, schema, order)))
        yield from _merged(runs, schema, order)


class _SortedRun:
    """Sorted rows in a file, of which a batch is in memory: `rows`, or None at the end."""

    def __init__(self, file: Any, rows: pa.Table) -> None:
        most = max(1, BATCH_BYTES * rows.num_rows // max(1, rows.nbytes))
        with pa.ipc.new_stream(file, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
            stream.write_table(rows, max_chunksize=most)
        file.seek(0)
        self._batches = iter(pa.ipc.open_stream(file))
        self._schema = rows.schema
        self.rows: pa.Table | None = None
        self.advance()

    def advance(self) -> None:
        """Read the next batch."""
        batch = next(self._batches, None)
        self.rows = None if batch is None else pa.Table.from_batches([batch], self._schema)


def _merged(runs: list[_SortedRun], schema: Schema, order: SortOrder) -> Iterator[pa.Table]:
    """Yield the rows of all runs in the order, with a batch of each run in memory."""
    while runs := [run for run in runs if run.rows is not None]:
        batches = [run.rows for run in runs if run.rows is not None]
        # The first and the last row of each batch: those of batch n have the numbers 2n and 2n + 1.
        ends = [end for rows in batches for end in (rows.slice(0, 1), rows.slice(rows.num_rows - 1))]
        positions = _positions(pa.concat_tables(ends), schema, order).to_pylist()
        # Up to the lowest of the last rows, all rows are in memory. Batches that begin above this row wait.
        bound = next(rank for rank, number in enumerate(positions) if number % 2)
        taking = sorted({number // 2 for number in positions[: bound + 1]})
        lowest = positions[bound] // 2
        counts = [batches[number].num_rows for number in taking]
        rows = pa.concat_tables([batches[number] for number in taking])
        # The position in `rows` of the lowest batch's last row.
        last = sum(counts[: taking.index(lowest) + 1]) - 1
        ranks = _positions(rows, schema, order).to_numpy()
        until = int((ranks == last).argmax()) + 1
        yield rows.take(pa.array(ranks[:until]))
        start = 0
        for number, count in zip(taking, counts, strict=True):
            # A batch is sorted: its rows taken are its first ones.
            used = int(((ranks[:until] >= start) & (ranks[:until] < start + count)).sum())
            start += count
            if used == count:
                runs[number].advance()
            else:
                runs[number].rows = batches[number].slice(used)


def _sorted(parts: list[pa.Table], schema: Schema, order: SortOrder) -> pa.Table:
    rows = pa.concat_tables(parts)
    return rows.take(_positions(rows, schema, order))


def _positions(rows: pa.Table, schema: Schema, order: SortOrder) -> pa.Array:
    positions = sorted_positions(sort_keys(rows, schema, order))
    assert positions is not None, "the order has fields"
    return positions
