"""From what a user says of keys and values to the decoder of a table's payload columns, and to columns for a new table.

A new format is a module with a decoder, and a line in `_value_columns` and `_records`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa

from airflow_lakestream.core.formats import IDS_NEEDED, SCHEMA_KINDS, Envelope, Format, KeyFormat
from airflow_lakestream.core.names import RESCUED
from airflow_lakestream.core.policies import OutOfRange, UnknownFields, choose
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode import raw
from airflow_lakestream.decode.avro import schema as avro_schema
from airflow_lakestream.decode.avro.decoder import AvroDecoder
from airflow_lakestream.decode.connect.debezium import IMAGES, KNOWN_MEMBERS, USUAL, DebeziumDecoder, Naming, flattened
from airflow_lakestream.decode.connect.decoder import ConnectJsonDecoder, columns_of_connect, key_type
from airflow_lakestream.decode.json.column_names import NameRules
from airflow_lakestream.decode.json.decoder import JsonDecoder
from airflow_lakestream.decode.json.growing import GrowingJsonDecoder
from airflow_lakestream.decode.json.infer import infer_schema
from airflow_lakestream.decode.json.schema import JsonSchemaDecoder
from airflow_lakestream.decode.keys import KEY_COLUMN, BytesAsKey, Decoder, JsonAsKey, KeyedDecoder, RecordAsKey
from airflow_lakestream.decode.protobuf.decoder import ProtobufDecoder
from airflow_lakestream.decode.registered import Found, SchemaFinder
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError
from airflow_lakestream.registry.client import RegistryClient
from airflow_lakestream.registry.config import RegistryConfig

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Payload:
    """What keys and values hold.

    :param format: of the values, see `core.formats.Format`.
    :param key_format: of the keys, see `core.formats.KeyFormat`; None leaves them undecoded.
    :param envelope: what is around the row in a value, see `core.formats.Envelope`.
    :param registry: where schemas are, for the formats that need one.
    :param writer_schemas: schemas of Avro's single-object encoding, as JSON text.
    :param refused_characters: those that the table takes in no name of a column.
    :param out_of_range: see `core.policies.OutOfRange`; for JSON that a database's values are in.
    :param alone: nothing else is to be done while records are decoded; see `decode.json.decoder`.

    Raises InvalidArgument where these do not go together.
    """

    format: str = Format.JSON
    unknown_fields: str = UnknownFields.IGNORE
    key_format: str | None = None
    envelope: str | None = None
    registry: RegistryConfig | None = None
    writer_schemas: tuple[str, ...] = field(default=())
    refused_characters: str = ""
    out_of_range: str = OutOfRange.REJECT
    alone: bool = False

    def __post_init__(self) -> None:
        choose(Format, "format", self.format)
        choose(UnknownFields, "unknown_fields", self.unknown_fields)
        if self.key_format is not None:
            choose(KeyFormat, "key_format", self.key_format)
        self._check_envelope()
        self._check_schemas()
        self._check_unknown_fields()

    def _check_unknown_fields(self) -> None:
        unknown = choose(UnknownFields, "unknown_fields", self.unknown_fields)
        if unknown in (UnknownFields.IGNORE, UnknownFields.FAIL):
            return
        problem = None
        if self.format not in (Format.JSON, Format.JSON_SCHEMA):
            problem = f'format="json" and "json_schema"; the format is {self.format!r}'
        elif self.envelope is not None:
            problem = f"values without an envelope; the envelope is {self.envelope!r}"
        elif self.key_format is not None and unknown is UnknownFields.EVOLVE:
            problem = f"keys that are not decoded; key_format is {self.key_format!r}"
        if problem is not None:
            raise InvalidArgument("unknown_fields", f"{str(unknown)!r} goes with {problem}.", 'Use "ignore" or "fail".')

    def _check_envelope(self) -> None:
        if self.envelope is None:
            return
        envelope = choose(Envelope, "envelope", self.envelope)
        fitting = (Format.JSON,) if envelope is Envelope.CONNECT else (Format.JSON, Format.JSON_SCHEMA, Format.AVRO)
        if self.format not in fitting:
            known = " and ".join(fitting)
            raise InvalidArgument("envelope", f"{self.envelope!r} goes with {known}; the format is {self.format!r}.")

    def _check_schemas(self) -> None:
        if self.writer_schemas and self.format != Format.AVRO:
            raise InvalidArgument("writer_schemas", f'they go with format="avro"; the format is {self.format!r}.')
        for text in self.writer_schemas:
            avro_schema.parse(text)
        for argument, name in (("format", self.format), ("key_format", self.key_format)):
            given = self.writer_schemas if argument == "format" else ()
            if name in IDS_NEEDED and self.registry is None and not given:
                raise InvalidArgument(
                    "schema_registry",
                    f"{argument}={name!r} needs one: each record names its schema by an id of the registry.",
                    'Give its URL, such as "http://registry:8081", or the id of an Airflow connection.',
                )

    @property
    def uses_registry(self) -> bool:
        """Whether anything here is looked up in a registry."""
        return self.format in SCHEMA_KINDS or self.key_format in SCHEMA_KINDS

    @property
    def beside(self) -> tuple[str, ...]:
        """What else than the format decides on the rows, as text."""
        given = {"key_format": self.key_format, "envelope": self.envelope}
        return tuple(f"{name}={value}" for name, value in given.items() if value is not None)

    @property
    def needs_keys(self) -> bool:
        """Whether records have to be read with their keys."""
        return self.key_format is not None or self.format == Format.RAW

    def columns(self, first: RawBatch) -> pa.Schema:
        """Return the columns of a new table, which the registry or the first records tell.

        Raises InvalidArgument, SchemaRefused and the registry's errors.
        """
        columns = self._with_rescued(self._value_columns(first))
        if self.key_format is None:
            return columns
        if KEY_COLUMN in columns.names:
            raise InvalidArgument("key_format", f"the values have a field {KEY_COLUMN}, too.", "Give a schema.")
        return columns.append(self._key_column(first))

    def foreseen_columns(self, topic: str) -> pa.Schema | None:
        """Return what `columns` would, whatever the topic's first records; None where they have a say.

        Raises InvalidArgument, SchemaRefused and the registry's errors.
        """
        if self.key_format is not None:
            return None
        if self.format == Format.RAW:
            return raw.arrow_schema()
        if self.format not in SCHEMA_KINDS or self.registry is None:
            return None
        found = self._finder.foreseen(self.format, topic)
        return None if found is None else self._with_rescued(self._columns_of(found))

    def newest_columns(self, topic: str) -> pa.Schema | None:
        """Return the columns of the values by the registry's newest schema for the topic; None where there is none.

        Raises InvalidArgument, SchemaRefused and the registry's errors.
        """
        if self.format not in SCHEMA_KINDS or self.registry is None:
            return None
        found = self._finder.newest(self.format, topic, "value")
        return None if found is None else self._columns_of(found)

    def prepare(self, topic: str) -> None:
        """Find out what decoding the topic is likely to need, once for all processes that are forked from this one.

        That is Protobuf's schemas, compiled: 0.1 s for each. Raises nothing: who needs one says what is wrong.
        """
        if self.registry is None:
            return
        finder = SchemaFinder(RegistryClient(replace(self.registry, retries=0)))
        for side, name in (("value", self.format), ("key", self.key_format)):
            if name == Format.PROTOBUF:
                try:
                    finder.newest(name, topic, side)
                except LakestreamError as e:
                    log.info("The schema of the %s of %s can't be had yet: %s", side, topic, e)

    def check(self, columns: Sequence[str]) -> None:
        """Refuse columns that have no place for what keys hold. Raises InvalidArgument."""
        if self.key_format is not None and KEY_COLUMN not in columns:
            raise InvalidArgument(
                "key_format",
                f"there is no column {KEY_COLUMN} for the keys.",
                f'Add one, such as "{KEY_COLUMN} string", to the schema and the table; or leave key_format out.',
            )

    def decoder(self, schema: pa.Schema) -> Decoder:
        """Return the decoder for these columns. Raises InvalidArgument for those that the format can't fill."""
        self.check(schema.names)
        if self.key_format is None:
            return self._value_decoder(schema)
        keys = pa.schema([schema.field(KEY_COLUMN)])
        values = pa.schema([column for column in schema if column.name != KEY_COLUMN])
        return KeyedDecoder(self._value_decoder(values), self._key_decoder(keys), schema)

    def _value_columns(self, first: RawBatch) -> pa.Schema:
        if self.format == Format.RAW:
            return raw.arrow_schema() if self.key_format is None else pa.schema([raw.arrow_schema().field("value")])
        if self.format != Format.JSON:
            return self._columns_of(self._finder.find(self.format, first.topic, "value", first.values))
        if self.envelope is None:
            return infer_schema(first, rules=self._names)
        images = IMAGES if self.envelope == Envelope.DEBEZIUM else ()
        return self._unwrapped(columns_of_connect(first, self._names, images))

    @property
    def _naming(self) -> Naming:
        """What the columns of a change event's row are called, and what stands beside them."""
        return USUAL

    @property
    def _names(self) -> NameRules:
        """What fields of records can't be columns: a record is none to end a run by its names."""
        reserved = {KEY_COLUMN} if self.key_format is not None else set()
        if self.unknown_fields == UnknownFields.RESCUE:
            reserved.add(RESCUED)
        return NameRules(frozenset(reserved), self.refused_characters)

    def _columns_of(self, found: Found) -> pa.Schema:
        return self._unwrapped(found.columns(self.format))

    def _unwrapped(self, columns: pa.Schema) -> pa.Schema:
        return flattened(columns) if self.envelope == Envelope.DEBEZIUM else columns

    def _with_rescued(self, columns: pa.Schema) -> pa.Schema:
        if self.unknown_fields != UnknownFields.RESCUE:
            return columns
        # A field of that name is one more that has no column.
        others = [column for column in columns if column.name != RESCUED]
        return pa.schema([*others, pa.field(RESCUED, pa.string())])

    def _key_column(self, first: RawBatch) -> pa.Field:
        if self.key_format == KeyFormat.STRING:
            return pa.field(KEY_COLUMN, pa.string())
        if self.key_format == KeyFormat.RAW:
            return pa.field(KEY_COLUMN, pa.binary())
        keys = replace(first, values=first.keys)
        if self.key_format == KeyFormat.JSON:
            return pa.field(KEY_COLUMN, key_type(keys, self._names, wrapped=self.envelope is not None))
        assert self.key_format is not None
        found = self._finder.find(self.key_format, first.topic, "key", keys.values)
        if self.key_format == KeyFormat.AVRO:
            return found.avro_field(KEY_COLUMN).with_nullable(True)
        return pa.field(KEY_COLUMN, pa.struct(list(found.columns(self.key_format))))

    def _value_decoder(self, schema: pa.Schema) -> Decoder:
        if self.format == Format.RAW:
            return raw.RawDecoder(schema, self.unknown_fields)
        if self.envelope == Envelope.DEBEZIUM:
            return DebeziumDecoder(schema, self._events, self._naming)
        return self._records(schema)

    def _events(self, schema: pa.Schema) -> Decoder:
        """Return the decoder of events, whose other members are nothing unknown."""
        if self.format == Format.AVRO:
            known = KNOWN_MEMBERS
            return AvroDecoder(schema, self.unknown_fields, self._client, self.writer_schemas, ignored=known)
        if self.unknown_fields == UnknownFields.IGNORE:
            return self._records(schema)
        others = [pa.field(name, pa.string()) for name in KNOWN_MEMBERS if name not in schema.names]
        return self._records(pa.schema([*schema, *others]))

    def _records(self, schema: pa.Schema) -> Decoder:
        if self.format == Format.AVRO:
            return AvroDecoder(schema, self.unknown_fields, self._client, self.writer_schemas)
        if self.format == Format.PROTOBUF:
            return ProtobufDecoder(schema, self.unknown_fields, self._client)
        if self.format == Format.JSON_SCHEMA:
            return JsonSchemaDecoder(schema, self.unknown_fields, self._json_decoder)
        if self.envelope is not None:
            policy = choose(OutOfRange, "out_of_range", self.out_of_range)
            return ConnectJsonDecoder(schema, self.unknown_fields, policy, self._json_decoder)
        return self._json_decoder(schema, self.unknown_fields)

    def _json_decoder(self, schema: pa.Schema, unknown_fields: str) -> Decoder:
        if unknown_fields == UnknownFields.EVOLVE:
            return GrowingJsonDecoder(schema, self._names)
        policy = None if self.envelope is None else choose(OutOfRange, "out_of_range", self.out_of_range)
        return JsonDecoder(schema, unknown_fields, alone=self.alone, out_of_range=policy)

    def _key_decoder(self, schema: pa.Schema) -> Decoder:
        kind = schema.field(0).type
        if self.key_format in (KeyFormat.STRING, KeyFormat.RAW):
            return BytesAsKey(schema)
        if self.key_format == KeyFormat.AVRO:
            return AvroDecoder(schema, UnknownFields.IGNORE, self._client, whole=True)
        if self.key_format == KeyFormat.JSON and not pa.types.is_struct(kind):
            return JsonAsKey(schema, wrapped=self.envelope is not None)
        # A key of another envelope there is none of: Debezium's keys are plain records, in Connect's wrapping.
        envelope = Envelope.CONNECT if self.envelope is not None and self.key_format == KeyFormat.JSON else None
        keys = Payload(str(self.key_format), envelope=envelope, registry=self.registry)
        return RecordAsKey(schema, keys._records)

    @property
    def registry_client(self) -> RegistryClient | None:
        """What looks schemas up; None without a registry."""
        return self._client

    @cached_property
    def _client(self) -> RegistryClient | None:
        return None if self.registry is None else RegistryClient(self.registry)

    @property
    def _finder(self) -> SchemaFinder:
        return SchemaFinder(self._client, self.writer_schemas)
