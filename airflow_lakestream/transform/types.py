"""DuckDB's types as Arrow types of a table's columns: directly, by a cast, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_lakestream.exceptions import InvalidArgument

# By DuckDB's type id: the Arrow type, and the DuckDB type to cast to first, if it is another. Small integers become
# Iceberg's integers. A value that is too large for a decimal of 38 digits fails its record.
_PLAIN: dict[str, tuple[pa.DataType, str]] = {
    "boolean": (pa.bool_(), ""),
    "tinyint": (pa.int32(), "INTEGER"),
    "smallint": (pa.int32(), "INTEGER"),
    "integer": (pa.int32(), ""),
    "bigint": (pa.int64(), ""),
    "utinyint": (pa.int32(), "INTEGER"),
    "usmallint": (pa.int32(), "INTEGER"),
    "uinteger": (pa.int64(), "BIGINT"),
    "ubigint": (pa.decimal128(20, 0), "DECIMAL(20, 0)"),
    "hugeint": (pa.decimal128(38, 0), "DECIMAL(38, 0)"),
    "uhugeint": (pa.decimal128(38, 0), "DECIMAL(38, 0)"),
    "float": (pa.float32(), ""),
    "double": (pa.float64(), ""),
    "varchar": (pa.string(), "VARCHAR"),
    "enum": (pa.string(), "VARCHAR"),
    "blob": (pa.binary(), ""),
    "date": (pa.date32(), ""),
    "time": (pa.time64("us"), ""),
    "timestamp": (pa.timestamp("us"), ""),
    "timestamp_s": (pa.timestamp("us"), "TIMESTAMP"),
    "timestamp_ms": (pa.timestamp("us"), "TIMESTAMP"),
    "timestamp with time zone": (pa.timestamp("us", "UTC"), ""),
}
_REMEDY = {
    "null": "Give it a type, such as CAST(NULL AS VARCHAR).",
    '"null"': "Give it a type, such as CAST(NULL AS VARCHAR).",
    "timestamp_ns": "Cast it to TIMESTAMP: microseconds.",
    "time_ns": "Cast it to TIME: microseconds.",
    "time with time zone": "Cast it to TIME, or VARCHAR.",
    "interval": "Make it a number, such as epoch(x), or cast it to VARCHAR.",
    "uuid": "Cast it to VARCHAR: a UUID inside another value has no place.",
}
_UUID = pa.uuid()
# DuckDB's infinities are the largest integers: other readers would see far-away dates.
_MAY_BE_INFINITE = frozenset({"date", "timestamp", "timestamp_s", "timestamp_ms", "timestamp with time zone"})


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """Output column: the field, the SQL for a value of the field's type, and the condition of a failure."""

    field: pa.Field
    expression: str
    fails: str = ""


def output_column(name: str, kind: Any) -> OutputColumn:
    """Return the column of this DuckDB type. Raises InvalidArgument for a type without a place in tables."""
    quoted = '"' + name.replace('"', '""') + '"'
    if kind.id == "uuid":
        return OutputColumn(pa.field(name, _UUID), f"unhex(replace(CAST({quoted} AS VARCHAR), '-', ''))")
    arrow, target = _converted(name, kind)
    if kind.id in _MAY_BE_INFINITE:
        fails = f"error('column {name.replace(chr(39), chr(39) * 2)}: it is infinite')"
        finite = f"CASE WHEN coalesce(isfinite({quoted}), true) THEN {quoted} ELSE {fails} END"
        misfits = f"NOT coalesce(isfinite({quoted}), true)"
        if target != str(kind):
            misfits += f" OR {_fails(quoted, target)}"
        return OutputColumn(pa.field(name, arrow), f"CAST({finite} AS {target})", misfits)
    if target == str(kind):
        return OutputColumn(pa.field(name, arrow), quoted)
    return OutputColumn(pa.field(name, arrow), f"CAST({quoted} AS {target})", _fails(quoted, target))


def _fails(quoted: str, target: str) -> str:
    # A struct is never NULL, so NULL means that making it failed.
    return f"TRY({{'e': CAST({quoted} AS {target})}}) IS NULL"


def _converted(path: str, kind: Any) -> tuple[pa.DataType, str]:
    """Return the Arrow type, and the DuckDB type for the conversion."""
    if kind.id in _PLAIN:
        arrow, target = _PLAIN[kind.id]
        return arrow, target or str(kind)
    children = dict(kind.children) if kind.id in ("list", "array", "struct", "map", "decimal") else {}
    if kind.id == "decimal":
        return pa.decimal128(children["precision"], children["scale"]), str(kind)
    if kind.id in ("list", "array"):
        element, target = _converted(f"{path}.element", children["child"])
        return pa.list_(pa.field("element", element)), f"{target}[]"
    if kind.id == "map":
        key, key_target = _converted(f"{path}.key", children["key"])
        value, value_target = _converted(f"{path}.value", children["value"])
        return pa.map_(key, value), f"MAP({key_target}, {value_target})"
    if kind.id == "struct":
        fields = {name: _converted(f"{path}.{name}", child) for name, child in children.items()}
        inside = ", ".join('"' + name.replace('"', '""') + f'" {target}' for name, (_, target) in fields.items())
        return pa.struct([pa.field(name, arrow) for name, (arrow, _) in fields.items()]), f"STRUCT({inside})"
    remedy = _REMEDY.get(kind.id, "Cast it to another type, such as VARCHAR.")
    raise InvalidArgument("sql", f"column {path!r}: a table has no place for DuckDB's {kind}.", remedy)
