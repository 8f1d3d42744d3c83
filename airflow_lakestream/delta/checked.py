"""Sink of a Delta table with checks of each landing before the commit.

A Delta table has no branches: rows that fail the checks are in Kafka only, and the error names some of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa

from airflow_lakestream.core.checks import ChecksFailed, RowChecker, StagedRows
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.delta import ledger_store
from airflow_lakestream.delta.files import open_file, path_of
from airflow_lakestream.delta.protocol import info_of, read_commit
from airflow_lakestream.delta.sink import DeltaSink
from airflow_lakestream.delta.storage import DeltaTableAccess
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.examiner import LandingExaminer, beginning_of, brings_any
from airflow_lakestream.tables.schema.columns import payload_schema, to_schema

log = logging.getLogger(__name__)

Done = TypeVar("Done")
NOT_KEPT = (
    "A Delta table has no branch that could keep the rows: they are in Kafka. Mend what writes the records, the "
    "decoding or the check, and run the task again (clear it): it reads the same offsets again."
)


class DeltaChecks(LandingExaminer):
    """`tables.sink.CommitChecks` of a Delta table: buffered rows are checked before the commit."""

    def __init__(self, auditor: RowChecker, sink: DeltaSink, tables: DeltaTableAccess, table: str, group: str) -> None:
        super().__init__(auditor, table)
        self._sink, self._tables, self._group = sink, tables, group

    def commit(self, landing: Landing, publish: Callable[[], Done], *, is_replace: bool) -> Done:
        """Check the buffered rows, and commit the rows with the landing; see `core.ports.Sink`. Raises ChecksFailed.

        A landing that read no records and has no rows is not checked, except a replace, which removes the old rows.
        After ChecksFailed, except of a replace, the group's first offsets are committed alone.
        """
        if is_replace or brings_any(landing):
            try:
                self._examine(landing)
            except ChecksFailed:
                if not is_replace:
                    self._begin(landing)
                raise
        return publish()

    def _examine(self, landing: Landing) -> None:
        """Check the sink's buffered rows. Raises ChecksFailed."""
        adds = {path_of(add): add for add in self._sink.files}
        written = StagedRows(
            self._sink.columns if adds else pa.schema([]),
            {path: int(add["size"]) for path, add in adds.items()},
            lambda path: open_file(self._sink.store, adds[path]),
            landing.rows,
            self.usual_rows(landing, self._history),
            {path: add["partitionValues"] for path, add in adds.items()},
        )
        self.examine(landing, written, None, NOT_KEPT)

    def _history(self) -> Iterator[tuple[int, Landing]]:
        """Yield the group's earlier landings, newest first, each with its time in milliseconds."""
        version = ledger_store.previous_version(self._sink.head, self._group)
        while version is not None and (item := ledger_store.landing_at(self._sink.store, version, self._group)):
            landing, previous = item
            yield int(info_of(read_commit(self._sink.store, version) or ()).get("timestamp", 0)), landing
            version = previous

    def _begin(self, landing: Landing) -> None:
        """Commit the group's first offsets without rows: in the next run, "latest" would be another offset.

        Nothing is committed if the group has begun before. An error is only logged.
        """
        first = beginning_of(landing)
        if not any(entry.origin for entry in first.topics.values()):
            return
        design = TableDesign(self._sink.design.metadata)
        if self._sink.head is None:
            columns = payload_schema(self._sink.schema, design.metadata.names)
            design = replace(self._sink.design, schema=to_schema(columns))
        try:
            first_sink = DeltaSink(self._tables, self._name, self._group, design)
            first_sink.load(first.run_id)
            first_sink.commit(first)
        except Exception as e:  # noqa: BLE001  # the check's error is the one to raise
            log.warning("%s: where the group begins could not be written down: %r", self._name, e)
