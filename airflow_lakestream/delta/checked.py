"""Sink of a Delta table with checks of each landing before the commit.

A Delta table has no branches: rows that fail the checks are in Kafka only, and the error names some of them.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from airflow_lakestream.core.checks import ChecksFailed, RowChecker, StagedRows
from airflow_lakestream.core.ledger import Landing, TopicEntry
from airflow_lakestream.core.ports import TableState
from airflow_lakestream.delta import ledger_store
from airflow_lakestream.delta.files import open_file, path_of
from airflow_lakestream.delta.protocol import info_of, read_commit
from airflow_lakestream.delta.sink import DeltaSink
from airflow_lakestream.delta.storage import DeltaTableAccess
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.examiner import LandingExaminer, brings_any
from airflow_lakestream.tables.schema.columns import payload_schema, to_schema

log = logging.getLogger(__name__)

NOT_KEPT = (
    "A Delta table has no branch that could keep the rows: they are in Kafka. Mend what writes the records, the "
    "decoding or the check, and run the task again (clear it): it reads the same offsets again."
)


class CheckedDeltaSink(DeltaSink):
    """`DeltaSink` with checks of all rows before the commit.

    :param auditor: has the checks.
    :param options: options of `DeltaSink`.
    """

    def __init__(
        self,
        auditor: RowChecker,
        tables: DeltaTableAccess,
        table: str,
        consumer_group: str,
        design: TableDesign,
        **options: Any,
    ) -> None:
        super().__init__(tables, table, consumer_group, design, **options)
        self._examiner = LandingExaminer(auditor, table)

    def load(self, run_id: str) -> TableState:
        """Load the table again, and refuse checks unfit for the columns, if known before the records.

        Raises InvalidArgument for such checks, and the errors of `DeltaSink.load`.
        """
        state = super().load(run_id)
        self._examiner.check_columns(self._design, None if self._head is None else self._change)
        return state

    def commit(self, landing: Landing) -> int:
        """Check the buffered rows, and commit the rows with the landing; see `core.ports.Sink`. Raises ChecksFailed.

        A landing that read no records and has no rows is not checked. After ChecksFailed the group's first offsets
        are committed alone.
        """
        if brings_any(landing):
            try:
                self._examine(landing)
            except ChecksFailed:
                self._begin(landing)
                raise
        return super().commit(landing)

    def replace(self, landing: Landing) -> tuple[int, Landing]:
        """Check the buffered rows, then replace. Raises ChecksFailed; then nothing was changed.

        A batch without rows is checked, too: a replace removes the old rows.
        """
        self._examine(landing)
        return super().replace(landing)

    def _examine(self, landing: Landing) -> None:
        adds = {path_of(add): add for add in self._files}
        written = StagedRows(
            self._columns if adds else pa.schema([]),
            {path: int(add["size"]) for path, add in adds.items()},
            lambda path: open_file(self._store, adds[path]),
            landing.rows,
            self._examiner.usual_rows(landing, self._history),
            {path: add["partitionValues"] for path, add in adds.items()},
        )
        self._examiner.examine(landing, written, None, NOT_KEPT)

    def _history(self) -> Iterator[tuple[int, Landing]]:
        version = ledger_store.previous_version(self._head, self._group)
        while version is not None and (found := ledger_store.landing_at(self._store, version, self._group)):
            landing, before = found
            yield int(info_of(read_commit(self._store, version) or ()).get("timestamp", 0)), landing
            version = before

    def _begin(self, landing: Landing) -> None:
        """Commit the group's first offsets without rows: "latest" would be another offset in the next run.

        Nothing is committed if the group has begun before. An error is logged only.
        """
        topics = {one: TopicEntry(origin=entry.origin, epochs=entry.epochs) for one, entry in landing.topics.items()}
        if not any(entry.origin for entry in topics.values()):
            return
        first = Landing(uuid.uuid4().hex, f"{landing.run_id}/begin", topics, engine=landing.engine)
        design = TableDesign(self._design.metadata)
        if self._head is None:
            columns = payload_schema(self._planned(None).schema, design.metadata.names)
            design = replace(self._design, schema=to_schema(columns))
        try:
            first_sink = DeltaSink(self._tables, self._name, self._group, design)
            first_sink.load(first.run_id)
            first_sink.commit(first)
        except Exception as e:  # noqa: BLE001  # the check's error is the one to raise
            log.warning("%s: where the group begins could not be written down: %r", self._name, e)
