"""Settings of keys and values, the decoder of a table's payload columns, and the columns of a new table.

The rows of `decode.known_formats` have the differences between formats.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import pyarrow as pa

from airflow_lakestream.core.names import RESCUED, RecordPart
from airflow_lakestream.core.policies import (
    KeyFormat,
    UnavailableValues,
    UnknownFields,
    ValueEnvelope,
    ValueFormat,
    choose,
    octets_of,
)
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.connect.debezium import KNOWN_MEMBERS, USUAL, DebeziumDecoder, EventNaming, flattened
from airflow_lakestream.decode.connect.debezium_own import RecordForm
from airflow_lakestream.decode.connect.unavailable import NOTE, UnavailablePolicy, ValuePlaceholder
from airflow_lakestream.decode.header_ids import KEY, VALUE, without_bare
from airflow_lakestream.decode.json.column_names import NameRules
from airflow_lakestream.decode.keys import KEY_COLUMN, ColumnDecoder, KeyedDecoder
from airflow_lakestream.decode.known_formats import FORMATS, FormatRow, PayloadSettings, uses_registry
from airflow_lakestream.decode.other_names import RenamedDecoder
from airflow_lakestream.decode.registered import SchemaFinder
from airflow_lakestream.decode.timed import TimedDecoder
from airflow_lakestream.decode.values.outcome import SchemaRefused
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError
from airflow_lakestream.registry.client import RegistryClient, SchemaText, versions_of

log = logging.getLogger(__name__)


def _checked(argument: str, check: Callable[[Any], object], value: object) -> None:
    """Call `check` for an argument's value. Raises InvalidArgument if the value is refused."""
    try:
        check(value)
    except SchemaRefused as e:
        raise InvalidArgument(argument, str(e)) from None


@dataclass(frozen=True)
class PayloadFormats(PayloadSettings):
    """Formats of keys and values, checked for contradictions. Raises InvalidArgument on construction.

    The subclass for mirrors, `cdc.events.decoder`, overrides properties and methods; some of their arguments are for
    the subclass only.
    """

    def __post_init__(self) -> None:
        choose(ValueFormat, "format", self.format)
        choose(UnknownFields, "unknown_fields", self.unknown_fields)
        if self.key_format is not None:
            choose(KeyFormat, "key_format", self.key_format)
        self.timed.check()
        self._check_envelope()
        self._check_unavailable()
        self._check_schemas()
        self._check_unknown_fields()

    def _check_unknown_fields(self) -> None:
        unknown = choose(UnknownFields, "unknown_fields", self.unknown_fields)
        if unknown in (UnknownFields.IGNORE, UnknownFields.FAIL):
            return
        problem = None
        if not self.format_row.keeps_unknown:
            names = '" and "'.join(name for name in FORMATS if FORMATS[name].keeps_unknown)
            problem = f'format="{names}"; the format is {self.format!r}'
        elif self.envelope is not None:
            problem = f"values without an envelope; the envelope is {self.envelope!r}"
        elif self.key_format is not None and unknown is UnknownFields.EVOLVE:
            problem = f"keys that are not decoded; key_format is {self.key_format!r}"
        if problem is not None:
            raise InvalidArgument("unknown_fields", f"{str(unknown)!r} goes with {problem}.", 'Use "ignore" or "fail".')

    def _check_envelope(self) -> None:
        if self.envelope is None:
            return
        envelope = choose(ValueEnvelope, "envelope", self.envelope)
        if envelope not in self.format_row.envelopes:
            known = " and ".join(name for name in FORMATS if envelope in FORMATS[name].envelopes)
            raise InvalidArgument("envelope", f"{self.envelope!r} goes with {known}; the format is {self.format!r}.")

    def _check_unavailable(self) -> None:
        """Refuse invalid settings for values that Debezium leaves out, and settings without Debezium's envelope."""
        octets_of(self.unavailable_placeholder)
        choose(UnavailableValues, "unavailable_values", self.unavailable_values)
        for name in ("unavailable_placeholder", "unavailable_values"):
            if self.envelope != ValueEnvelope.DEBEZIUM and getattr(self, name) != getattr(PayloadSettings, name):
                raise InvalidArgument(name, 'goes with envelope="debezium".', "Leave it out.")

    def _check_schemas(self) -> None:
        """Refuse arguments of other formats, and a missing registry for a format that needs a registry."""
        for format_name, row in FORMATS.items():
            for argument, check in row.options.items():
                value = getattr(self, argument)
                if row is self.format_row:
                    _checked(argument, check, value)
                elif value != getattr(PayloadSettings, argument):
                    problem = f'goes with format="{format_name}"; the format is {self.format!r}.'
                    raise InvalidArgument(argument, problem, "Leave it out.")
        for argument, name in (("format", self.format), ("key_format", self.key_format)):
            schemas = self.writer_schemas if argument == "format" else ()
            if name is not None and FORMATS[name].needs_id and self.registry is None and not schemas:
                raise InvalidArgument(
                    "schema_registry",
                    f"{argument}={name!r} needs one: each record names its schema by an id of the registry.",
                    'Give its URL, such as "http://registry:8081", or the id of an Airflow connection.',
                )

    @property
    def format_row(self) -> FormatRow:
        """The row of the values' format."""
        return FORMATS[self.format]

    @property
    def uses_registry(self) -> bool:
        """Whether keys or values have schemas from a registry."""
        return uses_registry(self.format, self.key_format)

    @property
    def named_sides(self) -> tuple[str, ...]:
        """The sides of a record ("key", "value") with schemas from a registry."""
        formats = {KEY: self.key_format, VALUE: self.format}
        return tuple(side for side, name in formats.items() if uses_registry(name))

    @property
    def further_settings(self) -> tuple[str, ...]:
        """Settings with an effect on the rows that differ from their defaults, as text."""
        own = ("key_format", "envelope", "timestamps_finer", "unavailable_placeholder", "unavailable_values")
        names = [
            name for name in (*own, *self.format_row.options) if getattr(self, name) != getattr(PayloadSettings, name)
        ]
        changed = {name: getattr(self, name) for name in names}
        renamed = {f"rename_columns.{old}": new for old, new in self.renamed}
        times = {f"schema.{'.'.join(path)}": source for path, source in self.times}
        return tuple(f"{name}={value}" for name, value in (changed | renamed | times).items())

    @property
    def parts(self) -> frozenset[RecordPart]:
        """The parts of records that decoding reads; headers, too, since they may name a schema of the registry."""
        has_key = self.key_format is not None or "key" in self.format_row.fixed_columns.names
        return frozenset(compress((RecordPart.KEY, RecordPart.HEADERS), (has_key, self.named_sides)))

    def remedy(self, reason: str) -> str:
        """Return the remedy for a run that a bad record ended; `reason` is for the subclass."""
        return (
            'Nothing of this batch was landed. Correct the producer or the schema; or on_error="reject" keeps such '
            "records in a table of their own and lands the others."
        )

    @property
    def gets_columns(self) -> bool:
        """Whether each field of the row gets a column, even with unknown_fields="ignore"; true for a mirror."""
        return False

    @property
    def record_form(self) -> RecordForm | None:
        """The form of records, if an envelope has one of its own."""
        return RecordForm.DEBEZIUM if self.is_event else None

    @property
    def has_operations(self) -> bool:
        """Whether rows have the operation of an event in the column `_op`: a deleted row may have only its key."""
        return self.is_event

    def own_columns(self, names: Sequence[str]) -> list[str]:
        """Return the names of columns for fields of the row, without the columns for parts of a change event."""
        return [
            name for name in names if self.envelope != ValueEnvelope.DEBEZIUM or name not in (*self.naming.parts, NOTE)
        ]

    def field_of(self, column: str) -> str:
        """Return the name that a column's field has in records."""
        field = next((old for old, new in self.renamed if new == column), column)
        return self.naming.source(field)

    @property
    def place_column(self) -> str | None:
        """The column with an event's log position in its database, or None; only a mirror has the column."""
        return None

    def schema_of(self, format_name: str, value: bytes) -> SchemaText | None:
        """Return the schema that the first bytes of a value name, or None for an unknown schema."""
        return self.finder.by_head(format_name, value)

    def defines_columns(self, first: RawBatch) -> bool:
        """Return whether first records can define the columns of a new table: always, except for a mirror."""
        return True

    def keeps_for_later(self, first: RawBatch) -> bool:
        """Return whether first records without columns are decoded later: never, except for a mirror."""
        return False

    def columns(self, first: RawBatch) -> pa.Schema:
        """Return the columns of a new table, from the format, the registry or the first records.

        Records with the schema's id only in a header define no columns. Raises InvalidArgument, SchemaRefused and the
        registry's errors.
        """
        first = without_bare(first, self.named_sides, self.format)
        columns = self._with_rescued(self.value_columns(first))
        if self.key_format is None:
            return columns
        if KEY_COLUMN in columns.names:
            raise InvalidArgument("key_format", f"the values have a field {KEY_COLUMN}, too.", "Give a schema.")
        return columns.append(pa.field(KEY_COLUMN, self.key_type(self.key_format, first)))

    def key_type(self, key_format: str, first: RawBatch) -> pa.DataType:
        """Return the type of decoded keys, from the format, the registry or the keys of first records.

        Raises SchemaRefused and the registry's errors.
        """
        keys = replace(first, values=first.keys, keys=None)
        properties = FORMATS[key_format]
        if properties.first_key is not None:
            return properties.first_key(self, keys)
        return properties.key_type_of(self.finder.find(key_format, first.topic, "key", keys.values))

    def foreseen_columns(self, topic: str) -> pa.Schema | None:
        """Return the result of `columns` without records, or None if the result depends on the topic's first records.

        Raises InvalidArgument, SchemaRefused and the registry's errors.
        """
        if self.key_format is not None:
            return None
        if len(self.format_row.fixed_columns):
            return self.new_names.columns(self.format_row.fixed_columns)
        if self.format_row.kind is None or self.registry is None:
            return None
        schema = self.finder.foreseen(self.format, topic)
        return None if schema is None else self._with_rescued(self._columns_of(schema))

    def newest_columns(self, topic: str, held: pa.Schema) -> pa.Schema | None:
        """Return the columns of the values by the registry's newest schema for the topic, or None without a schema.

        Raises InvalidArgument, SchemaRefused and the registry's errors.

        :param held: the table's columns; a field with a column under an alternative name gets no second column.
        """
        if self.format_row.kind is None or self.registry is None:
            return None
        schema = self.finder.newest(self.format, topic, "value")
        if schema is None:
            return None
        columns = self._columns_of(schema)
        if self.envelope is not None or self.format_row.held_names is None:
            return columns
        versions = versions_of(self.registry_client, topic, self.format_row.kind)
        return self.format_row.held_names(schema, versions, columns, held)

    def prepare(self, topic: str) -> None:
        """Load a topic's newest Protobuf schemas into a cache, so that child processes need not compile them again.

        Compiling takes 0.1 s for each. Errors are only logged: decoding raises them again.
        """
        if self.registry is None:
            return
        finder = SchemaFinder(RegistryClient(replace(self.registry, retries=0)))
        for side, name in (("value", self.format), ("key", self.key_format)):
            if name is not None and FORMATS[name].messages is not None:
                try:
                    finder.newest(name, topic, side)
                except LakestreamError as e:
                    log.info("The schema of the %s of %s is not available yet: %s", side, topic, e)

    def check(self, columns: Sequence[str]) -> None:
        """Refuse columns without the column for keys, if keys are decoded. Raises InvalidArgument."""
        if self.key_format is not None and KEY_COLUMN not in columns:
            raise InvalidArgument(
                "key_format",
                f"there is no column {KEY_COLUMN} for the keys.",
                f'Add one, such as "{KEY_COLUMN} string", to the schema and the table; or leave key_format out.',
            )

    def check_names(self) -> None:
        """Refuse invalid rename_columns, and any rename_columns if fields have no names. Raises InvalidArgument."""
        if self.renamed and self.format_row.positional:
            problem = f"with format={self.format!r} fields have no names: the columns have the names in schema."
            raise InvalidArgument("rename_columns", problem, "Leave it out.")
        reserved = frozenset({KEY_COLUMN, RESCUED})
        self.new_names.check(NameRules(reserved, self.refused_characters, frozenset(self.taken_columns)))

    def decoder(self, schema: pa.Schema) -> ColumnDecoder:
        """Return the decoder for these columns. Raises InvalidArgument for columns unfit for the format."""
        self.check(schema.names)
        if not self.times:
            return self._decoder(schema)
        return TimedDecoder(self._decoder(self.timed.fields(schema, self._number)), self.timed)

    def _decoder(self, schema: pa.Schema) -> ColumnDecoder:
        if self.key_format is None:
            return self._value_decoder(schema)
        keys = pa.schema([schema.field(KEY_COLUMN)])
        values = pa.schema([column for column in schema if column.name != KEY_COLUMN])
        return KeyedDecoder(self._value_decoder(values), FORMATS[self.key_format].key_decoder(self, keys), schema)

    def value_columns(self, first: RawBatch) -> pa.Schema:
        """Return the columns of a new table for values, from the format, the registry or the first records."""
        if len(self.format_row.fixed_columns):
            # Decoded keys have a column of their own.
            columns = self.format_row.fixed_columns
            fixed = [column for column in columns if self.key_format is None or column.name != "key"]
            return self.new_names.columns(pa.schema(fixed))
        if self.format_row.first_columns is None:
            return self._columns_of(self.finder.find(self.format, first.topic, "value", first.values))
        return self.row_columns(self.format_row.first_columns(self, first))

    @property
    def naming(self) -> EventNaming:
        """Names of the columns of a change event's row, and of the columns for parts of the event."""
        return USUAL

    @property
    def unavailable(self) -> UnavailablePolicy:
        """Policy for values left out of events."""
        return UnavailablePolicy(
            ValuePlaceholder(self.unavailable_placeholder), UnavailableValues(self.unavailable_values)
        )

    def _columns_of(self, schema: SchemaText) -> pa.Schema:
        return self.row_columns(self.format_row.columns_of(schema))

    def row_columns(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns of the rows for values with these columns, after flattening and renaming."""
        if self.envelope != ValueEnvelope.DEBEZIUM:
            return self.new_names.columns(columns)
        return self.new_names.columns(flattened(columns, self.unavailable_values == UnavailableValues.NULL))

    def _with_rescued(self, columns: pa.Schema) -> pa.Schema:
        if self.unknown_fields != UnknownFields.RESCUE:
            return columns
        # A field of this name is unknown, too: its value is rescued.
        others = [column for column in columns if column.name != RESCUED]
        return pa.schema([*others, pa.field(RESCUED, pa.string())])

    def _value_decoder(self, schema: pa.Schema) -> ColumnDecoder:
        names = self.new_names
        decoder = self._field_decoder(names.fields(schema))
        return RenamedDecoder(decoder, names) if names.pairs else decoder

    def _field_decoder(self, fields: pa.Schema) -> ColumnDecoder:
        if self.envelope == ValueEnvelope.DEBEZIUM:
            return DebeziumDecoder(fields, self._events, self.naming, self.unavailable)
        return self.format_row.decoder(self, fields)

    def _events(self, schema: pa.Schema) -> ColumnDecoder:
        """Return the decoder of change events; members without a column are not unknown fields."""
        if self.format_row.events is not None:
            return self.format_row.events(self, schema)
        if self.unknown_fields == UnknownFields.IGNORE:
            return self.format_row.decoder(self, schema)
        others = [pa.field(name, pa.string()) for name in KNOWN_MEMBERS if name not in schema.names]
        return self.format_row.decoder(self, pa.schema([*schema, *others]))

    @property
    def finder(self) -> SchemaFinder:
        """Finder of the schemas of records."""
        return SchemaFinder(self.registry_client, self.writer_schemas)
