"""Design of a mirror: table, key, settings, and notes on the source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType

from airflow_lakestream.cdc.columns import KEY_NAMES, OF_EVENTS, RECORD_KEY, SEQUENCE, TIME, VERSION
from airflow_lakestream.cdc.events.logs import BinaryLogs, DocumentOrder
from airflow_lakestream.cdc.keys.identity import check_key
from airflow_lakestream.cdc.rows import RowStrategy
from airflow_lakestream.core.checks import RowChecker
from airflow_lakestream.core.policies import DocumentEnvelope, MergeMode, OutOfRange, ValueEnvelope
from airflow_lakestream.core.routing import MIRROR, is_of_records
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.columns import to_schema
from airflow_lakestream.tables.schema.types import arrow_schema

# The rows of a mirror in words, by `insert_only`.
_ROWS = {True: "first records", False: "newest records"}


@dataclass(frozen=True)
class MirrorDesign:
    """Design of a mirror, by the user's arguments and the notes of an existing mirror.

    :param table: the design of the mirror's table.
    :param key: the columns of its key; None to take them from the records' keys.
    :param rows: the rows of a key.
    :param out_of_range: the policy for values that a column's type can't hold.
    :param renamed: the mirror's column names, by the names in the database and in the records' keys.
    :param source_tables: a regular expression that matches the source's tables, if there are several.
    :param merge_mode: whether files with changed rows are rewritten, or their rows deleted in place.
    :param is_key_given: whether the user names the key.
    :param record_key: the columns of the records' keys, as noted when the mirror was made; None if unknown.
    :param source_table: the source's table, as noted when the mirror was made; None if unknown.
    :param logs: the binary logs that were followed, as noted with the last landing.
    :param auditor: checks rows before the commit, if any.
    :param sequence_by: for a mirror of plain records, the columns that order them; empty if offsets alone do. None for
        a mirror of a database's table.
    :param insert_only: for a mirror of plain records, whether the first record of a key stays.
    :param within: with `insert_only`, the microseconds around a row's time in which later records of its key change
        nothing; None for any time.
    :param is_flattened: whether plain records are Debezium's flattened events.
    :param keeps_absent: for a mirror of plain records, whether fields that a record lacks keep their values.
    :param has_sequence: whether plain records are in the order of bytes: a column of `sequence_by` has no numbers.
    :param history_columns: for a history, the columns whose changes begin versions; empty if each record begins one.
    :param program: the program whose documents are the events; None for Debezium's events, and for plain records.
    :param document_order: the order of the documents, as noted with the last landing; None if not known yet.
    """

    table: TableDesign
    key: tuple[str, ...] | None = None
    rows: RowStrategy = RowStrategy.CURRENT
    out_of_range: OutOfRange = OutOfRange.REJECT
    renamed: Mapping[str, str] = field(default_factory=dict)
    source_tables: str | None = None
    merge_mode: MergeMode = MergeMode.AUTO
    is_key_given: bool = False
    record_key: tuple[str, ...] | None = None
    source_table: str | None = None
    logs: BinaryLogs = field(default_factory=BinaryLogs)
    auditor: RowChecker | None = None
    sequence_by: tuple[str, ...] | None = None
    insert_only: bool = False
    within: int | None = None
    keeps_absent: bool = False
    is_flattened: bool = False
    history_columns: tuple[str, ...] = ()
    has_sequence: bool = False
    program: DocumentEnvelope | None = None
    document_order: DocumentOrder | None = None

    @property
    def envelope(self) -> str | None:
        """The wrapping around the row in records; None for plain records."""
        flattened = "flattened" if self.is_flattened else None
        return flattened if self.is_of_records else self.program or ValueEnvelope.DEBEZIUM

    @property
    def has_record_keys(self) -> bool:
        """Whether events have the keys of their records, which show the key of a new mirror."""
        return self.key is None and self.program is None

    @property
    def entry_columns(self) -> pa.Schema:
        """The columns of the entries of deleted rows, next to key and version."""
        times = [pa.field(TIME, pa.int64())] if self.is_timed else []
        return pa.schema([*times, *self._sequence_column])

    @property
    def needs_all_entries(self) -> bool:
        """Whether all entries of a key are needed, not only the last one."""
        return self.rows.keeps_versions or self.has_sequence

    @property
    def _sequence_column(self) -> list[pa.Field]:
        return [pa.field(SEQUENCE, pa.binary())] if self.has_sequence else []

    @property
    def is_timed(self) -> bool:
        """Whether events have times of their own, for a history: their versions are positions in a log, or offsets."""
        return self.rows.keeps_versions and (self.is_flattened or not self.is_of_records)

    @property
    def is_of_records(self) -> bool:
        """Whether rows are made of plain records, not of a database's events."""
        return self.sequence_by is not None

    def of_table(self, name: str, properties: Mapping[str, str], columns: pa.Schema) -> MirrorDesign:
        """Return the design, completed by the key and the notes of an existing mirror.

        Raises InvalidArgument if the table is not a mirror, or if the user's arguments contradict the notes. Without a
        key in the arguments, the mirror's key must have the columns that the records' keys had.

        :param properties: the table's properties, with the notes.
        :param columns: the table's columns.
        """
        note = properties.get(MIRROR)
        if note is None:
            problem = f"{name} exists, and is not a mirror."
            raise InvalidArgument("table", problem, "Choose a table that does not exist yet, or drop it.")
        held = json.loads(note)
        self._check_source(name, sequence_noted(held), str(envelope_noted(held)).capitalize())
        key, rows = tuple(held["key"]), strategy_noted(held)
        if self.key is not None and self.key != key:
            raise InvalidArgument("key", f"{name} is mirrored by {', '.join(key)}, not by {', '.join(self.key)}.")
        for argument, property_ in (("soft_delete", "keeps_deleted"), ("history", "keeps_versions")):
            if (was := getattr(rows, property_)) != getattr(self.rows, property_):
                raise InvalidArgument(argument, f"{name} was made with {was}.", "A mirror keeps its setting.")
        if (columns_then := tuple(held.get("history_columns") or ())) != self.history_columns:
            problem = f"{name} was made with {', '.join(columns_then) or 'none'}."
            raise InvalidArgument("history_columns", problem, "A mirror keeps its setting.")
        if (insert_only := bool(held.get("insert_only"))) != self.insert_only:
            problem = f"{name} was made with {insert_only}, so its rows are the {_ROWS[insert_only]} of their keys."
            raise InvalidArgument("insert_only", problem, "A table keeps its setting: make a new one for another.")
        if (envelope := envelope_noted(held)) != self.envelope:
            raise InvalidArgument("envelope", f"{name} was made with {envelope!r}.", "A table keeps its setting.")
        record_key = None if held.get("record_key") is None else tuple(held["record_key"])
        if not self.is_key_given and self.key is None and record_key is not None and set(record_key) != set(key):
            problem = f"{name} is mirrored by {', '.join(key)}, but the records' keys have other columns."
            raise InvalidArgument("key", problem, f"Give key={list(key)}.")
        logs = BinaryLogs.of_note(held.get("logs"))
        found = replace(self, record_key=record_key, source_table=held.get("source_table"), logs=logs)
        found = replace(found, has_sequence=SEQUENCE in columns.names, document_order=order_noted(held))
        given = self.table.schema
        if given is None:
            return found.with_key(key)
        # Columns of the key that the user's schema lacks have the table's types.
        key_columns = [columns.field(one) for one in key if one not in given.column_names and one in columns.names]
        schema = to_schema(pa.schema([*arrow_schema(given), *key_columns]))
        return replace(found, table=replace(self.table, schema=schema)).with_key(key)

    def _check_source(self, name: str, noted: tuple[str, ...] | None, writer: str) -> None:
        """Refuse a mirror of another kind of source, or in another order. Raises InvalidArgument.

        :param noted: the columns that order the mirror's records, as noted; None for a mirror of a database's table.
        :param writer: the program that wrote the mirror's events.
        """
        if (noted is None) != (self.sequence_by is None):
            held, asked = (f"{writer}'s events", "plain records") if noted is None else ("plain records", "events")
            problem = f"{name} is made of {held}, and this run would add {asked}."
            raise InvalidArgument("envelope", problem, "Choose a table that does not exist yet.")
        if noted != self.sequence_by:
            order = f"by {', '.join(noted)}" if noted else "by offset, without sequence_by"
            problem = f"the rows of {name} are in order {order}."
            raise InvalidArgument("sequence_by", problem, "A table keeps its order: make a new one for another order.")

    def of_rows(self, name: str, rows: pa.Table) -> MirrorDesign:
        """Return the design of a new mirror for these events.

        Raises InvalidArgument if the key is unknown, if one of its columns does not exist, or if a type is unfit for a
        key.

        :param rows: the first events.
        """
        key = self.key or self._key_of(rows, name)
        # Given columns keep their types; all others have the events' types.
        given = pa.schema([]) if self.table.schema is None else arrow_schema(self.table.schema)
        row_columns = [one for one in rows.schema if one.name not in (*VERSION, SEQUENCE, *OF_EVENTS, *given.names)]
        schema = to_schema(pa.schema([*given, *row_columns]))
        for argument, wanted in (("key", key), ("history_columns", self.history_columns)):
            if missing := [column for column in wanted if column not in schema.column_names]:
                there = ", ".join(schema.column_names)
                problem = f"{name} would have no column {', '.join(missing)}; there are {there}."
                raise InvalidArgument(argument, problem)
        self.check_key(key, arrow_schema(schema))
        found = replace(self, has_sequence=SEQUENCE in rows.column_names)
        return replace(found, table=replace(self.table, schema=schema)).with_key(key)

    def _key_of(self, rows: pa.Table, name: str) -> tuple[str, ...]:
        """Return the columns of the key as the first events name them. Raises InvalidArgument."""
        if self.program is None:
            return tuple(self.renamed.get(column, column) for column in key_of(rows, name))
        # A document without names of a key is a bad record.
        named = [text for text in rows[KEY_NAMES].to_pylist() if text is not None]
        if not named:
            raise InvalidArgument("key", f"{name} is new, and its documents name no key.", 'Give key, such as ["id"].')
        return tuple(json.loads(named[0]))

    def check_key(self, key: tuple[str, ...], columns: pa.Schema) -> None:
        """Refuse a key with columns of unfit types. Raises InvalidArgument."""
        check_key(pa.schema([columns.field(name) for name in key]), self.out_of_range)

    def with_key(self, key: tuple[str, ...]) -> MirrorDesign:
        """Return the design with this key, and with a new note for the table's properties.

        The key's columns become required. The version and the mark of deleted rows become the table's metadata columns.
        """
        note = {"key": list(key), "soft_delete": self.rows.keeps_deleted}
        logs = self.logs.to_note()
        optional: dict[str, Any] = {"record_key": self.record_key, "source_table": self.source_table, "logs": logs}
        optional |= {"sequence_by": self.sequence_by, "insert_only": self.insert_only or None}
        optional |= {"history": self.rows.keeps_versions or None, "flattened": self.is_flattened or None}
        optional |= {"history_columns": list(self.history_columns) or None}
        optional |= {"program": self.program, "document_order": self.document_order}
        text = json.dumps(note | {name: value for name, value in optional.items() if value is not None})
        schema = None if self.table.schema is None else _with_required(self.table.schema, key)
        metadata_columns = pa.schema([*self.rows.columns, *self._sequence_column])
        notes = {**self.table.notes, MIRROR: text}
        return replace(self, key=key, table=replace(self.table, schema=schema, metadata=metadata_columns, notes=notes))

    def noted(self) -> MirrorDesign:
        """Return the design with a new note for the table's properties; unchanged if the key is unknown.

        The note has the present state of the source: its table, the columns of the records' keys, and the binary logs.
        """
        return self if self.key is None else self.with_key(self.key)


def order_noted(note: Mapping[str, Any]) -> DocumentOrder | None:
    """Return the order of a mirror's documents, by the mirror's note; None if unknown, and for other events."""
    return None if note.get("document_order") is None else DocumentOrder(note["document_order"])


def strategy_noted(note: Mapping[str, Any]) -> RowStrategy:
    """Return the strategy for the rows of a key, by the mirror's note."""
    flags = {name: bool(note.get(name)) for name in ("soft_delete", "history")}
    return RowStrategy.of(**flags, by_columns=bool(note.get("history_columns")))


def key_noted(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns of a mirror's key, by the table's properties."""
    return tuple(json.loads(properties[MIRROR])["key"])


def sequence_noted(note: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the columns that order a mirror's records, by the mirror's note; None for a database's table."""
    return tuple(note["sequence_by"]) if is_of_records(note) else None


def envelope_noted(note: Mapping[str, Any]) -> str | None:
    """Return the wrapping around the row in a mirror's records, by the mirror's note; None for plain records."""
    if is_of_records(note):
        return "flattened" if note.get("flattened") else None
    return str(note.get("program") or ValueEnvelope.DEBEZIUM)


def check_debezium(argument: str, table: str, note: Mapping[str, Any]) -> None:
    """Refuse a mirror of Maxwell's or Canal's documents. Raises InvalidArgument."""
    if envelope_noted(note) not in (None, "flattened", ValueEnvelope.DEBEZIUM):
        problem = f"{table} was made with envelope={envelope_noted(note)!r}, and this needs events of Debezium."
        remedy = "To read the database again, land a new topic in a new table; to compare rows, audit it with --full."
        raise InvalidArgument(argument, problem, remedy)


def key_of(rows: pa.Table, mirror: str) -> tuple[str, ...]:
    """Return the columns of the records' keys, by the first key in JSON.

    Raises InvalidArgument if no record has a key, or if the first key is not a JSON object.

    :param mirror: the mirror's name, for the error.
    """
    keys = rows[RECORD_KEY].drop_null() if RECORD_KEY in rows.column_names else []
    try:
        found = json.loads(keys[0].as_py())
        # A key with its schema, from Connect's JsonConverter.
        if set(found) == {"schema", "payload"}:
            found = found["payload"]
        names = tuple(found)
    except (IndexError, ValueError, TypeError, KeyError):
        names = ()
    if not names or not isinstance(found, dict):
        problem = f"{mirror} is new, and the keys of its records do not contain its key in JSON."
        raise InvalidArgument("key", problem, 'Name the columns of the primary key, such as ["id"].')
    return names


def _with_required(schema: Schema, key: tuple[str, ...]) -> Schema:
    """Return the schema with required columns of the key, which are also Iceberg's identifier fields if allowed."""
    fields = [field.model_copy(update={"required": True}) if field.name in key else field for field in schema.fields]
    kinds = {field.field_id: field.field_type for field in fields if field.name in key}
    # Iceberg allows no floating-point number in a row's identity; the mirror's own note has the key all the same.
    ids = [] if any(isinstance(kind, FloatType | DoubleType) for kind in kinds.values()) else list(kinds)
    return Schema(*fields, identifier_field_ids=ids)
