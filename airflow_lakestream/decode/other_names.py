"""Alternative names of a field: Avro's aliases, and names of a Protobuf field's number in further versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.avro.schema import (
    AvroArray,
    AvroEnum,
    AvroFixed,
    AvroMap,
    AvroUnion,
    Node,
    Record,
    parse,
)
from airflow_lakestream.decode.json.column_names import NameRules
from airflow_lakestream.decode.keys import ColumnDecoder
from airflow_lakestream.decode.protobuf.schema import ProtobufSchema, compile_proto, is_map
from airflow_lakestream.decode.values.outcome import DecoderResult, SchemaRefused
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.registry.client import RegisteredSchema, SchemaText

# The newest versions of a Protobuf schema that are used: each takes 0.1 s to compile the first time.
_MOST_COMPILED = 32


class OtherNames:
    """Groups of names: names of the same field of a record, and names of the same type."""

    def __init__(self) -> None:
        self._groups: dict[Any, set[str]] = {}

    def join(self, key: Any, names: Iterable[str]) -> None:
        """Add names of the same field or type; groups with one of these names become one group.

        :param key: the record's name with the field's identity (see `identity_of`), or "type" for names of types.
        """
        joined = set(names)
        for name in list(joined):
            joined |= self._groups.get((key, name), set())
        for name in joined:
            self._groups[key, name] = joined

    def of(self, key: Any, name: str) -> set[str]:
        """Return all names of the field or type with this name."""
        return self._groups.get((key, name), {name})


class FieldNaming:
    """Finder of a field's column, by the field's name, or by an alternative name if no column has the field's name.

    :ivar may_lack_names: whether further versions of the schema may have a missing name: a column has no field and a
        field has no column, or a union's branch has no column.
    :ivar found: the columns found by an alternative name, by path of the field.
    """

    def __init__(self, names: OtherNames) -> None:
        self.may_lack_names = False
        self.found: dict[str, str] = {}
        self._names = names

    def places(
        self, record: str, fields: Sequence[tuple[str, Any]], columns: Sequence[str], path: str
    ) -> dict[str, int]:
        """Return the positions of the fields' columns, by field name; fields without a column are missing.

        A column that has a field's name belongs to this field. Updates `may_lack_names` and `found`.

        :param record: the name of the fields' record.
        :param fields: names of the record's fields, each with the field's identity, or None in Avro.
        """
        field_names = {name for name, _ in fields}
        places = {name: place for place, name in enumerate(columns) if name in field_names}
        free = {name: place for place, name in enumerate(columns) if name not in field_names}
        for name, identity in fields:
            alternatives = self._names.of((record, identity), name)
            column = None if name in places else next((column for column in free if column in alternatives), None)
            if column is not None:
                places[name] = free.pop(column)
                self.found[f"{path}.{name}" if path else name] = column
        self.may_lack_names |= bool(free) and len(places) < len(fields)
        return places

    def type_names(self, node: Node) -> set[str]:
        """Return all names of the type of a union's branch, without namespaces."""
        return {name.rpartition(".")[2] for name in self._names.of("type", node.name)}


def avro_names(nodes: Iterable[Node], versions: Sequence[RegisteredSchema] = ()) -> OtherNames:
    """Return the names that are aliases in schemas, and in a registry's versions; invalid versions are skipped."""
    names = OtherNames()
    types: list[_Named] = []
    for root in (*nodes, *map(_avro_node, versions)):
        if root is not None:
            _add_named(root, types)
    for node in types:
        names.join("type", (node.name, *node.aliases))
    for record in types:
        if isinstance(record, Record):
            for name, aliases in record.field_aliases.items():
                for key in names.of("type", record.name):
                    names.join((key, None), (name, *aliases))
    return names


def _avro_node(schema: RegisteredSchema) -> Node | None:
    """Return the parsed form of a registered schema, or None for an invalid schema."""
    try:
        return parse(schema.text, [reference.text for _, reference in schema.all_references()])
    except SchemaRefused:
        return None


_Named = Record | AvroEnum | AvroFixed


def _add_named(node: Node, types: list[_Named]) -> None:
    """Add all types with a name in a schema to `types`, each once."""
    if isinstance(node, _Named):
        if any(node is known for known in types):
            return
        types.append(node)
    for inner in _inside_avro(node):
        _add_named(inner, types)


def _inside_avro(node: Node) -> Iterator[Node]:
    if isinstance(node, Record):
        yield from (kind for _, kind in node.fields)
    elif isinstance(node, AvroArray | AvroMap):
        yield node.items if isinstance(node, AvroArray) else node.values
    elif isinstance(node, AvroUnion):
        yield from node.branches


def protobuf_names(versions: Sequence[RegisteredSchema]) -> OtherNames:
    """Return the names of fields with the same number in the newest versions; invalid versions are skipped.

    Raises MissingExtra and CompilerTimedOut, see `compile_proto`.
    """
    names = OtherNames()
    by_number: dict[tuple[str, Any], set[str]] = {}
    for version in versions[-_MOST_COMPILED:]:
        for message in _messages(version):
            for field in message.fields:
                by_number.setdefault((message.full_name, identity_of(field)), set()).add(field.name)
    for key, same_field in by_number.items():
        names.join(key, same_field)
    return names


def _messages(version: RegisteredSchema) -> list[Any]:
    try:
        return proto_of(version).all_messages()
    except SchemaRefused:
        return []


def proto_of(schema: RegisteredSchema) -> ProtobufSchema:
    """Return a registered schema, compiled. Raises the errors of `compile_proto`."""
    return compile_proto(schema.text, tuple((name, reference.text) for name, reference in schema.all_references()))


def identity_of(field: Any) -> tuple[Any, ...]:
    """Return the identity of a field in a Protobuf message: number and type, since a number may be reused."""
    inner: Any = None if field.message_type is None else field.message_type.full_name
    if is_map(field):
        # The name of a map's entries, which the compiler makes from the field's name, is not part of the identity.
        inner = tuple(map(identity_of, field.message_type.fields))
    return field.number, field.type, bool(field.is_repeated), inner


@dataclass(frozen=True)
class RecordShape:
    """A record of Avro or Protobuf: the fields, each with name, identity (or None), and type."""

    name: str
    fields: Sequence[tuple[str, Any, Any]]

    @classmethod
    def of_avro(cls, node: Node) -> RecordShape | None:
        """Return the shape of the only record in values, perhaps inside lists, maps or unions.

        None if the values contain several records or no record.
        """
        while not isinstance(node, Record):
            inside = [inner for inner in _inside_avro(node) if inner.name != "null"]
            if len(inside) != 1:
                return None
            node = inside[0]
        return cls(node.name, [(name, None, kind) for name, kind in node.fields])

    @classmethod
    def of_protobuf(cls, descriptor: Any) -> RecordShape | None:
        """Return the shape of a message, or of a map's values; None for a field without a message."""
        if descriptor is None:
            return None
        if descriptor.GetOptions().map_entry:
            return cls.of_protobuf(descriptor.fields_by_name["value"].message_type)
        return cls(descriptor.full_name, [(f.name, identity_of(f), f.message_type) for f in descriptor.fields])


@dataclass(frozen=True)
class HeldNames:
    """Naming of a registry schema's columns by the names that a table has for the same fields.

    :param shape: returns the shape of the record in a field's type, or None.
    """

    naming: FieldNaming
    shape: Callable[[Any], RecordShape | None]

    def columns(self, columns: Sequence[pa.Field], record: RecordShape, held: Sequence[pa.Field]) -> list[pa.Field]:
        """Return the record's columns, renamed to the table's names for the same fields, inside structs, too.

        A column that the table does not have keeps its name.

        :param held: the table's columns.
        """
        fields = [(name, identity) for name, identity, _ in record.fields]
        places = self.naming.places(record.name, fields, [column.name for column in held], "")
        renamed = []
        for column, (name, _, field_type) in zip(columns, record.fields, strict=True):
            if name in places:
                known = held[places[name]]
                column = column.with_name(known.name).with_type(self._type(column.type, field_type, known.type))
            renamed.append(column)
        return renamed

    def _type(self, kind: pa.DataType, field_type: Any, held: pa.DataType) -> pa.DataType:
        """Return a column's type with the table's names of inner fields, if both types have the same form."""
        if t.is_struct(kind) and t.is_struct(held):
            shape = self.shape(field_type)
            if shape is None or [name for name, *_ in shape.fields] != [field.name for field in kind]:
                return kind
            return pa.struct(self.columns(list(kind), shape, list(held)))
        if t.is_list(kind) and (t.is_list(held) or t.is_large_list(held)):
            item = self._type(kind.value_type, field_type, held.value_type)
            return pa.list_(kind.value_field.with_type(item))
        if t.is_map(kind) and t.is_map(held):
            item = self._type(kind.item_type, field_type, held.item_type)
            return pa.map_(kind.key_type, kind.item_field.with_type(item))
        return kind


def held_names_of_avro(
    schema: SchemaText, versions: Sequence[RegisteredSchema], columns: pa.Schema, held: pa.Schema
) -> pa.Schema:
    """Return the columns of an Avro schema under a table's names for the same fields.

    :param versions: all versions of the schema, for alternative names.
    :param columns: the columns of the schema.
    :param held: the table's columns.
    """
    node = parse(schema.text, schema.texts)
    record, naming = RecordShape.of_avro(node), FieldNaming(avro_names([node], versions))
    assert record is not None, "the schema has columns"
    return pa.schema(HeldNames(naming, RecordShape.of_avro).columns(list(columns), record, list(held)))


def held_names_of_protobuf(
    schema: SchemaText, versions: Sequence[RegisteredSchema], columns: pa.Schema, held: pa.Schema
) -> pa.Schema:
    """Return the columns of a Protobuf schema under a table's names for the same fields; see `held_names_of_avro`."""
    message = compile_proto(schema.text, schema.references).descriptor(schema.message)
    record, naming = RecordShape.of_protobuf(message), FieldNaming(protobuf_names(versions))
    assert record is not None, "the schema has columns"
    return pa.schema(HeldNames(naming, RecordShape.of_protobuf).columns(list(columns), record, list(held)))


@dataclass(frozen=True)
class NewNames:
    """New names of columns, as pairs of the field's name in records and the column's name."""

    pairs: tuple[tuple[str, str], ...] = ()

    def check(self, rules: NameRules) -> None:
        """Refuse new names unfit for columns of the table, or for several fields. Raises InvalidArgument."""
        taken = Counter(new.lower() for _, new in self.pairs)
        for name, new in self.pairs:
            problem = rules.problem(new, top=True) or ("two columns get it" if taken[new.lower()] > 1 else None)
            if problem is not None:
                raise InvalidArgument("rename_columns", f"{name!r} can't become {new!r}: {problem}.")

    def columns(self, fields: pa.Schema) -> pa.Schema:
        """Return the columns for fields of records.

        Raises InvalidArgument if the names of two columns are equal, apart from upper and lower case.
        """
        if not self.pairs:
            return fields
        names = self.of(fields.names)
        duplicate = next((name for name, count in Counter(map(str.lower, names)).items() if count > 1), None)
        if duplicate is not None:
            both = [old for old, name in zip(fields.names, names, strict=True) if name.lower() == duplicate]
            raise InvalidArgument("rename_columns", f"the fields {both} of records would be one column, {duplicate!r}.")
        return pa.schema([field.with_name(name) for field, name in zip(fields, names, strict=True)])

    def fields(self, columns: pa.Schema) -> pa.Schema:
        """Return the fields of records for the table's columns.

        Raises InvalidArgument if a column has the old name of a renamed field: no field would fill the column.
        """
        if not self.pairs:
            return columns
        renamed, old = dict(self.pairs), {new: name for name, new in self.pairs}
        for name in columns.names:
            if name in renamed and name not in old:
                problem = (
                    f"the table has a column {name!r} as well, which {renamed[name]!r} would leave without a value."
                )
                raise InvalidArgument("rename_columns", problem, "Leave the name out, or drop the column.")
        return pa.schema([column.with_name(old.get(column.name, column.name)) for column in columns])

    def of(self, names: list[str]) -> list[str]:
        """Return the names of columns for names of fields."""
        renamed = dict(self.pairs)
        return [renamed.get(name, name) for name in names]


@dataclass(frozen=True)
class RenamedDecoder:
    """Decoder of fields of records into columns with new names."""

    decoder: ColumnDecoder
    names: NewNames

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self.names.columns(self.decoder.schema)

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch."""
        decoded = self.decoder.decode(batch)
        return DecoderResult(decoded.rows.rename_columns(self.names.of(decoded.rows.column_names)), decoded.bad)
