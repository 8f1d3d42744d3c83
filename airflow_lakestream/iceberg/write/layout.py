"""Layout of a table: partition spec and sort order, from a user's texts.

PyIceberg's `parse_transform` returns an UnknownTransform for an unknown name such as `days`, and no error, so names
are looked up here, in a closed table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema, make_compatible_name
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TimeTransform,
    Transform,
    TruncateTransform,
    UnknownTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.schema.types import UNITS, did_you_mean, type_text

AnyTransform = Transform[Any, Any]

_PLAIN: dict[str, Callable[[], AnyTransform]] = {
    "identity": IdentityTransform,
    **dict.fromkeys(("year", "years"), YearTransform),
    **dict.fromkeys(("month", "months"), MonthTransform),
    **dict.fromkeys(("day", "days"), DayTransform),
    **dict.fromkeys(("hour", "hours"), HourTransform),
}
_SIZED: dict[str, Callable[[int], AnyTransform]] = {"bucket": BucketTransform, "truncate": TruncateTransform}
# The greatest number of buckets, or of characters that a text is cut to.
_MAX_SIZE = 2**31 - 1

_CALL = re.compile(r"(?P<name>\w+)\s*\((?P<inside>.*)\)", re.DOTALL)
_SIZE_FIRST = re.compile(r"(?P<size>\d+)\s*,(?P<column>.*)", re.DOTALL)
_SIZE_LAST = re.compile(r"(?P<column>.*),\s*(?P<size>\d+)", re.DOTALL)
_DIRECTION = re.compile(
    r"(?P<term>.*?)(?:\s+(?P<direction>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?", re.IGNORECASE | re.DOTALL
)
# A comma between two terms: outside of quotes and parentheses.
_SPLIT = re.compile(r""",(?=(?:[^"`]|"[^"]*"|`[^`]*`)*\Z)(?![^()]*\))""")

_REMEDY = "Leave the argument out to keep the table's own, or evolve the table."


@dataclass(frozen=True, slots=True)
class LayoutTerm:
    """Transform of a column, for example `bucket(16, user_id)`."""

    column: str
    source_id: int
    kind: IcebergType
    transform: AnyTransform

    @property
    def key(self) -> tuple[int, str]:
        """The identity of the term, independent of names and ids."""
        return self.source_id, str(self.transform)


def partition_spec(schema: Schema, partition_by: Sequence[str] | str | None) -> PartitionSpec:
    """Return the spec for `partition_by`, with fields named like Spark's and PyIceberg's. Raises InvalidArgument."""
    fields: list[PartitionField] = []
    names = set(schema.column_names)
    for term in _partition_terms(schema, partition_by, is_new=True):
        name = _partition_name(term, names)
        names.add(name)
        fields.append(PartitionField(term.source_id, PARTITION_FIELD_ID_START + len(fields), term.transform, name))
    spec = PartitionSpec(*fields)
    check_names(spec)
    return spec


def check_names(spec: PartitionSpec, table: str = "the table") -> None:
    """Refuse partition fields with the same name in Avro, the format of manifests. Raises InvalidArgument."""
    field_by_name: dict[str, str] = {}
    for field in spec.fields:
        for name in _names_in_avro(field.name):
            if (other := field_by_name.setdefault(name, field.name)) != field.name:
                raise InvalidArgument(
                    "partition_by",
                    f"{table}: the partitions {other!r} and {field.name!r} are both {name!r} in Avro, in which "
                    "manifests are written: with one of these, nobody could read the table any more.",
                    "Partition by one of the two, or give a column another name.",
                )


def check_fields(table: Table) -> None:
    """Refuse a table with partitions or an order of rows unsupported here. Raises InvalidArgument."""
    schema, name = table.schema(), ".".join(table.name())
    columns = {column.field_id: column.field_type for _, column in _single_columns(schema.as_struct())}
    for arrangement, fields, remedy in (
        ("partitioned", table.spec().fields, "Take the field away: ALTER TABLE ... DROP PARTITION FIELD."),
        ("sorted", table.sort_order().fields, "Give it another order: ALTER TABLE ... WRITE UNORDERED."),
    ):
        for field in fields:
            kind, transform = columns.get(field.source_id), field.transform
            if isinstance(transform, VoidTransform):
                continue
            if isinstance(transform, UnknownTransform):
                reason = "of which nothing is known here"
            elif kind is None:
                reason = "which is a column that was dropped, or is in a list or map"
            elif not transform.can_transform(kind):
                reason = f"which takes no {type_text(kind)}"
            elif arrangement == "partitioned" and isinstance(kind, DoubleType):
                # A commit rewrites manifests that it has read.
                reason = "a double, of whose partitions PyIceberg reads half the digits"
            else:
                continue
            term = _term_text(schema, field.source_id, transform)
            raise InvalidArgument("table", f"{name} is {arrangement} by {term}, {reason}.", remedy)


def _names_in_avro(name: str) -> set[str]:
    """Return a name as written by PyIceberg and by Java, with some characters split in two by Java."""
    units = name.encode("utf-16-be", "surrogatepass")
    in_java = "".join(chr(int.from_bytes(units[start : start + 2], "big")) for start in range(0, len(units), 2))
    return {make_compatible_name(name), make_compatible_name(in_java)}


def sort_order(schema: Schema, sort_by: Sequence[str] | str | None) -> SortOrder:
    """Return the order for `sort_by`; by default, ascending has nulls first, descending nulls last.

    Without terms the rows have no order. Raises InvalidArgument.
    """
    fields = _sort_fields(schema, sort_by)
    return SortOrder(*fields) if fields else SortOrder(order_id=0)


def check_layout(
    table: Table, partition_by: Sequence[str] | str | None, sort_by: Sequence[str] | str | None = None
) -> None:
    """Refuse an existing table partitioned or sorted differently from the arguments; None accepts all.

    The sequence of partitions does not matter. Raises InvalidArgument.
    """
    schema = table.schema()
    name = ".".join(table.name())
    if partition_by is not None:
        wanted_keys = [term.key for term in _partition_terms(schema, partition_by)]
        terms = [(f.source_id, f.transform) for f in table.spec().fields if not isinstance(f.transform, VoidTransform)]
        if sorted(wanted_keys) != sorted((source_id, str(transform)) for source_id, transform in terms):
            table_text = ", ".join(_term_text(schema, source_id, transform) for source_id, transform in terms)
            wanted = ", ".join(_items(partition_by)) or "nothing"
            raise InvalidArgument(
                "partition_by", f"{wanted} asked for; {name} is partitioned by {table_text or 'nothing'}.", _REMEDY
            )
    if sort_by is not None:
        order = [_sort_text(schema, field) for field in _sort_fields(schema, sort_by)]
        table_order = [_sort_text(schema, field) for field in table.sort_order().fields]
        if order != table_order:
            wanted, table_text = ", ".join(order) or "nothing", ", ".join(table_order) or "nothing"
            raise InvalidArgument("sort_order", f"{wanted} asked for; {name} is sorted by {table_text}.", _REMEDY)


def _items(value: Sequence[str] | str | None) -> list[str]:
    """Return the texts of the terms in an argument, given as a list or as one text with commas."""
    parts: Iterable[str] = _SPLIT.split(value) if isinstance(value, str) else value or ()
    return [part.strip() for part in parts if part.strip() or not isinstance(value, str)]


def _partition_terms(
    schema: Schema, partition_by: Sequence[str] | str | None, *, is_new: bool = False
) -> list[LayoutTerm]:
    """Return the terms of a `partition_by` argument; `is_new`: of a table to create. Raises InvalidArgument."""
    terms: list[LayoutTerm] = []
    for text in _items(partition_by):
        term = _term(schema, text, "partition_by")
        # A NaN equals nothing, so no reader would find its partition.
        if isinstance(term.transform, IdentityTransform) and isinstance(term.kind, FloatType | DoubleType):
            raise InvalidArgument("partition_by", f"{text!r}: a {type_text(term.kind)} makes no partitions.")
        _refuse_repeated(term, terms, text, is_new=is_new)
        terms.append(term)
    return terms


def _refuse_repeated(term: LayoutTerm, earlier: list[LayoutTerm], text: str, *, is_new: bool) -> None:
    """Refuse a term that is there twice, and if `is_new` (a table to create) a second unit of a column's time."""
    for other in earlier:
        if other.key == term.key:
            raise InvalidArgument("partition_by", f"{text!r} is there twice.", "Remove one.")
        # A table gets both by evolution only.
        if is_new and other.source_id == term.source_id and other.transform.dedup_name == term.transform.dedup_name:
            raise InvalidArgument(
                "partition_by",
                f"{text!r}: {term.column!r} makes partitions of a unit of time already, and Iceberg makes no table "
                "with two.",
                "Keep the finer of the two.",
            )


def _sort_fields(schema: Schema, sort_by: Sequence[str] | str | None) -> list[SortField]:
    """Return the fields of a sort order. Raises InvalidArgument."""
    fields: list[SortField] = []
    keys: set[tuple[int, str]] = set()
    for text in _items(sort_by):
        match = _DIRECTION.fullmatch(text)
        assert match is not None
        # A column may have a name such as "a desc": then the text has no direction.
        plain = text in schema.column_names
        term = _term(schema, text if plain else match["term"], "sort_order")
        if term.key in keys:
            raise InvalidArgument("sort_order", f"{text!r} is there twice.", "Remove one.")
        keys.add(term.key)
        descending = not plain and (match["direction"] or "").lower() == "desc"
        nulls = "" if plain else (match["nulls"] or "").lower()
        fields.append(
            SortField(
                term.source_id,
                term.transform,
                SortDirection.DESC if descending else SortDirection.ASC,
                NullOrder.NULLS_LAST if nulls == "last" or (descending and not nulls) else NullOrder.NULLS_FIRST,
            )
        )
    return fields


def _term(schema: Schema, text: str, argument: str) -> LayoutTerm:
    """Parse a term such as `bucket(16, user_id)`, or a column's name. Raises InvalidArgument."""
    # A column may have a name such as "day(ts)": then the text is not a transform.
    call = None if text in schema.column_names else _CALL.fullmatch(text)
    if call is None:
        return _bound(schema, text, text, IdentityTransform(), argument)
    name, inside = call["name"].lower(), call["inside"].strip()
    if name in _PLAIN:
        return _bound(schema, inside, text, _PLAIN[name](), argument)
    if name not in _SIZED:
        hint = did_you_mean(name, (*_PLAIN, *_SIZED))
        raise InvalidArgument(argument, f"{text!r}: unknown transform {call['name']!r}.", hint)
    sized = _SIZE_FIRST.fullmatch(inside) or _SIZE_LAST.fullmatch(inside)
    if sized is None or not 1 <= int(sized["size"]) <= _MAX_SIZE:
        raise InvalidArgument(
            argument, f"{text!r}: {name} takes a number of 1 or more and a column.", f"{name}(16, id)"
        )
    return _bound(schema, sized["column"].strip(), text, _SIZED[name](int(sized["size"])), argument)


def _bound(schema: Schema, column: str, text: str, transform: AnyTransform, argument: str) -> LayoutTerm:
    """Return the term of a transform and a column; `text` is the whole term, for errors. Raises InvalidArgument."""
    # A name in double quotes or backticks.
    if column not in schema.column_names and len(column) > 2 and column[0] == column[-1] and column[0] in '"`':
        column = column[1:-1].replace(column[0] * 2, column[0])
    if column not in schema.column_names:
        unit = _unit_of_a_time(schema, column) if argument == "partition_by" else ""
        hint = unit or did_you_mean(column, schema.column_names)
        raise InvalidArgument(argument, f"{text!r}: there is no column {column!r}.", hint)
    field = dict(_single_columns(schema.as_struct())).get(column)
    if field is None:
        raise InvalidArgument(argument, f"{text!r}: {column!r} is in a list or map, so a row has many of it.")
    if not transform.can_transform(field.field_type) or not field.field_type.is_primitive:
        problem = f"{str(transform).partition('[')[0]} takes no {type_text(field.field_type)}"
        remedy = _time_remedy(column, field.field_type) if isinstance(transform, TimeTransform) else ""
        raise InvalidArgument(argument, f"{text!r}: {problem}, which {column!r} is.", remedy)
    return LayoutTerm(column, field.field_id, field.field_type, transform)


def _time_remedy(column: str, kind: IcebergType) -> str:
    """Return the way to times in a column of numbers or texts, or an empty text for other types."""
    last = column.rpartition(".")[2]
    if isinstance(kind, LongType | IntegerType):
        return f'Are these milliseconds since the epoch? Give schema with "{last} timestamp from epoch_ms".'
    if isinstance(kind, StringType):
        return f'Are these times with a zone? Give schema with "{last} timestamp".'
    return ""


def _unit_of_a_time(schema: Schema, column: str) -> str:
    """Return a hint for a missing column with the name of a unit of time, or an empty text."""
    unit = UNITS.get(column.lower())
    times = [field.name for field in schema.fields if isinstance(field.field_type, TimestampType | TimestamptzType)]
    own = [name for name in times if not name.startswith("_")] or times
    return f"Write {unit}({own[0]}): it makes partitions of its {unit}s." if unit and own else ""


def _single_columns(struct: StructType, path: str = "") -> Iterator[tuple[str, NestedField]]:
    """Yield the columns with a single value per row: columns outside of lists and maps."""
    for field in struct.fields:
        yield path + field.name, field
        if isinstance(field.field_type, StructType):
            yield from _single_columns(field.field_type, f"{path}{field.name}.")


def _partition_name(term: LayoutTerm, names: set[str]) -> str:
    """Return the name of a partition field, different from `names`."""
    word = str(term.transform).replace("truncate", "trunc").replace("[", "_").rstrip("]")
    if word == "identity":
        return term.column
    name, number = f"{term.column}_{word}", 2
    while name in names:
        name, number = f"{term.column}_{word}_{number}", number + 1
    return name


def _term_text(schema: Schema, source_id: int, transform: AnyTransform) -> str:
    column = schema.find_column_name(source_id) or f"a dropped column ({source_id})"
    name, _, size = str(transform).rstrip("]").partition("[")
    if name == "identity":
        return column
    return f"{name}({size}, {column})" if size else f"{name}({column})"


def _sort_text(schema: Schema, field: SortField) -> str:
    nulls = "nulls first" if field.null_order is NullOrder.NULLS_FIRST else "nulls last"
    return f"{_term_text(schema, field.source_id, field.transform)} {field.direction.value} {nulls}"
