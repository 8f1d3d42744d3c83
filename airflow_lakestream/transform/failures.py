"""All records at once; where that fails, the bad ones are found and the others run again at once."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np
import pyarrow as pa

from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.transform.engine import Engine, told
from airflow_lakestream.transform.outcome import FailedRecord
from airflow_lakestream.transform.rewrite import ROW

# Of so many bad records of a batch DuckDB's own words are fetched, by a run for each that costs as much as thousands of
# good records; beyond, the place is told alone.
_EXPLAINED = 10

# What a value can be at fault for. Anything else that DuckDB raises is no property of a record.
_RECORD_ERRORS = (duckdb.DataError, duckdb.InvalidInputException)


class SqlFailed(LakestreamError, Terminal):
    """DuckDB failed for a reason that lies in no record, such as too little memory."""


def run(engine: Engine, table: pa.Table, bad: list[FailedRecord]) -> Iterator[pa.Table]:
    """Yield the rows in order, in pieces; add the records for which the statement fails to `bad`. Raises SqlFailed."""
    if not table.num_rows:
        return
    try:
        yield engine.run(table)
    except _RECORD_ERRORS as error:
        if places := _places(engine, table):
            yield from _without(engine, table, places, bad)
        elif table.num_rows == 1:
            bad.append(FailedRecord(table[ROW][0].as_py(), told(error)))
        else:
            yield from _halves(engine, table, bad)
    except duckdb.OutOfMemoryException as error:
        if table.num_rows == 1:
            raise SqlFailed(f"sql: one record needs more memory than memory_limit gives: {told(error)}.") from None
        yield from _halves(engine, table, bad)
    except duckdb.Error as error:
        raise SqlFailed(f"sql: DuckDB failed: {told(error)}.") from error


def _places(engine: Engine, table: pa.Table) -> dict[int, str] | None:
    """Return the bad records and where the statement fails for each; None where only halving can tell."""
    try:
        return engine.trace(table)
    except duckdb.Error:
        return None


def _without(engine: Engine, table: pa.Table, places: dict[int, str], bad: list[FailedRecord]) -> Iterator[pa.Table]:
    numbers = table[ROW].to_numpy()
    is_bad = np.isin(numbers, np.fromiter(places, np.int64, len(places)))
    explained = 0
    for position in np.flatnonzero(is_bad):
        number = int(numbers[position])
        reason = "the statement fails for this record, as for others of its batch"
        if explained < _EXPLAINED:
            reason = _why(engine, table.slice(position, 1))
            explained += 1
        bad.append(FailedRecord(number, f"{places[number]}: {reason}"))
    yield from run(engine, table.filter(pa.array(~is_bad)), bad)


def _why(engine: Engine, record: pa.Table) -> str:
    try:
        engine.run(record)
    except duckdb.Error as error:
        return told(error)
    return "the statement fails for this record"


def _halves(engine: Engine, table: pa.Table, bad: list[FailedRecord]) -> Iterator[pa.Table]:
    middle = table.num_rows // 2
    yield from run(engine, table.slice(0, middle), bad)
    yield from run(engine, table.slice(middle), bad)
