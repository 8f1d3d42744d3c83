"""Readers of many Avro records in lanes, compiled from a writer's schema and a table's columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.core.policies import TimestampsFiner
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
)
from airflow_lakestream.decode.avro.values import entry_of, read_items, skip_all
from airflow_lakestream.decode.lanes import leaves
from airflow_lakestream.decode.lanes.lanes import ByteLanes, last_of_each_key, list_array, map_array, merged
from airflow_lakestream.decode.lanes.leaves import Unfit
from airflow_lakestream.decode.other_names import FieldNaming
from airflow_lakestream.decode.values.outcome import no_such_field

Read = Callable[[ByteLanes], pa.Array]
Skip = Callable[[ByteLanes], None]

_DEEPEST = 64


class AvroCompiler:
    """Compiler of readers. All methods raise Unfit if no value of the schema's type fits the column.

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
        """Count a level of nesting. Raises Unfit beyond the deepest; a union then goes on with its next branch."""
        self._depth += 1
        try:
            if self._depth > _DEEPEST:
                raise Unfit(f"{path}: nested deeper than {_DEEPEST} levels")
            yield
        finally:
            self._depth -= 1

    def _step(
        self, name: str, node: Node, places: dict[str, int], fields: list[pa.Field], path: str
    ) -> tuple[int, Read] | Skip:
        # Returns the place of the field's column and the reader, or a function that skips the field.
        inner = _inner(path, name)
        if name in places:
            return places[name], self.field(node, fields[places[name]], inner)
        if self._ignore_unknown or (not path and name in self._ignored):
            return lambda lanes: skip_all(node, lanes, inner)
        raise Unfit(f"{inner}: there is no column for this field")

    def field(self, node: Node, field: pa.Field, path: str) -> Read:
        """Return the reader of a column; a null fails the lane if the column is required."""
        read = self.value(node, field.type, path)
        if field.nullable:
            return read

        def required(lanes: ByteLanes) -> pa.Array:
            values = read(lanes)
            if values.null_count:
                lanes.fail(values.is_null().to_numpy(zero_copy_only=False), f"{path}: null, and the column is required")
            return values

        return required

    def value(self, node: Node, kind: pa.DataType, path: str) -> Read:
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
        return _primitive(node, leaves.plain(kind), path, self._finer)

    def _struct(self, node: Record, kind: pa.DataType, path: str) -> Read:
        if not t.is_struct(kind):
            raise Unfit(f"{path}: a record can't become {kind}")
        read, fields = self.record(node, list(kind), path), list(leaves.plain(kind))
        return lambda lanes: pa.StructArray.from_arrays(read(lanes), fields=fields)

    def _list(self, node: AvroArray, kind: pa.DataType, path: str) -> Read:
        # Returns the reader of arrays as lists.
        if not (t.is_list(kind) or t.is_large_list(kind)):
            raise Unfit(f"{path}: an array can't become {kind}")
        item = self.field(node.items, kind.value_field, f"{path}[]")
        plain_type = leaves.plain(kind)

        def read(lanes: ByteLanes) -> pa.Array:
            parts, order, lengths = read_items(lanes, item, node.items, path)
            return list_array(merged(parts, order, plain_type.value_type), lengths, plain_type)

        return read

    def _map(self, node: AvroMap, kind: pa.DataType, path: str) -> Read:
        # Returns the reader of maps. If a map has a key several times, the last entry counts.
        if not t.is_map(kind) or not t.is_string(kind.key_type):
            raise Unfit(f"{path}: a map can't become {kind}")
        key = _primitive(AvroPrimitive("string"), pa.string(), f"{path}{{}}", self._finer)
        item = self.field(node.values, kind.item_field, f"{path}{{}}")
        entry = pa.struct([pa.field("key", pa.string(), False), leaves.plain(kind).item_field.with_name("value")])
        both, plain_type = entry_of(node), leaves.plain(kind)

        def read_entry(lanes: ByteLanes) -> pa.Array:
            return pa.StructArray.from_arrays([key(lanes), item(lanes)], fields=list(entry))

        def read(lanes: ByteLanes) -> pa.Array:
            parts, order, lengths = read_items(lanes, read_entry, both, path)
            entries, lengths = last_of_each_key(merged(parts, order, entry), lengths)
            return map_array(entries, lengths, plain_type)

        return read

    def _union(self, node: AvroUnion, kind: pa.DataType, path: str) -> Read:
        branches: list[Read | Unfit | None] = [None] * len(node.branches)
        columns = [field.name for field in kind] if t.is_struct(kind) else []
        names = {index: self._branch_column(branch, columns) for index, branch in node.values}
        # A struct with a column for each branch; otherwise all branches have to fit the same column.
        by_branch = t.is_struct(kind) and len(names) > 1 and set(columns) <= set(names.values())
        # Branches may find columns by the type names of other schema versions: see `FieldNaming.has_gaps`.
        self._naming.has_gaps |= bool(columns) and len(names) > 1 and not by_branch
        for index, branch in node.values:
            try:
                branches[index] = (
                    self._branch(branch, names[index], kind, path) if by_branch else self.value(branch, kind, path)
                )
            except Unfit as unfit:
                branches[index] = unfit
        refused = [branch for branch in branches if isinstance(branch, Unfit)]
        if refused and len(refused) == len(node.values):
            raise refused[0]
        return partial(_read_union, branches=branches, kind=leaves.plain(kind), path=path)

    def _branch_column(self, node: Node, columns: Sequence[str]) -> str:
        """Return the column of a union's branch: the branch's name, or another name of its type with a column."""
        own, others = branch_name(node), self._naming.type_names(node)
        return own if own in columns else next((name for name in columns if name in others), own)

    def _branch(self, node: Node, name: str, kind: pa.DataType, path: str) -> Read:
        """Return the reader of a union's branch into a struct with a column for each branch.

        All columns except the branch's are null. Without a column for the branch, a value of the branch fails the lane.
        """
        if name not in [field.name for field in kind]:
            return lambda lanes: self._unwanted(node, leaves.plain(kind), lanes, f"{path}.{name}")
        fields = list(leaves.plain(kind))
        if any(not field.nullable for field in fields):
            raise Unfit(f"{path}: the columns for the types of a union have to be nullable")
        read = self.value(node, kind.field(name).type, f"{path}.{name}")

        def struct(lanes: ByteLanes) -> pa.Array:
            value = read(lanes)
            columns = [value if field.name == name else pa.nulls(len(lanes), field.type) for field in fields]
            return pa.StructArray.from_arrays(columns, fields=fields)

        return struct

    def _unwanted(self, node: Node, kind: pa.DataType, lanes: ByteLanes, path: str) -> pa.Array:
        # Without a column for the branch the whole value would be lost, not only a field: the record is bad.
        lanes.fail(np.ones(len(lanes), np.bool_), f"{path}: there is no column for this type of the union")
        return pa.nulls(len(lanes), kind)


def _inner(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _read_union(lanes: ByteLanes, branches: list[Read | Unfit | None], kind: pa.DataType, path: str) -> pa.Array:
    # An Unfit makes each value of the branch a failure; None is the branch null.
    chosen = lanes.zigzags(path)
    problem = f"{path or 'the value'}: a type that the union does not have"
    lanes.fail((chosen < 0) | (chosen >= len(branches)), problem)
    live = lanes.failure == 0
    parts, places = [], np.full(len(lanes), -1, np.int64)
    done = 0
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
            places[rows] = np.arange(done, done + len(rows))
            done += len(rows)
    if not parts:
        return pa.nulls(len(lanes), kind)
    values = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    return values.take(pa.array(places, mask=places < 0))


def _enum(node: AvroEnum, kind: pa.DataType, path: str) -> Read:
    if not (t.is_string(kind) or t.is_large_string(kind)):
        raise Unfit(f"{path}: an enum can't become {kind}")
    symbols = pa.array(node.symbols, kind)

    def read(lanes: ByteLanes) -> pa.Array:
        index = lanes.zigzags(path)
        wrong = (index < 0) | (index >= len(symbols))
        lanes.fail(wrong, f"{path}: a number that the enum {node.name} does not have")
        return symbols.take(pa.array(np.where(wrong, 0, index)))

    return read


def _fixed(node: AvroFixed, kind: pa.DataType, path: str) -> Read:
    fit = leaves.decimals(kind, path, node.scale) if _as_decimal(node, kind) else leaves.blobs(kind, path)
    as_rows = t.is_fixed_size_binary(kind) and kind.byte_width == node.size and node.size > 0

    def read(lanes: ByteLanes) -> pa.Array:
        starts, lengths = lanes.spans(np.full(len(lanes), node.size), path)
        if as_rows:
            return leaves.fixed_binary(lanes.rows_of_bytes(starts, node.size))
        return fit(lanes, lanes.binary(starts, lengths))

    return read


def _as_decimal(node: AvroFixed | AvroPrimitive, kind: pa.DataType) -> bool:
    return node.logical == "decimal" and not (t.is_binary(kind) or t.is_fixed_size_binary(kind))


def _primitive(node: AvroPrimitive, kind: pa.DataType, path: str, finer: TimestampsFiner) -> Read:
    if node.name == "null":
        return lambda lanes: pa.nulls(len(lanes), kind)
    if node.name in ("int", "long"):
        return _number(node, kind, path, finer)
    if node.name in ("bytes", "string"):
        return _span(node, kind, path, finer)
    if node.name == "boolean":
        return _boolean(kind, path)
    fit = leaves.floats(kind, path)
    if node.name == "float":
        return lambda lanes: fit(lanes, lanes.fixed32(path).view(np.float32))
    return lambda lanes: fit(lanes, lanes.fixed64(path).view(np.float64))


def _boolean(kind: pa.DataType, path: str) -> Read:
    fit = leaves.booleans(kind, path)

    def read(lanes: ByteLanes) -> pa.Array:
        values = lanes.bytes(path)
        lanes.fail(values > 1, f"{path}: a boolean that is neither 0 nor 1")
        return fit(lanes, values)

    return read


def _span(node: AvroPrimitive, kind: pa.DataType, path: str, finer: TimestampsFiner) -> Read:
    # Returns the reader of bytes and strings: a length is ahead of the bytes.
    if node.logical == "zoned-timestamp" and t.is_timestamp(kind):
        fit = leaves.instants(kind, path, finer)
    elif node.name == "string":
        fit = leaves.texts(kind, path)
    else:
        fit = leaves.decimals(kind, path, node.scale) if _as_decimal(node, kind) else leaves.blobs(kind, path)

    def read(lanes: ByteLanes) -> pa.Array:
        starts, lengths = lanes.spans(lanes.zigzags(path), path)
        return fit(lanes, lanes.binary(starts, lengths))

    return read


_NANOS = {"nanos": 1, "micros": 1_000, "millis": 1_000_000}


def _number(node: AvroPrimitive, kind: pa.DataType, path: str, finer: TimestampsFiner) -> Read:
    fit = _number_fit(node.logical or "", kind, path, finer)
    narrow = node.name == "int"

    def read(lanes: ByteLanes) -> pa.Array:
        values = lanes.zigzags(path)
        if narrow:
            lanes.fail((values < -(1 << 31)) | (values >= 1 << 31), f"{path}: more than the 32 bits of an int")
        return fit(lanes, values)

    return read


def _number_fit(logical: str, kind: pa.DataType, path: str, finer: TimestampsFiner) -> leaves.Converter:
    # Returns the fit by the logical type: its unit is the last word of its name.
    if logical == "date":
        return leaves.dates(kind, path)
    unit = _NANOS.get(logical.rpartition("-")[2], 0)
    if logical.startswith("time-"):
        return leaves.times(kind, path, unit, finer=finer)
    if unit:
        return leaves.timestamps(kind, path, unit, zoned=not logical.startswith("local-"), finer=finer)
    return leaves.integers(kind, path)
