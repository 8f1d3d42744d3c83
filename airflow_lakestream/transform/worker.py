"""Program of a statement's process, which gets only the statement and the records."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import asdict

import duckdb
import numpy as np
import pyarrow as pa

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.row_buffer import no_rows
from airflow_lakestream.transform.bounds import ProcessBounds
from airflow_lakestream.transform.child import (
    OUT_OF_MEMORY,
    ProcessorTimer,
    RequestQueue,
    be_bounded,
    listening,
    memory_error_text,
)
from airflow_lakestream.transform.engine import StatementEngine, StatementPlan, error_text
from airflow_lakestream.transform.messages import ROW, FailedRecord, ProcessSetup, send

# The most bad records of a batch whose reason has DuckDB's own message, by a run for each, which costs as much as
# thousands of good records. The reasons of further records have only the failing part of the statement.
_EXPLAINED = 10

# Errors that a value can cause. Any other DuckDB error is not due to a record.
_RECORD_ERRORS = (duckdb.DataError, duckdb.InvalidInputException)


def run(engine: StatementEngine, table: pa.Table, bad: list[FailedRecord]) -> Iterator[pa.Table]:
    """Yield the rows in order, in pieces; add the failing records to `bad`.

    The statement runs on all records. The records are sifted only if the run fails, or if the batch before had a
    failing record.

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
    """Find the failing records after a failed run, in the cheapest way: by sifting, else by tracing, else by halves."""
    if not is_sifted and (rows := _sifted(engine, table, bad)) is not None:
        engine.is_troubled = True
        yield rows
    elif places := _places(engine, table):
        yield from _without(engine, table, places, {}, bad)
    else:
        yield from _halves(engine, table, bad, error)


def _sifted(engine: StatementEngine, table: pa.Table, bad: list[FailedRecord]) -> pa.Table | None:
    """Return the rows of the good records, and add the failing records to `bad`; None if sifting does not work.

    Unless sifting is exact, the suspects run a second time. Sifting does not work for some forms of a statement, and
    for failures that the sifted form has itself. Sets `engine.is_troubled`.
    """
    try:
        if (sifted := engine.sift(table)) is None:
            return None
        good, suspects = sifted
        if engine.plan.sifts_exactly:
            engine.is_troubled = bool(suspects)
            bad += [FailedRecord(number, reason) for number, reason in suspects.items()]
            return good
        is_suspect = np.isin(table[ROW].to_numpy(), np.fromiter(suspects, np.int64, len(suspects)))
        suspect_records = table.filter(pa.array(is_suspect))
        places = engine.trace(suspect_records) if suspects else {}
    except _RECORD_ERRORS:
        return None
    failed: list[FailedRecord] = []
    engine.is_troubled = bool(suspects)
    cleared = list(_without(engine, suspect_records, places or {}, suspects, failed))
    bad += failed
    if not any(part.num_rows for part in cleared):
        return good
    rows = pa.concat_tables([good, *cleared])
    return rows.take(pa.array(np.argsort(rows[ROW].to_numpy(), kind="stable")))


def _places(engine: StatementEngine, table: pa.Table) -> dict[int, str] | None:
    """Return the failing records by number, each with the failing part of the statement, or None if tracing fails."""
    try:
        return engine.trace(table)
    except duckdb.Error:
        return None


def _without(
    engine: StatementEngine, table: pa.Table, places: dict[int, str], reasons: dict[int, str], bad: list[FailedRecord]
) -> Iterator[pa.Table]:
    """Yield the rows of the records outside of `places`, and add the failing records to `bad`.

    :param places: the failing records by number, each with the failing part of the statement.
    :param reasons: the suspects' reasons by number: a reason is used if it names the same part.
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
    good = table.filter(pa.array(~is_bad))
    if good.num_rows:
        yield from _run_or_halve(engine, good, bad)


def _run_or_halve(engine: StatementEngine, table: pa.Table, bad: list[FailedRecord]) -> Iterator[pa.Table]:
    """Yield the rows of records that should be good; if one fails after all, search it by halves."""
    try:
        yield engine.run(table)
    except _RECORD_ERRORS as error:
        yield from _halves(engine, table, bad, error)


def _reason_of(engine: StatementEngine, record: pa.Table) -> str:
    try:
        engine.run(record)
    except duckdb.Error as error:
        return error_text(error)
    return "the statement fails for this record"


def _halves(
    engine: StatementEngine, table: pa.Table, bad: list[FailedRecord], error: duckdb.Error
) -> Iterator[pa.Table]:
    """Run the halves of records that have failed together; a single record has failed by itself."""
    if table.num_rows == 1:
        bad.append(FailedRecord(table[ROW][0].as_py(), error_text(error)))
        return
    middle = table.num_rows // 2
    yield from run(engine, table.slice(0, middle), bad)
    yield from run(engine, table.slice(middle), bad)


# The most characters of a reason in an answer.
_LONGEST_REASON = 400


def main() -> None:
    """Run the statement of the first message on the tables of all later messages, until the parent ends."""
    requests, answers = listening()
    words, columns = requests.get()
    setup = ProcessSetup(**words)
    bounds = ProcessBounds(**setup.bounds)
    be_bounded(bounds)
    output = requests.get()[1].schema if setup.plan else None
    _StatementServer(setup, columns.schema, output, bounds, answers).serve(requests)


class _StatementServer:
    """Server of requests to run a statement.

    :param columns: the statement's input columns.
    :param output: the statement's output columns; None if the statement is planned here.
    """

    def __init__(
        self, setup: ProcessSetup, columns: pa.Schema, output: pa.Schema | None, bounds: ProcessBounds, pipe: io.FileIO
    ) -> None:
        plan = StatementPlan(**setup.plan) if setup.plan else None
        self._answers = pipe
        self._bounds = bounds
        with ProcessorTimer(bounds.timeout * bounds.threads):
            try:
                self._engine = StatementEngine(setup.sql, columns, bounds.memory_limit, bounds.threads, plan)
            except InvalidArgument as error:
                self._fail(invalid=[error.argument, str(error).removeprefix(f"{error.argument}: ")])
            except OUT_OF_MEMORY as error:
                self._fail(memory=memory_error_text(error))
            except RecursionError:
                self._fail(invalid=["sql", "it is nested too deeply."])
            except duckdb.Error as error:
                self._fail(invalid=["sql", f"DuckDB can't plan it: {error_text(error)}."])
        self._schema = output or pa.schema([column.field for column in self._engine.columns])
        send(pipe, {"plan": asdict(self._engine.plan)}, no_rows(self._schema))

    def serve(self, requests: RequestQueue) -> None:
        while True:
            words, table = requests.get()
            bad: list[FailedRecord] = []
            with ProcessorTimer(words["seconds"] * self._bounds.threads):
                rows = self._run(table, bad)
            size = rows.nbytes
            if size > words["rows"]:
                self._fail(rows=f"{size / 2**20:,.2f} MiB")
            reasons = [(record.index, record.reason[:_LONGEST_REASON]) for record in bad]
            send(self._answers, {"bad": reasons}, rows)
            del table, rows

    def _run(self, table: pa.Table, bad: list[FailedRecord]) -> pa.Table:
        """Return a batch's rows, and add failing records to `bad`. Any other error ends this process."""
        try:
            parts = [self._conformed(part) for part in run(self._engine, table, bad)]
        except OUT_OF_MEMORY as error:
            self._fail(memory=memory_error_text(error))
        except duckdb.Error as error:
            self._fail(failure=error_text(error))
        schema = self._schema.append(pa.field(ROW, pa.int64()))
        return pa.concat_tables(parts) if parts else no_rows(schema)

    def _conformed(self, part: pa.Table) -> pa.Table:
        """Return a piece of the rows in the types of the output columns; the last column has the record numbers."""
        columns = []
        for field, column in zip(self._schema, part.columns[:-1], strict=True):
            if field.type == pa.uuid():
                column = column.cast(pa.binary(16))
            columns.append(column.cast(field.type))
        schema = self._schema.append(pa.field(ROW, pa.int64()))
        return pa.Table.from_arrays([*columns, part.columns[-1]], schema=schema)

    def _fail(self, **words: str | list[str]) -> None:
        """Send an error, and end this process: little memory may be left."""
        send(self._answers, words, pa.table({}))
        os._exit(0)
