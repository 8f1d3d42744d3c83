"""Mirror tables: their rows are states of a database's rows, so whatever works record by record refuses them."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_lakestream.exceptions import LakestreamError, Terminal

# Table property, set with each landing, as JSON: the key's columns, and whether deleted rows stay.
MIRROR = "lakestream.mirror"


class IsMirror(LakestreamError, Terminal):
    """A mirror table was used as a table of records."""

    def __init__(self, table: str, what: str) -> None:
        self.table = table
        super().__init__(
            f"{table} is a mirror of a database's table: one row is the result of many change events, so it can't "
            f"be {what}. Compare it with its source row by row instead. To keep each record, land the events in "
            'a table of their own (envelope="debezium").'
        )


def refuse_mirror(table: str, properties: Mapping[str, str], what: str) -> None:
    """Raise IsMirror for a mirror table."""
    if MIRROR in properties:
        raise IsMirror(table, what)
