"""Values of a mirror's key in the Kafka keys of records: for tombstones, and for records without the columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from airflow_lakestream.core.policies import KeyFormat, ValueFormat
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.header_ids import KEY, bare, named_by_header
from airflow_lakestream.decode.keys import KEY_COLUMN, ColumnDecoder
from airflow_lakestream.decode.known_formats import FORMATS, uses_registry
from airflow_lakestream.decode.lanes.framed import HEADER
from airflow_lakestream.decode.registered import SchemaFinder
from airflow_lakestream.decode.values.outcome import good_mask, pick
from airflow_lakestream.decode.writer_schemas import Writer, writers
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.row_buffer import one_array

Mask = np.ndarray
FieldPath = tuple[str, ...]
# The beginning of a JSON object: white space, then a brace.
_OBJECT = r"^[ \t\r\n]*\{"
_TEXTS = (KeyFormat.STRING, KeyFormat.RAW)


@dataclass
class KeyValues:
    """Values of the mirror's key in a batch's Kafka keys.

    :param columns: a row for each record; null for a missing value.
    :param reasons: the reasons of bad Kafka keys, by the record's index in the batch.
    """

    columns: pa.Table
    reasons: dict[int, str] = field(default_factory=dict)


@dataclass
class KafkaKeyReader:
    """Reader of Kafka keys: an object or record with the columns by name, or for a single column also a bare value.

    :param format: of Kafka keys, see `core.policies.KeyFormat`.
    :param columns: the key's columns, named by `paths` for errors.
    :param paths: the path of the field of each column in a Kafka key that is an object or a record.
    :param finder: finds the schemas that keys name.
    :param make: returns the decoder of keys into a single column.
    """

    format: str
    columns: pa.Schema
    paths: Sequence[FieldPath]
    finder: SchemaFinder
    make: Callable[[pa.Schema], ColumnDecoder]

    def __post_init__(self) -> None:
        # By Avro schema, whether the schema is one of a record.
        self._records: dict[Writer, bool] = {}
        if self.format not in _TEXTS:
            return
        if len(self.columns) > 1:
            problem = f"{self.format!r} is one value, and the key has the columns {', '.join(self.columns.names)}."
            raise InvalidArgument("key_format", problem, 'Use "json", or leave tombstones out with tombstones="skip".')
        kind = self.columns.field(0).type
        if not (t.is_string(kind) or t.is_large_string(kind) or t.is_binary(kind) or t.is_large_binary(kind)):
            problem = f"{self.format!r} makes no value of the column {self.columns.names[0]}, which is {kind}."
            raise InvalidArgument("key_format", problem, 'Use "json".')

    def read(self, batch: RawBatch) -> KeyValues:
        """Return the values in the keys of records. Raises SchemaRefused, and the registry's errors."""
        keys = pa.nulls(len(batch), pa.binary()) if batch.keys is None else batch.keys
        reasons = dict.fromkeys(bare(batch, KEY), f"the key: {named_by_header(KEY)}") if self._names_schemas else {}
        is_readable = keys.is_valid().to_numpy(zero_copy_only=False) & good_mask(len(batch), reasons)
        is_record = is_readable & self._record_mask(keys)
        values = KeyValues(
            pa.Table.from_arrays([pa.nulls(len(batch), column.type) for column in self.columns], schema=self.columns)
        )
        values.reasons.update(reasons)
        keys_as_values = replace(batch, values=keys, keys=None, headers=None)
        self._add(values, keys_as_values, is_record, is_record=True)
        is_bare = is_readable & ~is_record
        if self._takes_bare:
            self._add(values, keys_as_values, is_bare, is_record=False)
        elif is_bare.any():
            names = ", ".join(self.columns.names)
            problem = f"the key: it is no object or record with the fields {names}"
            values.reasons.update(dict.fromkeys(np.flatnonzero(is_bare).tolist(), problem))
        return values

    def _add(self, key_values: KeyValues, batch: RawBatch, mask: Mask, *, is_record: bool) -> None:
        """Decode the keys of a mask, and add their values to `key_values`.

        :param batch: the keys in place of values.
        :param is_record: whether these keys are objects or records with fields; otherwise they are bare values.
        """
        places = np.flatnonzero(mask)
        if not len(places):
            return
        decoder = self._record_decoder if is_record else self._bare_decoder
        decoded = decoder.decode(pick(batch, places))
        for row in decoded.bad:
            reason = row.reason.removeprefix(f"{KEY_COLUMN}.").removeprefix(f"{KEY_COLUMN}: ")
            key_values.reasons[int(places[row.index])] = f"the key: {reason}"
        good = places[good_mask(len(places), [row.index for row in decoded.bad])]
        # For each record of the batch the index of its decoded row, or -1.
        row_of = np.full(len(batch), -1)
        row_of[good] = np.arange(len(good))
        indices = pa.array(row_of, mask=row_of < 0)
        column = one_array(decoded.rows[0])
        # Fields of a null record are null, too.
        values = [pc.struct_field(column, list(path)) for path in self.paths] if is_record else [column]
        columns = [
            pc.coalesce(one_array(old), new.take(indices))
            for old, new in zip(key_values.columns.columns, values, strict=True)
        ]
        key_values.columns = pa.Table.from_arrays(columns, schema=self.columns)

    def _record_mask(self, keys: pa.Array) -> Mask:
        """Return a mask of the keys that are objects or records with fields; other keys are bare values."""
        if self.format in _TEXTS:
            return np.zeros(len(keys), np.bool_)
        if self.format == ValueFormat.AVRO:
            mask = np.zeros(len(keys), np.bool_)
            for writer, places in writers(keys, self.format, self.finder, {}):
                mask[places] = self._is_record(writer)
            return mask
        if self.format == ValueFormat.PROTOBUF:
            return np.ones(len(keys), np.bool_)
        texts = pc.binary_slice(keys, HEADER) if self._names_schemas else keys
        is_object: Mask = pc.match_substring_regex(texts, _OBJECT).fill_null(False).to_numpy(zero_copy_only=False)
        return is_object

    def _is_record(self, writer: Writer) -> bool:
        """Return whether an Avro schema is one of a record; an unknown schema counts as one.

        The decoder then makes the error for the unknown schema. It is not cached, since it may be registered soon.
        """
        if writer not in self._records:
            schema = self.finder.by_head(self.format, bytes(writer)) if isinstance(writer, bytes) else None
            if schema is None:
                return True
            self._records[writer] = t.is_struct(FORMATS[self.format].key_type_of(schema))
        return self._records[writer]

    @property
    def _names_schemas(self) -> bool:
        return uses_registry(self.format)

    @property
    def _takes_bare(self) -> bool:
        """Whether a key may be a bare value instead of an object or a record."""
        return len(self.columns) == 1 and self.format != ValueFormat.JSON_SCHEMA

    @cached_property
    def _record_decoder(self) -> ColumnDecoder:
        fields = [(path, column.type) for path, column in zip(self.paths, self.columns, strict=True)]
        return self.make(pa.schema([pa.field(KEY_COLUMN, struct_of(fields))]))

    @cached_property
    def _bare_decoder(self) -> ColumnDecoder:
        return self.make(pa.schema([pa.field(KEY_COLUMN, self.columns.field(0).type)]))


def columns_in_keys(kind: pa.DataType, paths: Mapping[str, FieldPath]) -> list[pa.Field]:
    """Return the columns of a mirror's key that Kafka keys of a type have.

    :param paths: by column of the mirror's key, the path of its field in Kafka keys.
    """
    if not t.is_struct(kind):
        return [pa.field(next(iter(paths)), kind)] if len(paths) == 1 else []
    types = {name: type_at(kind, path) for name, path in paths.items()}
    return [pa.field(name, type_) for name, type_ in types.items() if type_ is not None]


def type_at(kind: pa.DataType, path: FieldPath) -> pa.DataType | None:
    """Return the type of a field within a type, or None if there is no such field."""
    for name in path:
        if not t.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(name).type
    return kind


def struct_of(fields: Sequence[tuple[FieldPath, pa.DataType]]) -> pa.DataType:
    """Return the struct with fields at these paths."""
    # By the name of a member, the paths within the member; an empty path is the member itself.
    members = dict[str, list[tuple[FieldPath, pa.DataType]]]()
    for path, kind in fields:
        members.setdefault(path[0], []).append((path[1:], kind))
    types = dict[str, pa.DataType]()
    for name, inner in members.items():
        path, kind = inner[0]
        types[name] = struct_of(inner) if path else kind
    return pa.struct(list(types.items()))
