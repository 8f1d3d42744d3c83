"""The look at a landing's rows before they show, whatever the table's format, and whoever wrote them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import timedelta

from airflow_lakestream.core.checks import AGAIN, Auditor, ChecksFailed, Written
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.change import SchemaChange, whole_schema
from airflow_lakestream.tables.schema.types import arrow_schema

WEEK = timedelta(days=7)

# Landings with their times in milliseconds, the newest first.
History = Iterable[tuple[int, Landing]]


class Examiner:
    """Checks what is landed in one table.

    :param auditor: has the checks.
    """

    def __init__(self, auditor: Auditor, table: str) -> None:
        self._auditor = auditor
        self._name = table

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

    def usual_rows(self, landing: Landing, history: Callable[[], History]) -> float | None:
        """Return how many rows the topic's landings of the last week had on average, as far as that is known.

        Those count that read anything and put nothing in the place of other rows. None without any; and where nobody
        asks, without a look at the history.
        """
        bounds = self._auditor.checks.row_count
        if bounds is None or not bounds.asks_history:
            return None
        since = (time.time() - WEEK.total_seconds()) * 1000
        topics = {identity.topic for identity in landing.topics}
        rows = []
        for at, one in history():
            if at < since:
                break
            of_topics = [entry for identity, entry in one.topics.items() if identity.topic in topics]
            if any(entry.counts.read for entry in of_topics) and not any(entry.replaced for entry in of_topics):
                rows.append(sum(entry.counts.written for entry in of_topics))
        return sum(rows) / len(rows) if rows else None

    def examine(self, landing: Landing, written: Written, branch: str | None, remedy: str = AGAIN) -> None:
        """Look at the rows of a landing. Raises ChecksFailed, and what reading the files raises.

        :param branch: where the rows wait, if there are any.
        :param remedy: what to do about rows that did not pass.
        """
        if findings := self._auditor.findings(written):
            offsets = str(landing.touched) if landing.touched else "a batch without records"
            raise ChecksFailed(self._name, offsets, branch if written.files else None, findings, remedy)


def brings_any(landing: Landing) -> bool:
    """Tell whether there is something to check: else only the books change."""
    return bool(landing.counts.read or landing.rows)
