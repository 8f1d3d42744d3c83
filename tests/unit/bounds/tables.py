"""Random tables of short and long values in several row groups: a filter finds what a look at each row finds.

    python -m tests.unit.bounds.tables -n 2000 --seed 0

The files are those of the package's own writers. Readers are PyIceberg, and delta-rs with DataFusion. DuckDB reads each
file by its footer alone. A seed says all of a table.
"""

from __future__ import annotations

import argparse
import datetime as dt
import itertools
import json
import logging
import math
import operator
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import obstore.store
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyiceberg import expressions as ex
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from airflow_lakestream.delta import files as delta_files
from airflow_lakestream.iceberg.commit.attempt import append_files
from airflow_lakestream.iceberg.write.files import write_data_files
from airflow_lakestream.tables.schema.ddl import parse_schema
from airflow_lakestream.tables.schema.types import arrow_schema
from tests.support.table_formats import sqlite_catalog

DDL = (
    "s string, t string, b binary, f fixed(4100), i int, l long, x float, d double, m decimal(9,2), n decimal(38,4), "
    "o boolean, day date, at timestamp, local timestamp_ntz, inner struct<s string, l long>"
)
FORMATS = ("iceberg", "delta")
_UTC = dt.UTC
_INSTANTS = [dt.datetime(1, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), dt.datetime(2026, 1, 1, 0, 0, 0, 1)]
_LETTERS = ["", "a", "b", "ok", "z", "\x00", "é", "\ud7ff", "\ue000", "\uffff", "\U0010ffff", "\U0001f600"]
_BYTES = [b"", b"\0", b"a", b"\x7f", b"\x80", b"\xff", b"\xff\xff"]
_LENGTHS = [1, 1, 1, 2, 15, 16, 17, 4095, 4096, 4097, 5000]
_PICK: Mapping[str, Callable[[Random], Any]] = {
    "s": lambda rng: rng.choice(_LETTERS) * rng.choice(_LENGTHS) + rng.choice(_LETTERS),
    "t": lambda rng: rng.choice(_LETTERS),
    "b": lambda rng: rng.choice(_BYTES) * rng.choice(_LENGTHS) + rng.choice(_BYTES),
    "f": lambda rng: rng.randbytes(1) * 4100,
    "i": lambda rng: rng.choice([-(2**31), -1, 0, 7, 2**31 - 1]),
    "l": lambda rng: rng.choice([-(2**63), -1, 0, 7, 2**63 - 1]),
    "x": lambda rng: rng.choice([-1.5, 0.0, 2.0, math.nan]),
    "d": lambda rng: rng.choice([-1.5, 0.0, 1e300, math.inf, -math.inf, math.nan]),
    "m": lambda rng: rng.choice([Decimal("-9999999.99"), Decimal("0.00"), Decimal("0.01"), Decimal("9999999.99")]),
    "n": lambda rng: rng.choice([Decimal(f"{text}.0000") for text in ("0", "-1" + "0" * 30, "1" + "0" * 33)]),
    "o": lambda rng: rng.random() < 0.5,
    "day": lambda rng: rng.choice([dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)]),
    "at": lambda rng: rng.choice(_INSTANTS).replace(tzinfo=_UTC),
    "local": lambda rng: rng.choice(_INSTANTS),
}
_OPERATORS: Mapping[str, tuple[Callable[[Any, Any], bool], Any]] = {
    "=": (operator.eq, ex.EqualTo),
    "<": (operator.lt, ex.LessThan),
    "<=": (operator.le, ex.LessThanOrEqual),
    ">": (operator.gt, ex.GreaterThan),
    ">=": (operator.ge, ex.GreaterThanOrEqual),
}


class Skipped(AssertionError):
    """A filter found other rows than a look at each; the text says how to play it again."""


def schema_of() -> Any:
    """Return the columns of all tables, as Iceberg has them."""
    return parse_schema("id long, " + DDL)


def rows_of(rng: Random) -> pa.Table:
    """Return random rows; a few of them have all that is long."""
    rows = []
    for number in range(rng.randint(1, 12)):
        row: dict[str, Any] = {n: None if rng.random() < 0.2 else pick(rng) for n, pick in _PICK.items()}
        inner = {"s": _PICK["s"](rng), "l": _PICK["l"](rng)}
        rows.append({"id": number, **row, "inner": None if rng.random() < 0.2 else inner})
    return pa.Table.from_pylist(rows, arrow_schema(schema_of()))


def play(catalog: Catalog, folder: Path, table_format: str, seed: str) -> int:
    """Write a table, filter it by each column, and return how many filters there were. Raises Skipped."""
    rng = Random(f"{table_format} {seed}")
    parts = [rows_of(rng) for _ in range(rng.randint(1, 2))]
    find = (_iceberg if table_format == "iceberg" else _delta)(catalog, folder, rng, parts)
    rows = [row for part in parts for row in part.to_pylist()]
    for at, row in enumerate(rows):
        row["id"] = at
    asked = 0
    for name, sign, value in _filters(rng, rows, table_format):
        wanted = [row["id"] for row in rows if _holds(_value(row, name), sign, value)]
        if (found := sorted(find(name, sign, value))) != wanted:
            shown = repr(value) if len(repr(value)) < 50 else f"{repr(value)[:40]}... of {len(value)}"
            raise Skipped(
                f"{table_format}, seed {seed}: {name} {sign} {shown} found {found}, in the table are {wanted}"
            )
        asked += 1
    return asked


def numbered(parts: Sequence[pa.Table]) -> Iterator[pa.Table]:
    """Yield the parts of a table with ids that go on."""
    start = 0
    for part in parts:
        yield part.set_column(0, part.schema.field("id"), pa.array(range(start, start + len(part)), pa.int64()))
        start += len(part)


def _value(row: Mapping[str, Any], name: str) -> Any:
    for part in name.split("."):
        row = row[part] if row is not None else None
    return row


def _holds(found: Any, sign: str, value: Any) -> bool:
    return found is not None and _OPERATORS[sign][0](found, value)


def _filters(rng: Random, rows: Sequence[Mapping[str, Any]], table_format: str) -> Iterator[tuple[str, str, Any]]:
    # DataFusion orders NaN above all numbers, and has no literal for some values.
    left_out = {"f", "inner.s", "inner.l", "x", "d", "b", "at", "local"} if table_format == "delta" else {"f"}
    for name in [*_PICK, "inner.s", "inner.l"]:
        held = [one for row in rows if (one := _value(row, name)) is not None and one == one]
        if name in left_out or not held:
            continue
        pick = _PICK[name.rsplit(".", maxsplit=1)[-1]]
        for value in {rng.choice([min, max])(held), rng.choice([rng.choice(held), pick(rng)])}:
            if value == value and (name != "o" or table_format == "delta"):
                yield name, rng.choice(["=", ">=", "<="] if name == "o" else list(_OPERATORS)), value


def _iceberg(catalog: Catalog, folder: Path, rng: Random, parts: Sequence[pa.Table]) -> Callable[..., list[int]]:
    table = iceberg_table(catalog, rng, parts)
    files = [one.file.file_path.removeprefix("file://") for one in table.scan().plan_files()]

    def find(name: str, sign: str, value: Any) -> list[int]:
        where = _OPERATORS[sign][1](name, value)
        found: list[int] = table.scan(row_filter=where, selected_fields=("id",)).to_arrow()["id"].to_pylist()
        if name in ("s", "t", "i", "l", "b"):
            query = f"select id from read_parquet({files}) where {name} {sign} ?"
            if sorted(one for (one,) in duckdb.execute(query, [value]).fetchall()) != sorted(found):
                raise Skipped(f"{table.name()}: DuckDB finds other rows by {name} {sign} than PyIceberg: {found}")
        return found

    return find


def iceberg_table(catalog: Catalog, rng: Random, parts: Sequence[pa.Table]) -> Table:
    """Write the parts as files of a new table, in row groups of a random size."""
    properties = {
        "write.parquet.row-group-limit": str(rng.randint(1, 4)),
        "write.metadata.metrics.default": rng.choice(["truncate(16)", "truncate(16)", "truncate(1)", "full", "counts"]),
    }
    table = catalog.create_table(f"lake.t{uuid.uuid4().hex}", schema_of(), properties=properties)
    files = [
        file for part in numbered(parts) for file in write_data_files(table.metadata, table.io, part, uuid.uuid4().hex)
    ]
    with table.transaction() as transaction:
        append_files(transaction, files, {}, [])
    return table


def _delta(catalog: Catalog, folder: Path, rng: Random, parts: Sequence[pa.Table]) -> Callable[..., list[int]]:
    place = folder / uuid.uuid4().hex
    schema = pa.schema([(one.name, _in_delta(one.type)) for one in parts[0].schema])
    table = DeltaTable.create(str(place), schema)
    store = obstore.store.LocalStore(place)
    actions = []
    usual, delta_files.ROW_GROUP = delta_files.ROW_GROUP, rng.randint(1, 4)
    for part in numbered(parts):
        adds = delta_files.write_files(store, schema, (), (), part.cast(schema), uuid.uuid4().hex, itertools.count())
        actions += [json.dumps({"add": dict(add)}, ensure_ascii=False) for add in adds]
    delta_files.ROW_GROUP = usual
    (place / "_delta_log" / f"{1:020d}.json").write_text("\n".join(actions), "utf-8")
    table.update_incremental()
    engine = QueryBuilder().register("t", table)

    def find(name: str, sign: str, value: Any) -> list[int]:
        found = engine.execute(f"select id from t where {name} {sign} {_literal(value)}").read_all()
        return [int(str(one)) for one in pa.table(found)["id"].to_pylist()]

    return find


def _in_delta(kind: pa.DataType) -> pa.DataType:
    return pa.binary() if pa.types.is_fixed_size_binary(kind) else kind


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, dt.date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, Decimal):
        return f"CAST('{value:f}' AS DECIMAL(38, 4))"
    return f"CAST('{value}' AS BIGINT)" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def main(argv: Sequence[str] | None = None) -> int:
    """Play tables of both formats in turn, and print what came of it; 1 if a filter has skipped rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=2_000, help="tables")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="the seed of one table, as a failure names it")
    given = parser.parse_args(argv)
    logging.disable(logging.WARNING)
    started, asked, wrong = time.process_time(), 0, 0
    folder = Path(tempfile.mkdtemp(prefix="bounds-"))
    catalog = load_catalog("bounds", **sqlite_catalog(folder))
    catalog.create_namespace("lake")
    seeds = [given.only] if given.only else [f"{given.seed}.{number}" for number in range(given.n // len(FORMATS))]
    for seed in seeds:
        for table_format in FORMATS:
            try:
                asked += play(catalog, folder, table_format, seed)
            except Skipped as error:
                wrong += 1
                print(f"WRONG: {error}", flush=True)
    shutil.rmtree(folder)
    seconds = time.process_time() - started
    print(
        f"bounds: {len(seeds) * len(FORMATS)} tables, {asked} filters, {wrong} wrong, {seconds:.0f} CPU s", flush=True
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
