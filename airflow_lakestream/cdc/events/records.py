"""Payloads of plain records for a mirror: formats, columns and names; see `cdc.events.upserts` for the decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import COMMIT, OF_EVENTS, is_kept
from airflow_lakestream.cdc.events.kafka_keys import FieldPath, KafkaKeyReader, columns_in_keys, struct_of, type_at
from airflow_lakestream.cdc.events.names import ColumnNames
from airflow_lakestream.cdc.events.schemas import RecordSchemas
from airflow_lakestream.cdc.events.statement import RecordStatement
from airflow_lakestream.cdc.events.upserts import UpsertDecoder
from airflow_lakestream.cdc.events.widening import grown
from airflow_lakestream.cdc.stops import name_not_free
from airflow_lakestream.core.names import RecordPart
from airflow_lakestream.core.policies import UNAVAILABLE, KeyFormat, OutOfRange, octets_of
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.header_ids import without_bare
from airflow_lakestream.decode.json.column_names import NameRules
from airflow_lakestream.decode.json.decoder import StrictEventDecoder
from airflow_lakestream.decode.json.document import Json
from airflow_lakestream.decode.json.growing import grow
from airflow_lakestream.decode.keys import ColumnDecoder
from airflow_lakestream.decode.known_formats import FORMATS, PayloadSettings, uses_registry
from airflow_lakestream.decode.values.outcome import pick
from airflow_lakestream.exceptions import InvalidArgument


@dataclass(frozen=True)
class RecordPayload(PayloadFormats):
    """Payloads of plain records, decoded into upserts and deletions of a mirror.

    :param names: the names of the mirror's columns.
    :param key: the columns of the mirror's key.
    :param nested: the paths of the columns of the key whose values are nested fields of a record.
    :param format_of_keys: the format of Kafka keys, which are decoded only if a value lacks the mirror's key.
    :param sequence_by: the columns that order the records of a key; empty if offsets alone do.
    :param delete_when: a SQL condition over a record's columns, by which a record deletes its key; empty for none.
    :param needs_timestamp: whether the first column of `sequence_by` has to be a timestamp.
    :param statement: makes rows of values, with the columns of the key; None if values are decoded into rows.
    :param is_flattened: whether records are Debezium's flattened events, in JSON perhaps with Connect's schema.
    :param placeholder: the connector's text for a value that it leaves out; a record with this text is bad.
    :param keeps_absent: whether rows note the columns that their records give.
    """

    names: ColumnNames = field(default_factory=ColumnNames)
    key: tuple[str, ...] = ()
    nested: Mapping[str, FieldPath] = field(default_factory=dict)
    format_of_keys: str = KeyFormat.JSON
    sequence_by: tuple[str, ...] = ()
    delete_when: str = ""
    needs_timestamp: bool = False
    keeps_absent: bool = False
    statement: RecordStatement | None = None
    is_flattened: bool = False
    placeholder: str = UNAVAILABLE

    def __post_init__(self) -> None:
        super().__post_init__()
        octets_of(self.placeholder)
        if FORMATS[self.format_of_keys].needs_id and self.registry is None:
            problem = (
                f"key_format={self.format_of_keys!r} needs one: each key names its schema by an id of the registry."
            )
            raise InvalidArgument("schema_registry", problem, "Give its URL, or the id of an Airflow connection.")

    @property
    def parts(self) -> frozenset[RecordPart]:
        """The parts of records that decoding reads; always keys."""
        headers = (RecordPart.HEADERS,) if uses_registry(self.format_of_keys) else ()
        read = frozenset[RecordPart]() if self.statement is None else self.statement.transform.parts
        return super().parts.union({RecordPart.KEY, *headers}, read)

    @property
    def uses_registry(self) -> bool:
        """Whether keys or values have schemas from a registry."""
        return uses_registry(self.format, self.format_of_keys)

    @property
    def gets_columns(self) -> bool:
        """Whether each field of the row gets a column."""
        return True

    @property
    def has_operations(self) -> bool:
        """Whether rows have an operation."""
        return True

    @property
    def place_column(self) -> str | None:
        """Column of a record's place in the order."""
        return COMMIT

    def remedy(self, reason: str) -> str:
        """Return the remedy for a bad record at the end of a run; `reason` is not used."""
        return (
            "Nothing of this batch was landed: without this record a row of its key could be stale. Correct the "
            'producer or the schema; or on_error="reject" keeps such records in a table of their own.'
        )

    def own_columns(self, names: Sequence[str]) -> list[str]:
        """Return the row's own columns among the columns of decoded records."""
        return [name for name in names if name not in OF_EVENTS and not is_kept(name)]

    def defines_columns(self, first: RawBatch) -> bool:
        """Return whether first records can define columns: tombstones can't."""
        return bool(first.values.null_count < len(first))

    @property
    def name_rules(self) -> NameRules:
        """Rules for names of fields as columns; a record with a field of a reserved name is bad."""
        rules = super().name_rules
        # `rules` refuses names that the table's readers can't have, with a better reason.
        own = self.names.reserved - frozenset(self.taken_columns)
        return replace(rules, reserved=rules.reserved | own, prefixes=(*rules.prefixes, "_cdc_"))

    def columns(self, first: RawBatch) -> pa.Schema:
        """Return the columns of a new mirror: those of values, and columns of the key that only Kafka keys have.

        Raises InvalidArgument, SchemaRefused, MirrorStopped, and the registry's errors.
        """
        first = without_bare(first, self.named_sides, self.format)
        first = pick(first, np.flatnonzero(first.values.is_valid().to_numpy(zero_copy_only=False)))
        own = self.with_nested(pa.Table.from_batches([], self.value_columns(first))).schema
        return grown(own, self.key_columns(first, [name for name in self.key if name not in own.names]))

    def key_columns(self, first: RawBatch, names: Sequence[str]) -> pa.Schema:
        """Return those of the key's columns in `names` that the Kafka keys of first records have."""
        if not names or first.keys is None or first.keys.null_count == len(first):
            return pa.schema([])
        kind = self.key_type(self.format_of_keys, first)
        found = columns_in_keys(kind, {name: self.path_of(name) for name in self.key})
        return pa.schema([one for one in found if one.name in names])

    def path_of(self, name: str) -> FieldPath:
        """Return the path in records of the field for a column of the key."""
        first, *rest = self.nested.get(name, (name,))
        return (self.field_of(first), *rest)

    def with_nested(self, rows: pa.Table) -> pa.Table:
        """Return rows with the columns of the key whose values are nested fields, as far as rows have the fields."""
        for name, (first, *rest) in self.nested.items():
            if first in rows.column_names and type_at(rows.schema.field(first).type, tuple(rest)) is not None:
                rows = rows.append_column(name, pc.struct_field(rows[first], rest))
        return rows

    def decoder(self, schema: pa.Schema) -> Any:
        """Return the decoder of records for the columns of a row; `schema` may also have the columns of an event."""
        own = [schema.field(name) for name in self.own_columns(schema.names)]
        # A value need not contain the key.
        return UpsertDecoder(self, pa.schema([one.with_nullable(True) if one.name in self.key else one for one in own]))

    def of_columns(self, schema: pa.Schema) -> ColumnDecoder:
        """Return the decoder of values for exactly these columns, without columns for nested fields."""
        return super().decoder(self.of_fields(schema))

    def label(self, name: str) -> str:
        """Return the text for a column of the key in errors: the path of a nested field, or the column's name."""
        return ".".join(self.nested.get(name, (name,)))

    def fields(self, columns: pa.Schema) -> pa.Schema:
        """Return the fields of records for the mirror's columns, without columns for nested fields."""
        return super().fields(self.of_fields(columns))

    def of_fields(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns that fields of a record have under their own names."""
        own = [one for one in schema if one.name not in self.nested]
        # A schema may give types of nested fields alone, and a decoder needs a column.
        inside = [(self.nested[one.name], one.type) for one in schema if one.name in self.nested]
        return pa.schema(own or list(struct_of(inside)))

    def record_schemas(self) -> RecordSchemas | None:
        """Return the finder of columns in the records' schemas, or None for a format without schemas."""
        if (self.format_row.kind is None and self.envelope is None) or self.statement is not None:
            return None
        return RecordSchemas(self.format, self.finder, self.names.table, of_records=True)

    def key_reader(self, columns: pa.Schema) -> KafkaKeyReader:
        """Return the reader of Kafka keys into these columns of the key. Raises InvalidArgument for an unfit type."""
        paths = [self.path_of(name) for name in columns.names]
        fields = pa.schema([one.with_name(".".join(path)) for one, path in zip(columns, paths, strict=True)])
        format_row = FORMATS[self.format_of_keys]
        decoder_of = partial(format_row.key_decoder, self)
        return KafkaKeyReader(self.format_of_keys, fields, paths, self.finder, decoder_of)

    def key_records(self, schema: pa.Schema) -> ColumnDecoder:
        """Return the decoder of Kafka keys that are records, for the records' columns."""
        wrapped = self.envelope if self.format_of_keys == KeyFormat.JSON else None
        settings = PayloadSettings(
            self.format_of_keys, envelope=wrapped, registry=self.registry, timestamps_finer=self.timestamps_finer
        )
        return FORMATS[self.format_of_keys].decoder(settings, schema)

    def documents(self, schema: pa.Schema, unknown_fields: str) -> ColumnDecoder:
        """Return the decoder of plain JSON. For flattened events WithoutColumn is raised for an unknown field."""
        if self.is_flattened:
            return StrictEventDecoder(schema, (), out_of_range=OutOfRange.REJECT, finer=self.finer)
        return super().documents(schema, unknown_fields)

    def with_fields(self, schema: pa.Schema, leftovers: Sequence[Json]) -> pa.Schema:
        """Return the columns and columns for unknown fields of JSON. Raises MirrorStopped for a reserved name."""
        there = self.of_fields(schema)
        found = grow(self.new_names.fields(there), leftovers, self.name_rules)
        for path, reason in found.refused.items():
            raise name_not_free(self.names.table, path, reason, of_records=True)
        return grown(schema, self.of_schemas(list(found.schema), there.names))

    def of_schemas(self, fields: Sequence[pa.Field], there: Sequence[str]) -> pa.Schema:
        """Return the columns for fields of records' schemas. Raises MirrorStopped for a reserved name."""
        return pa.schema([one.with_nullable(True) for one in self.names.columns(fields, there)])

    def value_columns(self, first: RawBatch) -> pa.Schema:
        """Return the columns of a statement, or of the records' rows."""
        if self.statement is not None:
            return self.statement.columns
        columns, schemas = super().value_columns(first), self.record_schemas()
        # The registry's newest schema may have more columns than the records, and other types than older records.
        return columns if schemas is None else grown(self.of_schemas(schemas.row(first), ()), columns)
