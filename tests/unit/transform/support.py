"""Batches for these tests, and what a statement makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.transform import SqlTransform
from airflow_lakestream.transform.messages import ROW
from airflow_lakestream.transform.transform import RAW_SCHEMA, raw_columns

if TYPE_CHECKING:
    from airflow_lakestream.transform.engine import StatementEngine

HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
_COLUMNS = {"keys": pa.binary(), "headers": HEADERS}


def batch(values: Sequence[bytes | None], **more: Any) -> RawBatch:
    """Return a batch of these values; offsets with holes, so that an index is never taken for an offset."""
    offsets = [1000 + 3 * i for i in range(len(values))]
    times = [1_763_000_000_000 + i for i in range(len(values))]
    columns = {name: pa.array(more[name], kind) for name, kind in _COLUMNS.items() if name in more}
    return RawBatch("orders", 7, offsets, more.get("timestamps", times), pa.array(values, pa.binary()), **columns)


def column(expression: str, *values: bytes | None, **more: Any) -> list[Any]:
    """Return what an expression over raw records makes of each; the message of the error where it fails."""
    result = SqlTransform(f"SELECT {expression} AS v FROM {{{{ input }}}}").apply(batch(values, **more))
    found: dict[int, Any] = {failed.index: failed for failed in result.bad}
    found.update(zip(result.kept.tolist(), result.rows["v"].to_pylist(), strict=True))
    return [found[index] for index in range(len(values))]


def planned(sql: str, columns: pa.Schema = RAW_SCHEMA) -> StatementEngine:
    """Plan a statement as the process of a SqlTransform does, without one. Raises InvalidArgument."""
    # Its DuckDB is to be in no process that does not plan.
    from airflow_lakestream.transform.engine import StatementEngine

    return StatementEngine(sql, columns, "256MB", 1, None)


def rows_here(sql: str, records: RawBatch) -> pa.Table:
    """Return the rows of good records, made as in the process of a SqlTransform, without one.

    The last column has the index of each row's record.
    """
    engine = planned(sql)
    columns, _ = raw_columns(records, engine.input.names)
    numbers = pa.array(range(len(records)), pa.int64())
    return engine.run(pa.Table.from_arrays([*columns.values(), numbers], [*columns, ROW]))
