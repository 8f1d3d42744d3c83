"""Check of a merge's complete rows before the commit."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_lakestream.core.checks import RowChecker, StagedRows
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.tables.examiner import LandingExaminer

# Checks rows, and raises ChecksFailed.
RowsCheck = Callable[[pa.Table], None]
# Returns rows with the mirror's columns.
Conform = Callable[[pa.Table], pa.Table]

NOT_KEPT = (
    "A mirror has no branch that could keep the rows: their events are in Kafka. Mend the rows in the database, or the "
    "check, and run the task again (clear it): it applies the same events again, and those that came after them."
)


def check_of(auditor: RowChecker | None, table: str, landing: Landing, conform: Conform) -> RowsCheck | None:
    """Return a function that raises ChecksFailed for bad rows, or None without an auditor.

    :param auditor: checks the rows.
    :param landing: the landing that will commit the rows, for the error.
    :param conform: returns rows with the mirror's columns.
    """
    if auditor is None:
        return None
    examiner = LandingExaminer(auditor, table)

    def check(rows: pa.Table) -> None:
        # The auditor reads files: write the rows into a Parquet file in memory.
        rows, stream = conform(rows), pa.BufferOutputStream()
        pq.write_table(rows, stream)
        data = stream.getvalue()
        files = {"rows": data.size} if rows.num_rows else {}
        written = StagedRows(rows.schema, files, lambda _: pa.BufferReader(data), rows.num_rows)
        examiner.examine(landing, written, None, NOT_KEPT)

    return check
