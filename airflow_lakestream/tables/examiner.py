"""Checks of a landing's rows before the rows become visible, for every table format and writer."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from datetime import timedelta

from airflow_lakestream.core.checks import AGAIN, ChecksFailed, RowChecker, StagedRows
from airflow_lakestream.core.ledger import Landing, TopicEntry
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.change import SchemaChange, whole_schema
from airflow_lakestream.tables.schema.types import arrow_schema

WEEK = timedelta(days=7)

# Landings with their times in milliseconds since the epoch, the newest first.
History = Iterable[tuple[int, Landing]]


class LandingExaminer:
    """Examiner of a landing's rows: applies a table's checks before the rows become visible.

    :param auditor: has the checks, and evaluates each check.
    :param table: the table's name, for errors.
    """

    def __init__(self, auditor: RowChecker, table: str) -> None:
        self._auditor = auditor
        self._name = table

    def check_columns(self, design: TableDesign, change: SchemaChange | None) -> None:
        """Refuse checks unfit for the table's columns, if all columns are known before the records.

        Nothing is refused if records may still add columns. Raises InvalidArgument.

        :param change: the table's schema with the next change. None if the table does not exist: then the design's
            columns are checked, if it has any.
        """
        # Without a schema, a function of DataFrames makes the columns, and may add some.
        is_open = design.schema is None and design.incoming is None and design.evolution is not SchemaEvolution.NONE
        if change is not None and not design.grows and not is_open:
            self._auditor.check_columns(arrow_schema(change.schema))
        elif change is None and design.schema is not None:
            self._auditor.check_columns(arrow_schema(whole_schema(design, None)))

    def usual_rows(self, landing: Landing, history: Callable[[], History]) -> float | None:
        """Return the average number of rows of the topic's landings in the last week, or None.

        Only landings that read records and replaced no rows count. The result is None without such a landing, or if no
        check compares with the average; then the history is not read.

        :param history: returns the table's landings, newest first.
        """
        bounds = self._auditor.checks.row_count
        if bounds is None or not bounds.asks_history:
            return None
        since = (time.time() - WEEK.total_seconds()) * 1000
        topics = {identity.topic for identity in landing.topics}
        rows = []
        for time_ms, earlier in history():
            if time_ms < since:
                break
            of_topics = [entry for identity, entry in earlier.topics.items() if identity.topic in topics]
            if any(entry.counts.read for entry in of_topics) and not any(entry.replaced for entry in of_topics):
                rows.append(sum(entry.counts.written for entry in of_topics))
        return sum(rows) / len(rows) if rows else None

    def examine(self, landing: Landing, written: StagedRows, branch: str | None, remedy: str = AGAIN) -> None:
        """Apply the checks to a landing's rows. Raises ChecksFailed, and errors of reading the files.

        :param written: the files of the landing, not visible to readers yet.
        :param branch: the branch with the rows, for the error; None if no branch has the rows.
        :param remedy: advice in the error for rows that did not pass.
        """
        if findings := self._auditor.findings(written):
            offsets = str(landing.touched) if landing.touched else "a batch without records"
            raise ChecksFailed(self._name, offsets, branch if written.files else None, findings, remedy)


def brings_any(landing: Landing) -> bool:
    """Return whether a landing has read records or added rows; else it changes the ledger only, and needs no checks."""
    return bool(landing.counts.read or landing.rows)


def beginning_of(landing: Landing) -> Landing:
    """Return a landing of the group's first offsets alone, for a landing that may fail its checks."""
    topics = {key: TopicEntry(origin=entry.origin, epochs=entry.epochs) for key, entry in landing.topics.items()}
    return Landing(uuid.uuid4().hex, f"{landing.run_id}/begin", topics, engine=landing.engine)
