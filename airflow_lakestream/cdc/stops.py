"""Reasons for a mirror to stop, with the error and the remedy for each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from airflow_lakestream.exceptions import LakestreamError, Terminal


class StopReason(StrEnum):
    """Reasons for a stop. docs/cdc-stops.md describes each."""

    # The database's primary key, or the columns of the record key, differ from the mirror's key.
    KEY_CHANGED = "key-changed"
    # A deletion does not identify its row: its old values lack the key (REPLICA IDENTITY USING INDEX, NOTHING).
    KEY_NOT_SENT = "key-not-sent"
    # An event comes from another table of the database.
    OTHER_TABLE = "other-table"
    # A column of the database's table has a name that the mirror reserves.
    RESERVED_NAME = "reserved-name"
    # Debezium sends a column under a name that the database's table does not have.
    NAME_GARBLED = "name-garbled"
    # A column has a new type that the mirror's column can't hold.
    TYPE_CHANGED = "type-changed"
    # A value is outside the range of the column's type, such as a timestamp of the year 12000.
    VALUE_OUT_OF_RANGE = "value-out-of-range"
    # The order of events does not decide the final state of a row.
    ORDER_UNKNOWN = "order-unknown"
    # Events come from another binary log, or a log that began again, and may be older than the events before.
    OTHER_LOG = "other-log"


RESNAPSHOT = "Let Debezium read the table again, and replace the mirror's rows: `lakestream mirror resnapshot`."
# A table of plain records has no database that could send the rows again.
NEW_TABLE = "Correct the producer, or land the topic in a new table"


class MirrorStopped(LakestreamError, Terminal):
    """Stop of a mirror at risk of rows different from the database's; nothing was landed."""

    def __init__(self, table: str, reason: StopReason, problem: str, remedy: str = RESNAPSHOT) -> None:
        self.table = table
        self.reason = reason
        super().__init__(f"{table}: {problem} Nothing was landed. {remedy} [{reason}]")


@dataclass(frozen=True)
class ColumnTypeOrigin:
    """Type of a column in an event or in the mirror's table, with the place in words."""

    type: object
    where: str

    @classmethod
    def at(cls, kind: object, partition: int, offset: int) -> ColumnTypeOrigin:
        """Return the type of a column in an event of the topic."""
        return cls(kind, f"partition {partition}, offset {offset}")


def type_changed(
    table: str, column: str, first: ColumnTypeOrigin, second: ColumnTypeOrigin, *, of_records: bool = False
) -> MirrorStopped:
    """Return the error for a column with two types and without a common type.

    :param of_records: the mirror is one of plain records.
    """
    types = f"{first.type} ({first.where}) and {second.type} ({second.where})"
    problem = f"the column {column} is {types}, and no type holds both."
    if of_records:
        remedy = f'{NEW_TABLE}, with a type for the column, such as schema="{column} string".'
        return MirrorStopped(table, StopReason.TYPE_CHANGED, problem, remedy)
    return MirrorStopped(
        table,
        StopReason.TYPE_CHANGED,
        f"{problem} "
        "The database changed the column's type (ALTER TABLE ... ALTER COLUMN ... TYPE), or dropped the column and "
        "added another one of its name. In JSON without schemas values decide the type, and may just differ: set "
        "value.converter.schemas.enable=true in the connector.",
    )


def column_became_wider(table: str, problems: str, *, of_records: bool = False) -> MirrorStopped:
    """Return the error for wider columns in the source; columns of a Delta table can't become wider.

    :param of_records: the mirror is one of plain records.
    """
    source, remedy = (
        ("a schema of the records", "Land the topic in a new table")
        if of_records
        else ("the database", "Drop the mirror, and let Debezium read the table again with a snapshot")
    )
    return MirrorStopped(
        table,
        StopReason.TYPE_CHANGED,
        f"{source} has changed a type ({problems}). A mirror never changes the types of a Delta table.",
        f"{remedy}; or give the wider type to the column with ALTER TABLE, where all readers know type widening.",
    )


def forms_mixed(table: str, where: str, form: str, wanted: str) -> MirrorStopped:
    """Return the error for a record of another form than the records of its topic.

    :param where: the topic, the partition and the offset.
    :param form: the form, and `wanted` the form of the topic's records, by `RecordForm`.
    """
    problem = f"{where}: it is {form}, and the mirror takes records for {wanted}: two forms in a topic have no order."
    remedy = "Let each program write a topic of its own, in one form, and land each in a table of its own."
    return MirrorStopped(table, StopReason.ORDER_UNKNOWN, problem, remedy)


def place_unknown(table: str, topic: str, partition: int, offset: int) -> MirrorStopped:
    """Return the error for an event of MariaDB without a position in the binary log."""
    return MirrorStopped(
        table,
        StopReason.ORDER_UNKNOWN,
        f"{topic}[{partition}] offset {offset}: the event has no position in MariaDB's binary log (source.pos "
        "is negative), so that older events can't be recognized.",
        f"Set binlog_legacy_event_pos=ON in the server, which is off since MariaDB 11.4. Then: {RESNAPSHOT}",
    )


def time_unknown(table: str, topic: str, partition: int, offset: int) -> MirrorStopped:
    """Return the error for an event without the time from which its version of the row is valid."""
    problem = f"{topic}[{partition}] offset {offset}: the event has no time (source.ts_ms), and a version begins at it."
    return MirrorStopped(table, StopReason.ORDER_UNKNOWN, problem, f"Correct the connector. Then: {RESNAPSHOT}")


def order_of_logs_unknown(table: str, topic: str, partition: int, offset: int, problem: str) -> MirrorStopped:
    """Return the error for an event of another binary log in unknown order with earlier events."""
    return MirrorStopped(
        table,
        StopReason.OTHER_LOG,
        f"{topic}[{partition}] offset {offset}: the event {problem}. The binary log began again (RESET MASTER, a "
        "restored server), or another server took over.",
        f"Make a new connector with a snapshot (snapshot.mode=initial). Then: {RESNAPSHOT} With a new connector "
        "`--no-signal` is enough. A mirror that is not there yet can be made once the topic has no records before "
        "that snapshot (kafka-delete-records).",
    )


def name_not_free(table: str, column: str, reason: str, *, of_records: bool = False) -> MirrorStopped:
    """Return the error for a column of the database, or a field of records, with a name unfit for the mirror."""
    if of_records:
        problem = f"the schema of the records has a field {column!r}, and {reason}."
        remedy = f'Give the column another name: rename_columns={{{json.dumps(column, ensure_ascii=False)}: "..."}}.'
        return MirrorStopped(table, StopReason.RESERVED_NAME, problem, remedy)
    return MirrorStopped(
        table,
        StopReason.RESERVED_NAME,
        f"the database's table has a column {column!r}, and {reason}.",
        f"Give the column another name in the mirror: rename_columns={{{json.dumps(column, ensure_ascii=False)}: "
        '"..."}. Or let the connector leave it out (column.exclude.list).',
    )


def name_garbled(table: str, column: str, meant: str) -> MirrorStopped:
    """Return the error for a column with a name garbled by Debezium's stream."""
    return MirrorStopped(
        table,
        StopReason.NAME_GARBLED,
        f"Debezium sends the column {meant!r} of the database's table as {column!r}: its stream takes each byte of a "
        "name for a character, its snapshots do not.",
        "Give the column a name of ASCII characters in the database (ALTER TABLE ... RENAME COLUMN), then let "
        "Debezium read the table again: `lakestream mirror resnapshot`. Or let the connector leave it out "
        "(column.include.list).",
    )
