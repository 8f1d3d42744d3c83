"""Why a mirror stops: what the database did that the change events do not let a mirror follow, and the way on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from airflow_lakestream.exceptions import LakestreamError, Terminal


class StopReason(StrEnum):
    """The closed list of reasons. docs/cdc.md has one line for each."""

    # The database's primary key, or the columns of its record key, are others than the mirror's key.
    KEY_CHANGED = "key-changed"
    # A deletion does not say which row it deletes: its old values lack the key (REPLICA IDENTITY USING INDEX, NOTHING).
    KEY_NOT_SENT = "key-not-sent"
    # An event comes from another table of the database than the mirror's.
    OTHER_TABLE = "other-table"
    # A column of the database's table has a name that the mirror keeps for itself.
    RESERVED_NAME = "reserved-name"
    # Debezium sends a column under a name that the database's table does not have.
    NAME_GARBLED = "name-garbled"
    # A column's type became one that the mirror's column can't hold.
    TYPE_CHANGED = "type-changed"
    # A value lies outside of what the column's type can hold, such as a timestamp of the year 12000.
    VALUE_OUT_OF_RANGE = "value-out-of-range"
    # The order of the events of one transaction does not tell what a row is in the end.
    ORDER_UNKNOWN = "order-unknown"


RESNAPSHOT = (
    "Have Debezium read the table anew, and replace the mirror's rows by what it reads: `lakestream mirror resnapshot`."
)


class MirrorStopped(LakestreamError, Terminal):
    """A mirror can't go on without the risk of rows that differ from the database's; nothing was landed."""

    def __init__(self, table: str, reason: StopReason, problem: str, remedy: str = RESNAPSHOT) -> None:
        self.table = table
        self.reason = reason
        super().__init__(f"{table}: {problem} Nothing was landed. {remedy} [{reason}]")


@dataclass(frozen=True)
class TypeSeen:
    """A type that a column has in some place: in an event of the topic, or in the mirror's table."""

    type: object
    where: str

    @classmethod
    def at(cls, kind: object, partition: int, offset: int) -> TypeSeen:
        """Return the type that a column has from an event of the topic on."""
        return cls(kind, f"partition {partition}, offset {offset}")


def type_changed(table: str, column: str, one: TypeSeen, other: TypeSeen) -> MirrorStopped:
    """Return the error for a column with two types that no one type holds."""
    return MirrorStopped(
        table,
        StopReason.TYPE_CHANGED,
        f"the column {column} is {one.type} ({one.where}) and {other.type} ({other.where}), and no type holds both. "
        "The database changed the column's type (ALTER TABLE ... ALTER COLUMN ... TYPE), or dropped the column and "
        "added another one of its name. In JSON without schemas, where values tell the type, they may just differ: set "
        "value.converter.schemas.enable=true in the connector.",
    )


def name_not_free(table: str, column: str, why: str) -> MirrorStopped:
    """Return the error for a column of the database that the mirror can't give a column of its name."""
    return MirrorStopped(
        table,
        StopReason.RESERVED_NAME,
        f"the database's table has a column {column!r}, and {why}.",
        f"Give the column another name in the mirror: rename_columns={{{json.dumps(column, ensure_ascii=False)}: "
        '"..."}. Or let the connector leave it out (column.exclude.list).',
    )


def name_garbled(table: str, column: str, meant: str) -> MirrorStopped:
    """Return the error for a column whose name Debezium's stream took apart, byte by byte."""
    return MirrorStopped(
        table,
        StopReason.NAME_GARBLED,
        f"Debezium sends the column {meant!r} of the database's table as {column!r}: its stream takes each byte of a "
        "name for a character, its snapshots do not.",
        "Give the column a name of ASCII characters in the database (ALTER TABLE ... RENAME COLUMN), then have "
        "Debezium read the table anew: `lakestream mirror resnapshot`. Or let the connector leave it out "
        "(column.include.list).",
    )
