"""All formats of values and keys: a row for each, with decoders and properties.

A new format is a module with a decoder, a row here, and its name in `core.policies`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.core.names import RESCUED
from airflow_lakestream.core.policies import (
    UNAVAILABLE,
    KeyFormat,
    OutOfRange,
    TimestampsFiner,
    UnavailableValues,
    UnknownFields,
    ValueEnvelope,
    ValueFormat,
    check_delimiter,
    choose,
)
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode import raw
from airflow_lakestream.decode.avro import schema as avro_schema
from airflow_lakestream.decode.avro.decoder import AvroDecoder
from airflow_lakestream.decode.connect.debezium import IMAGES, KNOWN_MEMBERS
from airflow_lakestream.decode.connect.decoder import ConnectJsonDecoder, columns_of_connect, key_type
from airflow_lakestream.decode.csv import CsvDecoder
from airflow_lakestream.decode.json import schema as json_schema
from airflow_lakestream.decode.json.column_names import NameRules
from airflow_lakestream.decode.json.decoder import JsonDecoder
from airflow_lakestream.decode.json.growing import GrowingJsonDecoder, MissingFields, SharedJsonDecoder, grow_by
from airflow_lakestream.decode.json.infer import infer_schema
from airflow_lakestream.decode.keys import KEY_COLUMN, BytesKeyDecoder, ColumnDecoder, JsonKeyDecoder, RecordKeyDecoder
from airflow_lakestream.decode.other_names import NewNames, held_names_of_avro, held_names_of_protobuf
from airflow_lakestream.decode.protobuf import schema as protobuf_schema
from airflow_lakestream.decode.protobuf.decoder import ProtobufDecoder
from airflow_lakestream.decode.timed import EXACT, Sources, TimeColumns
from airflow_lakestream.registry.client import RegisteredSchema, RegistryClient, SchemaText
from airflow_lakestream.registry.config import RegistryConfig
from airflow_lakestream.tables.schema.types import Path

# Formats whose numbers are text, so that any number may have a fraction.
_TEXT_NUMBERS = (ValueFormat.JSON, ValueFormat.JSON_SCHEMA, ValueFormat.CSV, KeyFormat.STRING)


@dataclass(frozen=True)
class PayloadSettings:
    """Settings of keys and values; `decode.formats.PayloadFormats` checks the combination.

    :param format: of the values, see `core.policies.ValueFormat`.
    :param key_format: of the keys, see `core.policies.KeyFormat`; None leaves keys undecoded.
    :param envelope: the envelope of the row in a value, see `core.policies.ValueEnvelope`.
    :param registry: the registry of schemas, for the formats that need a registry.
    :param writer_schemas: schemas of Avro's single-object encoding, as JSON text.
    :param refused_characters: characters that the table allows in no name of a column.
    :param taken_columns: names that the table's readers reserve.
    :param renamed: pairs of the name of a field and the name of its column.
    :param times: sources of time columns that are made from another type in the records, by path.
    :param out_of_range: see `core.policies.OutOfRange`; for JSON with a database's values.
    :param timestamps_finer: see `core.policies.TimestampsFiner`; for times, too.
    :param given_columns: the user's columns for values, in their order; empty if the table defines the columns.
    :param csv_delimiter: the text between the fields of CSV.
    :param unavailable_placeholder: the `unavailable.value.placeholder` of Debezium's connector.
    :param unavailable_values: policy for events that leave a value out, see `core.policies.UnavailableValues`.
    :param decided: for one of several workers: whether all columns for unknown fields exist. None: this process adds
        such columns by itself.
    """

    format: str = ValueFormat.JSON
    unknown_fields: str = UnknownFields.IGNORE
    key_format: str | None = None
    envelope: str | None = None
    registry: RegistryConfig | None = None
    writer_schemas: tuple[str, ...] = ()
    refused_characters: str = ""
    taken_columns: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    times: Sources = ()
    out_of_range: str = OutOfRange.REJECT
    timestamps_finer: str = TimestampsFiner.REJECT
    given_columns: tuple[str, ...] = ()
    csv_delimiter: str = ","
    unavailable_placeholder: str = UNAVAILABLE
    unavailable_values: str = UnavailableValues.REJECT
    decided: bool | None = None

    @property
    def name_rules(self) -> NameRules:
        """Rules for the names of fields that become columns."""
        reserved = {KEY_COLUMN} if self.key_format is not None else set()
        if self.unknown_fields == UnknownFields.RESCUE:
            reserved.add(RESCUED)
        taken, renamed = frozenset(self.taken_columns), frozenset(old for old, _ in self.renamed)
        if self.unknown_fields in (UnknownFields.RESCUE, UnknownFields.EVOLVE):
            reserved.update(new.lower() for _, new in self.renamed)
        else:
            # A field of a taken name gets a column, which the table then refuses: without a column it would be lost.
            taken = frozenset()
        return NameRules(frozenset(reserved), self.refused_characters, taken, renamed, self.finer)

    @property
    def new_names(self) -> NewNames:
        """Names of renamed columns."""
        return NewNames(self.renamed)

    @property
    def timed(self) -> TimeColumns:
        """Columns of times with a source of another type."""
        return TimeColumns(self.times, self.finer)

    def fields(self, columns: pa.Schema) -> pa.Schema:
        """Return the records' fields for the table's columns. Raises InvalidArgument for a column without a field."""
        return self.new_names.fields(self.timed.fields(columns, self._number))

    def _number(self, path: Path) -> pa.DataType:
        """Return the type for a number that becomes a time; with a fraction if the format has text numbers."""
        name = self.key_format if self.key_format is not None and path[0] == KEY_COLUMN else self.format
        return EXACT if self.envelope is None and name in _TEXT_NUMBERS else pa.int64()

    @property
    def is_event(self) -> bool:
        """Whether values are change events of Debezium."""
        return self.envelope == ValueEnvelope.DEBEZIUM

    @property
    def finer(self) -> TimestampsFiner:
        """Policy for times finer than microseconds."""
        return choose(TimestampsFiner, "timestamps_finer", self.timestamps_finer)

    @cached_property
    def registry_client(self) -> RegistryClient | None:
        """Client of the registry, or None without a registry."""
        return None if self.registry is None else RegistryClient(self.registry)

    def documents(self, schema: pa.Schema, unknown_fields: str) -> ColumnDecoder:
        """Return the decoder of plain JSON for these columns; see `decided` for "evolve"."""
        if unknown_fields == UnknownFields.EVOLVE and self.decided is not None:
            return SharedJsonDecoder(schema, self.name_rules, decided=self.decided)
        if unknown_fields == UnknownFields.EVOLVE:
            return GrowingJsonDecoder(schema, self.name_rules)
        policy = None if self.envelope is None else choose(OutOfRange, "out_of_range", self.out_of_range)
        make = partial(JsonDecoder, is_event=self.is_event)
        return make(schema, unknown_fields, out_of_range=policy, finer=self.finer)

    def grown(self, schema: pa.Schema, found: Iterable[MissingFields]) -> pa.Schema:
        """Return the columns, plus columns for the fields that workers found, as far as the rules for names allow."""
        missing = MissingFields()
        for of_worker in found:
            missing.unite(of_worker)
        grown = grow_by(self.fields(schema), missing, self.name_rules).schema
        return self.timed.columns(self.new_names.columns(grown))

    def key_records(self, schema: pa.Schema) -> ColumnDecoder:
        """Return the decoder of keys that are records, for the records' columns."""
        assert self.key_format is not None
        row = FORMATS[self.key_format]
        # Debezium's keys are no change events, but records with or without Connect's wrapper.
        wrapped = self.envelope is not None and ValueEnvelope.CONNECT in row.envelopes
        keys = PayloadSettings(
            self.key_format,
            envelope=ValueEnvelope.CONNECT if wrapped else None,
            registry=self.registry,
            timestamps_finer=self.timestamps_finer,
        )
        return row.decoder(keys, schema)


def _record_key(payload: PayloadSettings, schema: pa.Schema) -> ColumnDecoder:
    return RecordKeyDecoder(schema, payload.key_records)


def _keys_only(payload: PayloadSettings, schema: pa.Schema) -> ColumnDecoder:
    raise AssertionError("the format is for keys only")


@dataclass(frozen=True, kw_only=True)
class FormatRow:
    """Properties of a format.

    :param decoder: returns the decoder of values, for columns.
    :param events: returns the decoder of change events, for which members without a column are not unknown fields.
        None: `decoder` is used, with columns for these members.
    :param key_decoder: returns the decoder of keys, for the single column of keys.
    :param first_columns: returns the columns of a new table by the first records; None if they can't define columns.
    :param fixed_columns: the columns of a new table if they are always the same, else empty.
    :param first_key: returns the type of the keys' column by the first keys; None if they can't define a type.
    :param kind: the registry's type of the format's schemas; None: the format needs no registry.
    :param schema_columns: returns the columns of a new table by a registry's schema.
    :param schema_key: returns the type of the keys' column by a registry's schema; by default a struct of the columns.
    :param held_names: returns a schema's columns under the names that the table has for the same fields, given all
        versions of the schema and the table's columns.
    :param messages: returns the number of kinds of records in a registry's schema, with nested kinds if the second
        argument is true; counting takes 0.1 s the first time. None: always a single kind.
    :param needs_id: each record names its schema by an id, and can't be read without the schema.
    :param options: arguments of this format alone, with the checks that refuse values.
    :param keeps_unknown: fields without a column can be rescued, or become columns.
    :param envelopes: the possible envelopes of the row.
    :param is_text: SQL may read its records undecoded.
    :param positional: fields have no names, but the order of the user's columns.
    :param modules: additional modules for decoding, with the distributions to install for them.
    """

    decoder: Callable[[PayloadSettings, pa.Schema], ColumnDecoder] = _keys_only
    events: Callable[[PayloadSettings, pa.Schema], ColumnDecoder] | None = None
    key_decoder: Callable[[PayloadSettings, pa.Schema], ColumnDecoder] = _record_key
    first_columns: Callable[[PayloadSettings, RawBatch], pa.Schema] | None = None
    fixed_columns: pa.Schema = field(default_factory=lambda: pa.schema([]))
    first_key: Callable[[PayloadSettings, RawBatch], pa.DataType] | None = None
    kind: str | None = None
    schema_columns: Callable[[SchemaText], pa.Schema] | None = None
    schema_key: Callable[[SchemaText], pa.DataType] | None = None
    held_names: Callable[[SchemaText, Sequence[RegisteredSchema], pa.Schema, pa.Schema], pa.Schema] | None = None
    messages: Callable[[SchemaText, bool], int] | None = None
    needs_id: bool = False
    options: Mapping[str, Callable[[Any], object]] = field(default_factory=dict)
    keeps_unknown: bool = False
    envelopes: tuple[ValueEnvelope, ...] = ()
    is_text: bool = False
    positional: bool = False
    modules: Mapping[str, str] = field(default_factory=dict)

    def columns_of(self, schema: SchemaText) -> pa.Schema:
        """Return the columns of a table for records of a registry's schema. Raises SchemaRefused."""
        assert self.schema_columns is not None, "a registry has schemas for this format"
        return self.schema_columns(schema)

    def key_type_of(self, schema: SchemaText) -> pa.DataType:
        """Return the type of the column for keys of a registry's schema. Raises SchemaRefused."""
        return pa.struct(list(self.columns_of(schema))) if self.schema_key is None else self.schema_key(schema)


def _json(payload: PayloadSettings, schema: pa.Schema) -> ColumnDecoder:
    if payload.envelope is None:
        return payload.documents(schema, payload.unknown_fields)
    policy = OutOfRange(payload.out_of_range)
    settings = payload.unknown_fields, policy, payload.documents, payload.is_event, payload.finer
    return ConnectJsonDecoder(schema, *settings)


def _json_columns(payload: PayloadSettings, first: RawBatch) -> pa.Schema:
    if payload.envelope is None:
        return infer_schema(first, rules=payload.name_rules)
    return columns_of_connect(first, payload.name_rules, IMAGES if payload.envelope == ValueEnvelope.DEBEZIUM else ())


def _json_key(payload: PayloadSettings, schema: pa.Schema) -> ColumnDecoder:
    if t.is_struct(schema.field(0).type):
        return _record_key(payload, schema)
    return JsonKeyDecoder(schema, wrapped=payload.envelope is not None, finer=payload.finer)


def _json_key_type(payload: PayloadSettings, keys: RawBatch) -> pa.DataType:
    return key_type(keys, payload.name_rules, wrapped=payload.envelope is not None)


def _avro(payload: PayloadSettings, schema: pa.Schema, ignored: tuple[str, ...] = ()) -> ColumnDecoder:
    settings = payload.unknown_fields, payload.registry_client, payload.finer, payload.writer_schemas
    return AvroDecoder(schema, *settings, ignored=ignored)


def _bytes_key(payload: PayloadSettings, schema: pa.Schema) -> ColumnDecoder:
    return BytesKeyDecoder(schema)


FORMATS: Mapping[str, FormatRow] = {
    KeyFormat.STRING: FormatRow(key_decoder=_bytes_key, first_key=lambda payload, keys: pa.string()),
    ValueFormat.RAW: FormatRow(
        decoder=lambda payload, schema: raw.RawDecoder(schema, payload.unknown_fields), is_text=True,
        fixed_columns=raw.arrow_schema(), key_decoder=_bytes_key, first_key=lambda payload, keys: pa.binary(),
    ),
    ValueFormat.JSON: FormatRow(
        decoder=_json, first_columns=_json_columns, key_decoder=_json_key, first_key=_json_key_type,
        keeps_unknown=True, envelopes=(ValueEnvelope.CONNECT, ValueEnvelope.DEBEZIUM), is_text=True,
    ),
    ValueFormat.JSON_SCHEMA: FormatRow(
        decoder=lambda payload, schema:
            json_schema.JsonSchemaDecoder(schema, payload.unknown_fields, payload.documents),
        kind="JSON", schema_columns=lambda schema: json_schema.arrow_schema(schema.text, schema.references),
        keeps_unknown=True, envelopes=(ValueEnvelope.DEBEZIUM,),
    ),
    ValueFormat.AVRO: FormatRow(
        decoder=_avro, events=lambda payload, schema: _avro(payload, schema, KNOWN_MEMBERS),
        key_decoder=lambda payload, schema:
            AvroDecoder(schema, UnknownFields.IGNORE, payload.registry_client, payload.finer, is_whole=True),
        kind=AvroDecoder.kind, schema_columns=lambda schema: avro_schema.arrow_schema(schema.text, schema.texts),
        schema_key=lambda schema: avro_schema.arrow_field(KEY_COLUMN, schema.text, schema.texts).type,
        held_names=held_names_of_avro,
        needs_id=True, options={"writer_schemas": avro_schema.parse_all}, envelopes=(ValueEnvelope.DEBEZIUM,),
    ),
    ValueFormat.CSV: FormatRow(
        decoder=lambda payload, schema:
            CsvDecoder(schema, payload.unknown_fields, payload.given_columns, payload.csv_delimiter, payload.finer),
        positional=True, options={"csv_delimiter": check_delimiter},
    ),
    ValueFormat.PROTOBUF: FormatRow(
        decoder=lambda payload, schema:
            ProtobufDecoder(schema, payload.unknown_fields, payload.registry_client, payload.finer),
        kind=ProtobufDecoder.kind, needs_id=True,
        schema_columns=lambda schema: protobuf_schema.arrow_schema(schema.text, schema.references, schema.message),
        held_names=held_names_of_protobuf,
        messages=lambda schema, nested: protobuf_schema.messages_in(schema.text, schema.references, nested=nested),
        modules={"google.protobuf": "protobuf", "grpc_tools": "grpcio-tools"},
    ),
}  # fmt: skip


def uses_registry(*names: object) -> bool:
    """Return whether records of any of these formats name schemas of a registry; None is not a format."""
    return any(FORMATS[str(name)].kind is not None for name in names if str(name) in FORMATS)
