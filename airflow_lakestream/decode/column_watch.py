"""Reports about a table's columns: columns without values, fields with similar names, and guessed columns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from airflow_lakestream.core.column_use import KEY, MOST_FIELDS, VALUE, ColumnUse, UnmappedFields
from airflow_lakestream.core.names import RESCUED
from airflow_lakestream.core.policies import UnknownFields, ValueEnvelope, ValueFormat
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.avro import schema as avro_schema
from airflow_lakestream.decode.connect.debezium import IMAGES
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.json.document import parse_object
from airflow_lakestream.decode.json.kinds import kinds_of, remarks
from airflow_lakestream.decode.keys import KEY_COLUMN
from airflow_lakestream.decode.lanes.framed import HEADER
from airflow_lakestream.decode.protobuf.schema import compile_proto, is_map
from airflow_lakestream.decode.values.outcome import Indices, Misfit, SchemaRefused, near_name, pick
from airflow_lakestream.registry.client import SchemaText
from airflow_lakestream.tables.schema.columns import to_schema
from airflow_lakestream.tables.schema.types import schema_text

log = logging.getLogger(__name__)


# Fields by name, each with its inner fields: a mapping, a list of several mappings, or another value for no fields.
Fields = Mapping[str, Any]


class FieldNames:
    """Finder of field names in the records' values or keys (`is_key`); keeps the names by schema."""

    def __init__(self, payload: PayloadFormats, format_name: str, *, is_key: bool = False) -> None:
        self._payload, self._format, self._is_key = payload, format_name, is_key
        self._envelope = None if is_key else payload.envelope
        self._is_wrapped = payload.envelope is not None and ValueEnvelope.CONNECT in payload.format_row.envelopes
        self._of_schemas: dict[SchemaText, Fields] = {}

    @property
    def are_known(self) -> bool:
        """Whether records of the format name their fields."""
        return self._format in (ValueFormat.JSON, ValueFormat.JSON_SCHEMA) or self._format in _BY_SCHEMA

    def of(self, value: bytes) -> Fields:
        """Return the fields of a value or key, by the names after `rename_columns`; none for an invalid one.

        A change event has the fields of its row.
        """
        try:
            fields = self._of_record(value)
        except (Misfit, SchemaRefused):
            return {}
        if self._envelope == ValueEnvelope.DEBEZIUM:
            fields = next((fields[image] for image in reversed(IMAGES) if fields.get(image)), {})
        fields = inside(fields)
        if self._is_key:
            return fields
        return dict(zip(self._payload.new_names.of(list(fields)), fields.values(), strict=True))

    def _of_record(self, value: bytes) -> Fields:
        """Return the fields by the writer's schema for Avro and Protobuf, by the document itself for JSON."""
        if self._format in _BY_SCHEMA:
            schema = self._payload.schema_of(self._format, value)
            if schema is None:
                return {}
            if schema not in self._of_schemas:
                self._of_schemas[schema] = _BY_SCHEMA[self._format](schema)
            return self._of_schemas[schema]
        document = parse_object(value[HEADER:] if self._format == ValueFormat.JSON_SCHEMA else value)
        if self._is_wrapped and set(document) == {"schema", "payload"}:
            document = document["payload"]
        return inside(document)


def _of_avro(schema: SchemaText) -> Fields:
    return _inside_avro(avro_schema.parse(schema.text, schema.texts), 0) or {}


def _inside_avro(node: avro_schema.Node, depth: int) -> Any:
    """Return the fields inside a type by name, a list of mappings for a union, or None without fields."""
    if isinstance(node, avro_schema.AvroUnion):
        return [_inside_avro(branch, depth) for _, branch in node.values]
    if isinstance(node, avro_schema.AvroArray):
        return _inside_avro(node.items, depth)
    if not isinstance(node, avro_schema.Record) or depth > _DEEPEST:
        return None
    fields = {name: _inside_avro(kind, depth + 1) for name, kind in node.fields}
    # A column may have an alias of a field as its name.
    return {alias: fields[name] for name in fields for alias in node.field_aliases.get(name, ())} | fields


def _of_protobuf(schema: SchemaText) -> Fields:
    return _inside_message(compile_proto(schema.text, schema.references).descriptor(schema.message), 0)


def _inside_message(descriptor: Any, depth: int) -> Fields:
    if depth > _DEEPEST:
        return {}
    fields = {}
    for field in descriptor.fields:
        is_message = field.message_type is not None and not is_map(field)
        fields[field.name] = _inside_message(field.message_type, depth + 1) if is_message else None
    return fields


_BY_SCHEMA: Mapping[str, Callable[[SchemaText], Fields]] = {
    ValueFormat.AVRO: _of_avro,
    ValueFormat.PROTOBUF: _of_protobuf,
}


def inside(fields: Any) -> Fields:
    """Return the fields of a field's record, or of all records in its list; no fields for another value."""
    if isinstance(fields, Mapping):
        return fields
    if not isinstance(fields, list):
        return {}
    merged: dict[str, Any] = {}
    for record in fields:
        merged.update(inside(record))
    return merged


# The records of a batch that are searched for fields without a column, spread over the batch; and the batches that are
# searched with the same empty columns, since most empty columns are simply seldom used.
_SEARCHED_RECORDS = 16
_SEARCHED_BATCHES = 8
# The deepest level of fields: records may contain records of their own type.
_DEEPEST = 8
# Operations of change events that delete rows.
_NO_ROW = pa.array(["d", "t"])


class ColumnWatch:
    """Finder of columns with values, and of fields without a column.

    Several threads may use a watch: at worst they search more batches than needed.

    :param schema: columns of decoded values and keys; None if fields are not searched (SQL of raw records, or a table
        that gets a column for each field).
    """

    def __init__(self, payload: PayloadFormats, schema: pa.Schema | None) -> None:
        columns = [] if schema is None or payload.format == ValueFormat.RAW else payload.own_columns(schema.names)
        self._payload, self._columns = payload, frozenset(columns)
        self._parts = [] if schema is None else list(_parts(payload, schema, columns))
        # By a set of empty columns, the number of searched batches with this set.
        self._searched: dict[frozenset[str], int] = {}

    def of(self, batch: RawBatch, rows: pa.Table, places: Indices) -> ColumnUse:
        """Return the columns with values, and fields without a column that have names similar to empty columns.

        Only some records of some batches are searched for such fields.

        :param rows: the good rows of the batch.
        :param places: positions of the rows' records in the batch.
        """
        payload = self._payload
        columns = frozenset(payload.own_columns(rows.column_names)) if payload.gets_columns else self._columns
        if columns and self._payload.has_operations and "_op" in rows.column_names and t.is_string(rows["_op"].type):
            # A deleted row may have only its key.
            has_row = pc.fill_null(pc.invert(pc.is_in(rows["_op"], _NO_ROW)), True)
            rows, places = rows.filter(has_row), places[has_row.to_numpy()]
        if not columns or not len(rows):
            return ColumnUse()
        filled, empty = _by_use(rows, columns)
        use = ColumnUse(columns - {RESCUED}, frozenset(filled))
        for part in self._parts:
            use += self._of_part(part, batch, places, use.filled, [path for path in empty if part.has(path)])
        return use

    def _of_part(
        self, part: _RecordPart, batch: RawBatch, places: Indices, filled: frozenset[str], empty: Sequence[_ColumnPath]
    ) -> ColumnUse:
        # A part is placed if a field of its records has a column, or if fields without a column are not lost.
        is_placed = not part.loses or not filled.isdisjoint(part.paths)
        use = ColumnUse(placed=frozenset([part.name] if is_placed else ()))
        values = part.values(batch)
        if not empty or values is None:
            return use
        use += ColumnUse(near=self._near(part, values, places, empty))
        return use if is_placed else use + _foreign(part, batch, values, places)

    def _near(
        self, part: _RecordPart, values: pa.Array, places: Indices, empty: Sequence[_ColumnPath]
    ) -> dict[str, str]:
        """Return fields without a column in a sample of records, by the empty column with a similar name.

        Only the first few batches with the same empty columns are searched.
        """
        key = frozenset(map(str, empty))
        self._searched[key] = count = self._searched.get(key, 0) + 1
        near: dict[str, str] = {}
        if count > _SEARCHED_BATCHES or not part.names.are_known:
            return near
        for place in places[:: max(1, len(places) // _SEARCHED_RECORDS)][:_SEARCHED_RECORDS].tolist():
            fields = part.placed(part.fields_of(values[place].as_py()))
            near |= {str(path): field for path in empty if (field := path.near(fields)) is not None}
        return near


def filled_columns(rows: pa.Table) -> ColumnUse:
    """Return the columns with values, of rows made by a statement; no columns without rows."""
    filled, _ = _by_use(rows, rows.column_names, deep=False)
    return ColumnUse(frozenset(rows.column_names) if len(rows) else frozenset(), frozenset(filled))


@dataclass(frozen=True)
class _ColumnPath:
    """A column, or a field inside a column, with the names of the siblings that have columns."""

    steps: tuple[str, ...]
    siblings: frozenset[str]

    def __str__(self) -> str:
        return ".".join(self.steps)

    def near(self, fields: Fields) -> str | None:
        """Return the path of a field without a column and with a similar name, or None.

        None, too, if a field has exactly the column's name.
        """
        for step in self.steps[:-1]:
            fields = inside(fields.get(step))
        if self.steps[-1] in fields:
            return None
        similar = near_name(self.steps[-1], (name for name in fields if name not in self.siblings))
        return None if similar is None else ".".join((*self.steps[:-1], similar))


@dataclass(frozen=True)
class _RecordPart:
    """The values, or the keys, of records.

    :param name: VALUE or KEY.
    :param columns: the columns of these values or keys.
    :param fields: the names of the fields with a column.
    :param names: finder of the names of a record's fields.
    :param loses: whether fields without a column are left out, so that their values are lost.
    """

    name: str
    columns: frozenset[str]
    fields: frozenset[str]
    names: FieldNames
    loses: bool

    @property
    def paths(self) -> Iterable[str]:
        """Paths of the columns, or of the fields in the column of keys, for these fields."""
        return [f"{KEY_COLUMN}.{name}" for name in self.fields] if self.name == KEY else self.fields

    def has(self, path: _ColumnPath) -> bool:
        """Whether the column belongs to these values or keys."""
        return path.steps[0] in self.columns

    def values(self, batch: RawBatch) -> pa.Array | None:
        """Return the values or keys, or None if the batch was read without keys."""
        return batch.keys if self.name == KEY else batch.values

    def fields_of(self, value: bytes | None) -> Fields:
        """Return the fields of a value or key."""
        return {} if value is None else self.names.of(value)

    def placed(self, fields: Fields) -> Fields:
        """Return the fields as in a row: a key's fields are inside the column of keys."""
        return {KEY_COLUMN: fields} if self.name == KEY else fields


def _parts(payload: PayloadFormats, schema: pa.Schema, own: Sequence[str]) -> Iterator[_RecordPart]:
    values = frozenset(name for name in own if name != KEY_COLUMN or payload.key_format is None)
    if values:
        names = FieldNames(payload, payload.format)
        loses = payload.unknown_fields == UnknownFields.IGNORE and not payload.gets_columns
        yield _RecordPart(VALUE, values, values, names, loses and names.are_known)
    if KEY_COLUMN in own and payload.key_format is not None and t.is_struct(schema.field(KEY_COLUMN).type):
        names = FieldNames(payload, payload.key_format, is_key=True)
        inner = frozenset(field.name for field in schema.field(KEY_COLUMN).type)
        yield _RecordPart(KEY, frozenset([KEY_COLUMN]), inner, names, names.are_known)


def _foreign(part: _RecordPart, batch: RawBatch, values: pa.Array, places: Indices) -> ColumnUse:
    """Search records until a field has a column; if no field has a column, return the fields' names."""
    names: dict[str, None] = {}
    count, first = 0, -1
    for place in places.tolist():
        fields = part.fields_of(values[place].as_py())
        if not part.fields.isdisjoint(fields):
            return ColumnUse(placed=frozenset([part.name]))
        if fields:
            count, first = count + 1, place if first < 0 else first
            names.update(dict.fromkeys(list(fields)[:MOST_FIELDS]))
    if not count:
        return ColumnUse()
    place = f"{batch.topic}[{batch.partition}] offset {batch.offsets[first]}"
    return ColumnUse(foreign={part.name: UnmappedFields(count, tuple(names)[:MOST_FIELDS], place)})


def _by_use(rows: pa.Table, names: Iterable[str], *, deep: bool = True) -> tuple[list[str], list[_ColumnPath]]:
    """Return the paths of columns with values, and of columns without values.

    :param deep: whether fields inside columns count as columns, too.
    """
    filled: list[str] = []
    empty: list[_ColumnPath] = []

    def add(steps: tuple[str, ...], siblings: frozenset[str], columns: Sequence[pa.Array]) -> None:
        path = _ColumnPath(steps, siblings)
        if all(len(column) == column.null_count for column in columns):
            empty.append(path)
            return
        filled.append(str(path))
        records = [record for column in columns for record in _records(column)] if deep else []
        if records and len(steps) < _DEEPEST:
            inner = frozenset(field.name for field in records[0].type)
            for number, field in enumerate(records[0].type):
                add((*steps, field.name), inner, [pc.struct_field(record, [number]) for record in records])

    top = frozenset(rows.column_names)
    for name in sorted(names):
        add((name,), top, rows[name].chunks)
    return filled, empty


def _records(column: pa.Array) -> list[pa.Array]:
    """Return an array of the records in a column of structs, or of lists of structs; [] for another column."""
    while t.is_list(column.type) or t.is_large_list(column.type):
        column = column.flatten()
    return [column] if t.is_struct(column.type) else []


# The records of the first batch whose kinds of values are counted: 10,000 records of many fields would take a second.
_SAMPLE = 1_000
# The most remarks that are logged.
_REMARKS = 10


def log_guessed_columns(payload: PayloadFormats, first: RawBatch, columns: pa.Schema) -> None:
    """Log the columns of a new table that are guessed from first records, and remarks about the columns as warnings.

    Columns of a registry's schema or of a fixed format are not guessed; a mirror logs its own columns.
    """
    if payload.gets_columns or payload.format_row.first_columns is None:
        return
    schema = to_schema(columns)
    log.info(
        "%s: the new table gets these columns for good, guessed from %s records: %s. To choose them, give schema "
        "before the first run.",
        first.topic,
        len(first),
        schema_text(schema),
    )
    if payload.format != ValueFormat.JSON or payload.envelope is not None or payload.renamed:
        return
    sample = pick(first, range(0, len(first), max(1, len(first) // _SAMPLE)))
    for remark in list(remarks(schema, kinds_of([sample]), {}, "schema"))[:_REMARKS]:
        log.warning("%s: column %s", first.topic, remark)
