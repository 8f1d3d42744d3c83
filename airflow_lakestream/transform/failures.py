"""Run of all records at once; after a failure, the search for bad records and another run of the rest."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np
import pyarrow as pa

from airflow_lakestream.transform.engine import StatementEngine, error_text
from airflow_lakestream.transform.outcome import ROW, FailedRecord

# For this many bad records of a batch DuckDB's own message is fetched, by one run each, which costs as much as
# thousands of good records; for more records only the place is given.
_EXPLAINED = 10

# Errors that a value can cause. Any other DuckDB error is not due to a record.
_RECORD_ERRORS = (duckdb.DataError, duckdb.InvalidInputException)


def run(engine: StatementEngine, table: pa.Table, bad: list[FailedRecord]) -> Iterator[pa.Table]:
    """Yield the rows in order, in pieces; add the failing records to `bad`.

    Raises duckdb.Error for an error that is not due to a record, such as too little memory.
    """
    if not table.num_rows:
        return
    is_sifted = engine.is_troubled
    try:
        if is_sifted and (rows := _sifted(engine, table, bad)) is not None:
            yield rows
            return
        yield engine.run(table)
    except _RECORD_ERRORS as error:
        yield from _find_bad(engine, table, bad, error, is_sifted)


def _find_bad(
    engine: StatementEngine, table: pa.Table, bad: list[FailedRecord], error: duckdb.Error, is_sifted: bool
) -> Iterator[pa.Table]:
    if not is_sifted and (rows := _sifted(engine, table, bad)) is not None:
        engine.is_troubled = True
        yield rows
    elif places := _places(engine, table):
        yield from _without(engine, table, places, {}, bad)
    elif table.num_rows == 1:
        bad.append(FailedRecord(table[ROW][0].as_py(), error_text(error)))
    else:
        yield from _halves(engine, table, bad)


def _sifted(engine: StatementEngine, table: pa.Table, bad: list[FailedRecord]) -> pa.Table | None:
    """Return the rows, after another run of the suspects only, or None for failures of another kind."""
    try:
        if (found := engine.sift(table)) is None:
            return None
        good, suspects = found
        if engine.sifts_exactly:
            engine.is_troubled = bool(suspects)
            bad += [FailedRecord(number, reason) for number, reason in suspects.items()]
            return good
        some = table.filter(pa.array(np.isin(table[ROW].to_numpy(), np.fromiter(suspects, np.int64, len(suspects)))))
        places = engine.trace(some) if suspects else {}
    except _RECORD_ERRORS:
        return None
    failed: list[FailedRecord] = []
    engine.is_troubled = bool(suspects)
    cleared = list(_without(engine, some, places or {}, suspects, failed))
    bad += failed
    if not any(part.num_rows for part in cleared):
        return good
    rows = pa.concat_tables([good, *cleared])
    return rows.take(pa.array(np.argsort(rows[ROW].to_numpy(), kind="stable")))


def _places(engine: StatementEngine, table: pa.Table) -> dict[int, str] | None:
    """Return the bad records, each with the place of the failure, or None if only halving can find bad records."""
    try:
        return engine.trace(table)
    except duckdb.Error:
        return None


def _without(
    engine: StatementEngine, table: pa.Table, places: dict[int, str], reasons: dict[int, str], bad: list[FailedRecord]
) -> Iterator[pa.Table]:
    """Yield the rows of the good records, and add the bad records to `bad`.

    :param reasons: likely reasons by record, each with the place, if known.
    """
    numbers = table[ROW].to_numpy()
    is_bad = np.isin(numbers, np.fromiter(places, np.int64, len(places)))
    explained = 0
    for position in np.flatnonzero(is_bad):
        number = int(numbers[position])
        reason = reasons.get(number, "")
        if not reason.startswith(f"{places[number]}: "):
            words = "the statement fails for this record, as for others of its batch"
            if explained < _EXPLAINED:
                words = _reason_of(engine, table.slice(position, 1))
                explained += 1
            reason = f"{places[number]}: {words}"
        bad.append(FailedRecord(number, reason))
    rest = table.filter(pa.array(~is_bad))
    if rest.num_rows:
        yield from _again(engine, rest, bad)


def _again(engine: StatementEngine, table: pa.Table, bad: list[FailedRecord]) -> Iterator[pa.Table]:
    try:
        yield engine.run(table)
    except _RECORD_ERRORS as error:
        if table.num_rows == 1:
            bad.append(FailedRecord(table[ROW][0].as_py(), error_text(error)))
        else:
            yield from _halves(engine, table, bad)


def _reason_of(engine: StatementEngine, record: pa.Table) -> str:
    try:
        engine.run(record)
    except duckdb.Error as error:
        return error_text(error)
    return "the statement fails for this record"


def _halves(engine: StatementEngine, table: pa.Table, bad: list[FailedRecord]) -> Iterator[pa.Table]:
    middle = table.num_rows // 2
    yield from run(engine, table.slice(0, middle), bad)
    yield from run(engine, table.slice(middle), bad)
