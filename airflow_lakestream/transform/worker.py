"""Process of a statement, with only the statement and the records."""

from __future__ import annotations

import io
import os
from dataclasses import asdict

import duckdb
import pyarrow as pa

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.no_rows import no_rows
from airflow_lakestream.transform.bounds import ProcessBounds
from airflow_lakestream.transform.child import (
    OUT_OF_MEMORY,
    Asked,
    ProcessorTimer,
    be_bounded,
    listening,
    memory_error_text,
)
from airflow_lakestream.transform.engine import StatementEngine, StatementPlan, error_text
from airflow_lakestream.transform.failures import run
from airflow_lakestream.transform.messages import ProcessSetup, send
from airflow_lakestream.transform.outcome import ROW, FailedRecord

_REASON = 400


def main() -> None:
    """Run the statement of the first message on all later messages."""
    asked, answers = listening()
    words, columns = asked.get()
    setup = ProcessSetup(**words)
    bounds = ProcessBounds(**setup.bounds)
    be_bounded(bounds)
    made = asked.get()[1].schema if setup.plan else None
    _StatementServer(setup, columns.schema, made, bounds, answers).serve(asked)


class _StatementServer:
    def __init__(
        self, setup: ProcessSetup, columns: pa.Schema, made: pa.Schema | None, bounds: ProcessBounds, answers: io.FileIO
    ) -> None:
        plan = StatementPlan(**setup.plan) if setup.plan else None
        self._answers = answers
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
        self._schema = made or pa.schema([column.field for column in self._engine.columns])
        send(answers, {"plan": asdict(self._engine.plan)}, no_rows(self._schema))

    def serve(self, asked: Asked) -> None:
        while True:
            words, table = asked.get()
            bad: list[FailedRecord] = []
            with ProcessorTimer(words["seconds"] * self._bounds.threads):
                rows = self._run(table, bad)
            size = rows.nbytes
            if size > words["rows"]:
                self._fail(rows=f"{size / 2**20:,.2f} MiB")
            send(self._answers, {"bad": [(one.index, one.reason[:_REASON]) for one in bad]}, rows)
            del table, rows

    def _run(self, table: pa.Table, bad: list[FailedRecord]) -> pa.Table:
        try:
            parts = [self._conformed(part) for part in run(self._engine, table, bad)]
        except OUT_OF_MEMORY as error:
            self._fail(memory=memory_error_text(error))
        except duckdb.Error as error:
            self._fail(failure=error_text(error))
        schema = self._schema.append(pa.field(ROW, pa.int64()))
        return pa.concat_tables(parts) if parts else no_rows(schema)

    def _conformed(self, part: pa.Table) -> pa.Table:
        columns = []
        for field, column in zip(self._schema, part.columns[:-1], strict=True):
            if field.type == pa.uuid():
                column = column.cast(pa.binary(16))
            columns.append(column.cast(field.type))
        schema = self._schema.append(pa.field(ROW, pa.int64()))
        return pa.Table.from_arrays([*columns, part.columns[-1]], schema=schema)

    def _fail(self, **words: str | list[str]) -> None:
        """Send an error and end: little memory may be left."""
        send(self._answers, words, pa.table({}))
        os._exit(0)
