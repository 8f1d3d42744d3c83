"""Mirror tables, with states of a database's rows: operations on single records refuse mirrors."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_lakestream.core.routing import TableTemplate
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal

# Table property, set with each landing, as JSON: the key's columns, and whether deleted rows stay.
MIRROR = "lakestream.mirror"
# Arguments of a landing that are fixed for a mirror, with the reasons.
FIXED = {
    "envelope": "a mirror is made of Debezium's events",
    "tombstones": "a tombstone contains nothing that the event before it does not",
    "metadata_columns": "a mirror keeps partition and offset of each row's last event",
    "schema_evolution": "columns that the database adds are added, and types that became wider are widened",
    "unknown_fields": "columns that the database adds are added",
    "key_format": "keys are taken from the row",
    "sql": "a mirror has the rows of the database's table",
    "sql_input": "a mirror has the rows of the database's table",
    "unavailable_values": "a value that an event leaves out stays what it is",
    "replace": "rows of a mirror are states, not records",
    "home_table": "each topic has one mirror",
    "new_tables": "each topic has one mirror",
    "max_tables": "each topic has one mirror",
}


class NotForMirror(InvalidArgument):
    """An argument of a landing is not available for a mirror."""

    def __init__(self, argument: str, reason: str) -> None:
        super().__init__(argument, f"is not for a mirror: {reason}.", "Leave it out.")


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


def check_mirror_name(table: TableTemplate) -> None:
    """Refuse a table chosen by records. Raises InvalidArgument."""
    if table.by_record:
        raise InvalidArgument("table", f"{table.text!r}: each topic has one mirror.", 'Write "lake.{topic}".')
