"""Mirror tables: their rows are states, not records, so that what goes by records is not for them."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_lakestream.exceptions import LakestreamError, Terminal

# Table property, set with each landing: the key's columns and whether deleted rows stay, as JSON.
MIRROR = "lakestream.mirror"


class IsMirror(LakestreamError, Terminal):
    """A mirror table was to be used as a table of records."""

    def __init__(self, table: str, what: str) -> None:
        self.table = table
        super().__init__(
            f"{table} is a mirror of a database's table: a row of it is what many change events came to, so it can't "
            f"be {what}. Compare it with its source instead, row by row; land the events themselves in a table of "
            'their own (envelope="debezium") to have each record.'
        )


def refuse_mirror(table: str, properties: Mapping[str, str], what: str) -> None:
    """Raise IsMirror for a mirror table."""
    if MIRROR in properties:
        raise IsMirror(table, what)
