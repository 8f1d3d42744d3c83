"""Decoder of Avro messages in Confluent's wire format or single-object encoding, many records at once in lanes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.core.policies import TimestampsFiner, UnknownFields
from airflow_lakestream.decode.avro import schema as avro_schema
from airflow_lakestream.decode.avro.schema import (
    AvroArray,
    AvroEnum,
    AvroFixed,
    AvroMap,
    AvroPrimitive,
    AvroUnion,
    Node,
    Record,
    branch_name,
    fingerprint,
)
from airflow_lakestream.decode.avro.values import (
    ColumnRead,
    as_decimal,
    entry_of,
    primitive_reader,
    read_items,
    skip_all,
)
from airflow_lakestream.decode.lanes import leaves
from airflow_lakestream.decode.lanes.framed import FramedDecoder, Read, groups, is_framed, schema_ids
from airflow_lakestream.decode.lanes.lanes import ByteLanes, Integers, last_of_each_key, list_array, map_array, merged
from airflow_lakestream.decode.lanes.leaves import Unfit
from airflow_lakestream.decode.other_names import FieldNaming, avro_names
from airflow_lakestream.decode.values.outcome import SchemaRefused, no_such_field
from airflow_lakestream.registry.client import SchemaSource

Skip = Callable[[ByteLanes], None]

# The deepest level of nested records.
_DEEPEST = 64


class AvroCompiler:
    """Compiler of a schema into readers, which read a value in each lane (record) and return a column.

    All methods raise Unfit if no value of the schema's type fits the column.

    :param naming: the rules by which fields and union branches find their columns.
    :param ignore_unknown: a field without a column is skipped; otherwise the schema is unfit.
    :param finer: treatment of times finer than microseconds.
    :param ignored: names of fields of the outer record that are skipped in any case.
    """

    def __init__(
        self, naming: FieldNaming, *, ignore_unknown: bool, finer: TimestampsFiner, ignored: Collection[str] = ()
    ) -> None:
        self._naming = naming
        self._ignore_unknown = ignore_unknown
        self._ignored = ignored
        self._finer = finer
        self._depth = 0

    def record(self, node: Node, fields: list[pa.Field], path: str = "") -> Callable[[ByteLanes], list[pa.Array]]:
        """Return a reader of a record's columns, in the order of `fields`.

        The columns have the plain types of `fields`, see `leaves.plain`. A column without a field is null, and unfit if
        required.
        """
        if not isinstance(node, Record):
            raise Unfit(f"{path or 'the schema'}: {node.name} is not a record")
        names = [(name, None) for name, _ in node.fields]
        places = self._naming.places(node.name, names, [field.name for field in fields], path)
        with self._deeper(path):
            steps = [self._step(name, kind, places, fields, path) for name, kind in node.fields]
        kinds = [leaves.plain(field.type) for field in fields]
        written = {name for name, _ in node.fields}
        absent = sorted(set(range(len(fields))).difference(places.values()))
        for field in (fields[place] for place in absent):
            if not field.nullable:
                inner = _inner(path, field.name)
                raise Unfit(f"{inner}: {no_such_field(field.name, written, 'schema')}")

        def read(lanes: ByteLanes) -> list[pa.Array]:
            # A step fills a column, or only skips a field.
            columns: list[pa.Array] = [None] * len(kinds)
            for step in steps:
                if isinstance(step, tuple):
                    columns[step[0]] = step[1](lanes)
                else:
                    step(lanes)
            for place in absent:
                columns[place] = pa.nulls(len(lanes), kinds[place])
            return columns

        return read

    @contextmanager
    def _deeper(self, path: str) -> Iterator[None]:
        """Count a level of nesting. Raises Unfit beyond the deepest level."""
        self._depth += 1
        try:
            if self._depth > _DEEPEST:
                raise Unfit(f"{path}: nested deeper than {_DEEPEST} levels")
            yield
        finally:
            self._depth -= 1

    def _step(
        self, name: str, node: Node, places: dict[str, int], fields: list[pa.Field], path: str
    ) -> tuple[int, ColumnRead] | Skip:
        """Return the index of the field's column and the reader, or a function that skips the field."""
        inner = _inner(path, name)
        if name in places:
            return places[name], self.field(node, fields[places[name]], inner)
        if self._ignore_unknown or (not path and name in self._ignored):
            return lambda lanes: skip_all(node, lanes, inner)
        raise Unfit(f"{inner}: there is no column for this field")

    def field(self, node: Node, field: pa.Field, path: str) -> ColumnRead:
        """Return the reader of a column; if the column is required, a null fails its lane (the record is bad)."""
        read = self.value(node, field.type, path)
        if field.nullable:
            return read

        def required(lanes: ByteLanes) -> pa.Array:
            values = read(lanes)
            if values.null_count:
                lanes.fail(values.is_null().to_numpy(zero_copy_only=False), f"{path}: null, and the column is required")
            return values

        return required

    def value(self, node: Node, kind: pa.DataType, path: str) -> ColumnRead:
        """Return the reader of values of a schema's type for a column's type."""
        if isinstance(node, AvroUnion):
            return self._union(node, kind, path)
        if isinstance(node, Record):
            return self._struct(node, kind, path)
        if isinstance(node, AvroArray):
            return self._list(node, kind, path)
        if isinstance(node, AvroMap):
            return self._map(node, kind, path)
        if isinstance(node, AvroEnum):
            return _enum(node, kind, path)
        if isinstance(node, AvroFixed):
            return _fixed(node, leaves.plain(kind), path)
        return primitive_reader(node, leaves.plain(kind), path, self._finer)

    def _struct(self, node: Record, kind: pa.DataType, path: str) -> ColumnRead:
        if not t.is_struct(kind):
            raise Unfit(f"{path}: a record can't become {kind}")
        read, fields = self.record(node, list(kind), path), list(leaves.plain(kind))
        return lambda lanes: pa.StructArray.from_arrays(read(lanes), fields=fields)

    def _list(self, node: AvroArray, kind: pa.DataType, path: str) -> ColumnRead:
        if not (t.is_list(kind) or t.is_large_list(kind)):
            raise Unfit(f"{path}: an array can't become {kind}")
        item = self.field(node.items, kind.value_field, f"{path}[]")
        plain_type = leaves.plain(kind)

        def read(lanes: ByteLanes) -> pa.Array:
            parts, order, lengths = read_items(lanes, item, node.items, path)
            return list_array(merged(parts, order, plain_type.value_type), lengths, plain_type)

        return read

    def _map(self, node: AvroMap, kind: pa.DataType, path: str) -> ColumnRead:
        """Return the reader of maps; of several entries with the same key, the last counts."""
        if not t.is_map(kind) or not t.is_string(kind.key_type):
            raise Unfit(f"{path}: a map can't become {kind}")
        key = primitive_reader(AvroPrimitive("string"), pa.string(), f"{path}{{}}", self._finer)
        item = self.field(node.values, kind.item_field, f"{path}{{}}")
        entry = pa.struct([pa.field("key", pa.string(), False), leaves.plain(kind).item_field.with_name("value")])
        entry_record, plain_type = entry_of(node), leaves.plain(kind)

        def read_entry(lanes: ByteLanes) -> pa.Array:
            return pa.StructArray.from_arrays([key(lanes), item(lanes)], fields=list(entry))

        def read(lanes: ByteLanes) -> pa.Array:
            parts, order, lengths = read_items(lanes, read_entry, entry_record, path)
            entries, lengths = last_of_each_key(merged(parts, order, entry), lengths)
            return map_array(entries, lengths, plain_type)

        return read

    def _union(self, node: AvroUnion, kind: pa.DataType, path: str) -> ColumnRead:
        """Return the reader of unions. A value of an unfit branch fails its lane; Unfit is raised if no branch fits."""
        branches: list[ColumnRead | Unfit | None] = [None] * len(node.branches)
        columns = [field.name for field in kind] if t.is_struct(kind) else []
        names = {index: self._branch_column(branch, columns) for index, branch in node.values}
        # Whether the column is a struct with a field for each branch; otherwise all branches have to fit the column.
        by_branch = t.is_struct(kind) and len(names) > 1 and set(columns) <= set(names.values())
        # The struct may lack branches because their names differ in another version of the schema.
        self._naming.may_lack_names |= bool(columns) and len(names) > 1 and not by_branch
        for index, branch in node.values:
            try:
                branches[index] = (
                    self._branch(branch, names[index], kind, path) if by_branch else self.value(branch, kind, path)
                )
            except Unfit as unfit:
                branches[index] = unfit
        unfit_branches = [branch for branch in branches if isinstance(branch, Unfit)]
        if unfit_branches and len(unfit_branches) == len(node.values):
            raise unfit_branches[0]
        return partial(_read_union, branches=branches, kind=leaves.plain(kind), path=path)

    def _branch_column(self, node: Node, columns: Sequence[str]) -> str:
        """Return the column of a union's branch: the branch's name, or an alternative name of its type in `columns`."""
        own, alternatives = branch_name(node), self._naming.type_names(node)
        return own if own in columns else next((name for name in columns if name in alternatives), own)

    def _branch(self, node: Node, name: str, kind: pa.DataType, path: str) -> ColumnRead:
        """Return the reader of a union's branch into a struct with a column for each branch.

        All columns except the branch's are null. Without a column for the branch, a value of the branch fails the lane.
        """
        if name not in [field.name for field in kind]:
            return lambda lanes: self._fail_branch(leaves.plain(kind), lanes, f"{path}.{name}")
        fields = list(leaves.plain(kind))
        if any(not field.nullable for field in fields):
            raise Unfit(f"{path}: the columns for the types of a union have to be nullable")
        read = self.value(node, kind.field(name).type, f"{path}.{name}")

        def struct(lanes: ByteLanes) -> pa.Array:
            value = read(lanes)
            columns = [value if field.name == name else pa.nulls(len(lanes), field.type) for field in fields]
            return pa.StructArray.from_arrays(columns, fields=fields)

        return struct

    def _fail_branch(self, kind: pa.DataType, lanes: ByteLanes, path: str) -> pa.Array:
        # Without a column for the branch the whole value would be lost, not only a field: the record is bad.
        lanes.fail(np.ones(len(lanes), np.bool_), f"{path}: there is no column for this type of the union")
        return pa.nulls(len(lanes), kind)


def _inner(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _read_union(lanes: ByteLanes, branches: list[ColumnRead | Unfit | None], kind: pa.DataType, path: str) -> pa.Array:
    """Read a union in each lane.

    :param branches: the reader of each branch, an Unfit to fail values of the branch, or None for the branch null.
    """
    chosen = lanes.zigzags(path)
    problem = f"{path or 'the value'}: a type that the union does not have"
    lanes.fail((chosen < 0) | (chosen >= len(branches)), problem)
    live = lanes.failure == 0
    # The values by branch, and the place of each lane's value among all of them; -1 for null.
    parts, places = [], np.full(len(lanes), -1, np.int64)
    count = 0
    for index, branch in enumerate(branches):
        rows = np.flatnonzero(live & (chosen == index))
        if isinstance(branch, Unfit):
            lanes.fail(live & (chosen == index), str(branch))
        elif branch is not None and len(rows) == len(lanes) and len(rows):
            return branch(lanes)
        elif branch is not None and len(rows):
            part = lanes.take(rows)
            parts.append(branch(part))
            lanes.put(rows, part)
            places[rows] = np.arange(count, count + len(rows))
            count += len(rows)
    if not parts:
        return pa.nulls(len(lanes), kind)
    values = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    return values.take(pa.array(places, mask=places < 0))


def _enum(node: AvroEnum, kind: pa.DataType, path: str) -> ColumnRead:
    if not (t.is_string(kind) or t.is_large_string(kind)):
        raise Unfit(f"{path}: an enum can't become {kind}")
    symbols = pa.array(node.symbols, kind)

    def read(lanes: ByteLanes) -> pa.Array:
        index = lanes.zigzags(path)
        wrong = (index < 0) | (index >= len(symbols))
        lanes.fail(wrong, f"{path}: a number that the enum {node.name} does not have")
        return symbols.take(pa.array(np.where(wrong, 0, index)))

    return read


def _fixed(node: AvroFixed, kind: pa.DataType, path: str) -> ColumnRead:
    fit = leaves.decimals(kind, path, node.scale) if as_decimal(node, kind) else leaves.blobs(kind, path)
    has_column_width = t.is_fixed_size_binary(kind) and kind.byte_width == node.size and node.size > 0

    def read(lanes: ByteLanes) -> pa.Array:
        starts, lengths = lanes.spans(np.full(len(lanes), node.size), path)
        if has_column_width:
            return leaves.fixed_binary(lanes.rows_of_bytes(starts, node.size))
        return fit(lanes, lanes.binary(starts, lengths))

    return read


# First bytes of single-object encoding; eight bytes with the schema's fingerprint follow, little-endian.
_SINGLE_OBJECT = 0x01C3
_SINGLE_HEADER = 10


class AvroDecoder(FramedDecoder):
    """Decoder of Avro values; each value begins with the id or the fingerprint of the writer's schema.

    :param registry: source of the schemas of Confluent's wire format.
    :param schemas: schemas of single-object encoding, as JSON text; a record names a schema by its fingerprint.
    :param is_whole: `schema` has a single column for the whole value, which need not be a record.
    :param ignored: fields of the outer record that may lack a column even if `unknown_fields` is "fail".
    """

    kind = "AVRO"

    def __init__(
        self,
        schema: pa.Schema,
        unknown_fields: UnknownFields | str = UnknownFields.IGNORE,
        registry: SchemaSource | None = None,
        finer: TimestampsFiner = TimestampsFiner.REJECT,
        schemas: Sequence[str] = (),
        is_whole: bool = False,
        ignored: Sequence[str] = (),
    ) -> None:
        super().__init__(schema, unknown_fields, registry, finer)
        self._is_whole = is_whole
        self._ignored = frozenset(ignored)
        self._schemas = tuple(schemas)
        self._by_fingerprint = {fingerprint(text): text for text in self._schemas}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (
            self.schema,
            str(self.unknown_fields),
            self.registry,
            self.finer,
            self._schemas,
            self._is_whole,
            tuple(self._ignored),
        )

    def _split(self, lanes: ByteLanes) -> Iterator[tuple[Hashable, int | None, Integers]]:
        framed = is_framed(lanes)
        long_enough = lanes.end - lanes.pos >= _SINGLE_HEADER
        is_single = long_enough & (lanes.words[lanes.pos] & np.uint64(0xFFFF) == _SINGLE_OBJECT)
        problem = "begins neither as Confluent's wire format (a zero) nor as Avro's single-object encoding"
        lanes.fail(~framed & ~is_single, f"the value {problem}")
        if is_single.any():
            # `groups` takes signed numbers, but fingerprints are unsigned: hence the modulo below.
            fingerprints = lanes.words[lanes.pos + np.where(is_single, 2, 0)].view(np.int64)
            lanes.pos = lanes.pos + np.where(is_single, _SINGLE_HEADER, 0)
            for value, rows in groups(fingerprints, is_single):
                yield ("fingerprint", value % 2**64), None, rows
        ids = schema_ids(lanes, framed)
        for schema_id, rows in groups(ids, framed & (lanes.failure == 0)):
            yield schema_id, schema_id, rows

    def _compile(self, topic: str, key: Hashable) -> Read:
        """Return the reader for a schema. Raises Unfit, even for an invalid schema, whose records are all bad."""
        text, references = self._text(key)
        try:
            node = avro_schema.parse(text, references)
        except SchemaRefused as refused:
            raise Unfit(str(refused)) from None

        def columns_by(naming: FieldNaming) -> Read:
            ignore = self.unknown_fields is UnknownFields.IGNORE
            compiler = AvroCompiler(naming, ignore_unknown=ignore, finer=self.finer, ignored=self._ignored)
            return self._columns(compiler, node)

        # Other names come from the aliases in this schema, in `schemas`, and in further versions of the registry.
        schemas = [node, *avro_schema.parse_all(self._schemas)]
        read = self._by_names(topic, columns_by, lambda versions: avro_names(schemas, versions))

        def read_to_end(lanes: ByteLanes) -> list[pa.Array]:
            columns = read(lanes)
            lanes.fail(lanes.pos != lanes.end, "bytes are left over behind the value")
            return columns

        return read_to_end

    def _columns(self, compiler: AvroCompiler, node: Node) -> Read:
        if self._is_whole:
            read = compiler.field(node, self.schema.field(0), self.schema.field(0).name)
            return lambda lanes: [read(lanes)]
        if isinstance(node, AvroUnion):
            return self._optional(compiler.value(node, pa.struct(list(self.schema)), ""))
        return compiler.record(node, list(self.schema))

    def _optional(self, read: Callable[[ByteLanes], pa.Array]) -> Read:
        """Return a reader of a record that may be null; null becomes a row of nulls, or is bad if a column is required.

        :param read: reads the records as structs.
        """
        required = [field.name for field in self.schema if not field.nullable]

        def columns(lanes: ByteLanes) -> list[pa.Array]:
            rows = read(lanes)
            if required and rows.null_count:
                absent = rows.is_null().to_numpy(zero_copy_only=False)
                lanes.fail(absent, f"{required[0]}: the value is null, and the column is required")
            flat: list[pa.Array] = rows.flatten()
            return flat

        return columns

    def _text(self, key: Hashable) -> tuple[str, list[str]]:
        """Return the text of the schema with a fingerprint or an id, and the texts of its references."""
        if isinstance(key, tuple):
            text = self._by_fingerprint.get(key[1])
            if text is None:
                raise Unfit(f"no schema with the fingerprint {key[1]:016x} is given")
            return text, []
        assert isinstance(key, int)
        schema = self._registered(key)
        return schema.text, [reference.text for _, reference in schema.all_references()]
