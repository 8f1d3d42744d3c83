"""Layout of a Delta table: the partition of each row, and the order of rows in files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as arrow

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.schema.types import UNITS, did_you_mean

_TERM = re.compile(r"(?P<column>.*?)(?:\s+(?P<way>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?", re.I | re.S)
_PARTITION_TYPES = (
    *(arrow.is_string, arrow.is_int8, arrow.is_int16, arrow.is_int32, arrow.is_int64),
    *(arrow.is_boolean, arrow.is_date32),
)


def check_partitions(schema: pa.Schema | None, partition_by: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns to partition by. Raises InvalidArgument; without a schema only the form is checked."""
    columns = tuple(partition_by or ())
    for column in columns:
        if "(" in column:
            raise InvalidArgument(
                "partition_by",
                f"{column!r}: Delta partitions by columns, not by a transform of one.",
                'Make a column of it with sql, such as CAST(ts AS DATE) AS day, and partition by that: ["day"].',
            )
        if schema is None:
            continue
        if column not in schema.names:
            times = [one.name for one in schema if arrow.is_timestamp(one.type) and UNITS.get(column.lower()) == "day"]
            hint = f'With sql, make it of a time: CAST({times[0]} AS DATE) AS "{column}".' if times else ""
            problem = f"there is no column {column!r}; it has {', '.join(schema.names)}."
            raise InvalidArgument("partition_by", problem, hint)
        if not any(test(kind := schema.field(column).type) for test in _PARTITION_TYPES):
            raise InvalidArgument(
                "partition_by", f"{column!r} is {kind}.", "Strings, integers, booleans and dates make partitions here."
            )
    if len(set(columns)) < len(columns):
        raise InvalidArgument("partition_by", f"{', '.join(columns)}: one is there twice.", "Remove one.")
    if schema is not None and columns and len(columns) == len(schema.names):
        raise InvalidArgument("partition_by", "names all columns: none would be left for the files.")
    return columns


def check_layout(schema: pa.Schema, held: Sequence[str], table: str, partition_by: Sequence[str] | None) -> None:
    """Refuse a table with partitions different from `partition_by`, or unsupported here. Raises InvalidArgument.

    :param held: the table's partition columns.
    :param partition_by: None accepts the table's own partitions.
    """
    if partition_by is not None and check_partitions(schema, partition_by) != tuple(held):
        wanted, there = (", ".join(names) or "nothing" for names in (partition_by, held))
        raise InvalidArgument(
            "partition_by",
            f"{wanted} asked for; {table} is partitioned by {there}.",
            "Leave the argument out to keep the table's own.",
        )
    check_partitions(schema, held)


def check_order(schema: pa.Schema | None, sort_order: Sequence[str] | None) -> list[tuple[str, bool, bool]]:
    """Return the terms of an order as tuples: column, whether descending, whether nulls come first.

    Raises InvalidArgument. Without a schema, only the form is checked.
    """
    terms = []
    for text in sort_order or ():
        match = _TERM.fullmatch(text.strip())
        assert match is not None
        column, descending = match["column"].strip(), (match["way"] or "").lower() == "desc"
        if "(" in column:
            raise InvalidArgument("sort_order", f"{text!r}: files of a Delta table are sorted by columns here.")
        if schema is not None and column not in schema.names:
            hint = did_you_mean(column, schema.names)
            raise InvalidArgument("sort_order", f"{text!r}: there is no column {column!r}.", hint)
        if schema is not None and arrow.is_nested(schema.field(column).type):
            raise InvalidArgument("sort_order", f"{text!r}: {schema.field(column).type} has no order.")
        first = (match["nulls"] or "").lower() == "first" or (not match["nulls"] and not descending)
        terms.append((column, descending, first))
    return terms


def rows_by_partition(
    rows: pa.Table, partitions: Sequence[str], order: Sequence[tuple[str, bool, bool]]
) -> Iterator[tuple[Mapping[str, str | None], pa.Table]]:
    """Yield each partition: its values by column, and its rows, sorted and without the partition columns.

    Values are in Delta's text form, None for NULL. An unpartitioned table has a single partition with an empty mapping.
    Raises InvalidArgument for an empty string in a partition column.
    """
    rows = _sorted(rows, order)
    if not partitions:
        yield {}, rows
        return
    for values in rows.select(list(partitions)).group_by(list(partitions)).aggregate([]).to_pylist():
        same = None
        for name in partitions:
            value = values[name]
            equal = pc.is_null(rows[name]) if value is None else pc.fill_null(pc.equal(rows[name], value), False)
            same = equal if same is None else pc.and_(same, equal)
        yield {name: _text(name, values[name]) for name in partitions}, rows.filter(same).drop_columns(list(partitions))


def _sorted(rows: pa.Table, order: Sequence[tuple[str, bool, bool]]) -> pa.Table:
    if not order:
        return rows
    keys, table = [], dict[str, pa.Array]()
    for number, (column, descending, first) in enumerate(order):
        # A column of flags before each column decides the place of NULLs.
        table |= {f"n{number}": pc.is_null(rows[column]).cast(pa.int8()), f"v{number}": rows[column]}
        keys.append((f"n{number}", "descending" if first else "ascending"))
        keys.append((f"v{number}", "descending" if descending else "ascending"))
    return rows.take(pc.sort_indices(pa.table(table), sort_keys=keys))


def _text(column: str, value: object) -> str | None:
    if value == "":
        raise InvalidArgument(
            "partition_by",
            f"{column!r} has an empty string, which a Delta table reads as NULL in a partition.",
            "Partition by another column, or make it NULL with sql: NULLIF(column, '').",
        )
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, date) else None if value is None else str(value)
