"""The look at a landing's files before they are committed, whoever wrote them and wherever they wait."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from airflow_lakestream.core.checks import AGAIN, Auditor, ChecksFailed, Written
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.change import SchemaChange, whole_schema
from airflow_lakestream.tables.schema.types import arrow_schema

WEEK = timedelta(days=7)


class Examiner:
    """Checks what one group lands in one table.

    :param auditor: has the checks.
    """

    def __init__(self, auditor: Auditor, catalog: Catalog, table: str, consumer_group: str) -> None:
        self._auditor = auditor
        self._catalog = catalog
        self._name = table
        self._group = consumer_group

    def check_columns(self, design: TableDesign, change: SchemaChange | None) -> None:
        """Raise InvalidArgument where the checks don't fit columns that are known before the records.

        :param change: None for a table that is not there.
        """
        # Without a schema, a function of DataFrames makes the columns, and may add some.
        is_open = design.schema is None and design.incoming is None and design.evolution is not SchemaEvolution.NONE
        if change is not None and not design.grows and not is_open:
            self._auditor.check_columns(arrow_schema(change.schema))
        elif change is None and design.schema is not None:
            self._auditor.check_columns(arrow_schema(whole_schema(design, None)))

    def examine(
        self,
        landing: Landing,
        schema: Schema,
        io: FileIO,
        files: Sequence[DataFile],
        branch: str | None,
        remedy: str = AGAIN,
    ) -> None:
        """Look at the rows of a landing. Raises ChecksFailed, and what reading the files raises.

        :param schema: the table's, as the commit makes it.
        :param branch: where the rows wait.
        :param remedy: what to do about rows that did not pass.
        """
        written = Written(
            arrow_schema(schema) if files else pa.schema([]),
            {file.file_path: file.file_size_in_bytes for file in files},
            lambda path: io.new_input(path).open(),
            landing.rows,
            self._usual_rows(landing),
        )
        if findings := self._auditor.findings(written):
            kept = branch if files else None
            raise ChecksFailed(self._name, str(landing.touched), kept, findings, remedy)

    def _usual_rows(self, landing: Landing) -> float | None:
        """Return how many rows the topic's landings of the last week had on average; None where nobody asks."""
        bounds = self._auditor.checks.row_count
        if bounds is None or not bounds.asks_history:
            return None
        topics = {identity.topic for identity in landing.topics}
        try:
            return usual_rows(self._catalog.load_table(self._name), self._group, topics)
        except NoSuchTableError:
            return None


def brings_any(landing: Landing) -> bool:
    """Tell whether there is something to check: else only the books change."""
    return bool(landing.counts.read or landing.rows)


def usual_rows(table: Table, consumer_group: str, topics: set[str]) -> float | None:
    """Return how many rows a group's landings of these topics had on average in the last week, as far as it is known.

    Those count that read anything and put nothing in the place of other rows. None without any.
    """
    since = (time.time() - WEEK.total_seconds()) * 1000
    rows = []
    for snapshot in ledger_store.live_ancestors(table.metadata):
        if snapshot.timestamp_ms < since:
            break
        if (landing := ledger_store.landing_of(snapshot, consumer_group)) is None:
            continue
        of_topics = [entry for identity, entry in landing.topics.items() if identity.topic in topics]
        if any(entry.counts.read for entry in of_topics) and not any(entry.replaced for entry in of_topics):
            rows.append(sum(entry.counts.written for entry in of_topics))
    return sum(rows) / len(rows) if rows else None
