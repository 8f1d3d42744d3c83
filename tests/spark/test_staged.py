"""Staged rows are the same whether Spark reads them itself or Python does for it, whatever they hold."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyspark.sql import DataFrame, SparkSession

from airflow_lakestream.core.ledger import TopicIdentity
from airflow_lakestream.core.policies import SchemaEvolution, TableFormat
from airflow_lakestream.delta import handover as of_delta
from airflow_lakestream.delta.columns import delta_fields
from airflow_lakestream.iceberg.write import handover as of_iceberg
from airflow_lakestream.lakes import LAKES
from airflow_lakestream.spark.frames.function import spark_schema
from airflow_lakestream.spark.frames.readers import counted_batches, read_by_spark
from airflow_lakestream.spark.frames.tasks import StagedRowsTask
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.change import metadata_of
from airflow_lakestream.tables.schema.columns import to_schema

pytestmark = pytest.mark.integration

IDENTITY = TopicIdentity("t", "id", "cluster")
UTC = dt.UTC
COLUMNS: Sequence[tuple[pa.DataType, Sequence[Any]]] = (
    (pa.bool_(), (True, False)),
    (pa.int32(), (-(2**31), 2**31 - 1)),
    (pa.int64(), (-(2**63), 2**63 - 1)),
    (pa.float32(), (float("nan"), -0.0, float("-inf"))),
    (pa.float64(), (float("nan"), -0.0, 5e-324)),
    (pa.decimal128(4, 2), (Decimal("-99.99"), Decimal("0.01"))),
    (pa.decimal128(18, 0), (Decimal(-(10**18) + 1), Decimal(1))),
    (pa.decimal128(38, 10), (Decimal("-" + "9" * 28 + "." + "9" * 10), Decimal("1e-10"))),
    (pa.string(), ("", "\0", "ä\U0010ffff", "x" * 70_000)),
    (pa.binary(), (b"", b"\xff\x00", b"x")),
    (pa.date32(), (dt.date(1, 1, 1), dt.date(1582, 10, 10), dt.date(9999, 12, 31))),
    (pa.timestamp("us"), (dt.datetime(1, 1, 1), dt.datetime(1582, 10, 10, 1), dt.datetime(9999, 12, 31, 23, 59))),
    (
        pa.timestamp("us", "UTC"),
        (dt.datetime(1, 1, 1, tzinfo=UTC), dt.datetime(1899, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
    ),
    (pa.list_(pa.string()), ([], [None, ""], ["a"])),
    (pa.map_(pa.string(), pa.int64()), ([], [("a", None), ("", 1)])),
    (pa.struct([("a", pa.int64()), ("b", pa.list_(pa.date32()))]), ({"a": None, "b": None}, {"a": 1, "b": []})),
)


def staged(rows: pa.Table, kind: TableFormat, folder: Path) -> tuple[Any, list[Any]]:
    """Write rows as an executor stages them; return the outline, and the files."""
    folder.mkdir(parents=True)
    outline: Any
    if kind is TableFormat.ICEBERG:
        outline, name = (
            of_iceberg.IcebergOutline(
                "lake.t", metadata_of(to_schema(rows.schema), f"file://{folder}", {}), PyArrowFileIO()
            ),
            "lake.t",
        )
    else:
        outline, name = (
            of_delta.DeltaOutline(str(folder), {}, "", rows.schema, delta_fields(rows.schema), ()),
            str(folder),
        )
    design = TableDesign(metadata=pa.schema([]), evolution=SchemaEvolution.NONE)
    sink = LAKES[kind].part("sink")(outline, name, "g", design, allow_group_overlap=True)
    sink.takes_records = False
    sink.load("run")
    sink.write_below("staged")
    sink.write(rows, IDENTITY)
    return outline, list(sink.hand_over()["files"])


def by_spark(
    spark: SparkSession, rows: pa.Table, kind: TableFormat, outline: Any, files: list[Any]
) -> DataFrame | None:
    paths = [LAKES[kind].part("staging").uri(outline, file) for file in files]
    return read_by_spark(spark, rows.schema, spark_schema(rows.schema), paths)


def told(frame: DataFrame) -> list[str]:
    # As text, since NaN is not equal to itself, and -0.0 is to 0.0.
    return sorted(map(repr, frame.toArrow().to_pylist()))


@pytest.fixture(params=list(TableFormat))
def kind(request: pytest.FixtureRequest) -> TableFormat:
    found: TableFormat = request.param
    return found


def test_all_values_are_read_as_python_reads_them(spark: SparkSession, kind: TableFormat, tmp_path: Path) -> None:
    longest = max(len(values) for _, values in COLUMNS) + 1
    columns = {
        f"column_{at}": pa.array([*values, *[None] * (longest - len(values))], type_)
        for at, (type_, values) in enumerate(COLUMNS)
    }
    rows = pa.table(columns)
    outline, files = staged(rows, kind, tmp_path / "a lake")
    frame = by_spark(spark, rows, kind, outline, files)
    assert frame is not None
    reading = StagedRowsTask(outline, LAKES[kind], tuple(files), rows.schema)
    other = spark.range(0, len(files), 1, len(files)).mapInArrow(reading.__call__, spark_schema(rows.schema))
    assert frame.schema == other.schema
    assert told(frame) == told(other)


@pytest.mark.parametrize(
    ("names", "folder"),
    [
        (("id", "ID"), "lake"),
        (("id", "a b"), "lake"),
        (("id", "a.b"), "lake"),
        (("id", "name"), "lake[1]"),
        (("id", "name"), "lake{a,b}"),
        (("id", "name"), "lake*"),
        (("id", "name"), "lake%20"),
    ],
)
def test_what_spark_takes_otherwise_goes_through_python(
    spark: SparkSession, kind: TableFormat, tmp_path: Path, names: Sequence[str], folder: str
) -> None:
    rows = pa.table({name: [1, 2] for name in names})
    path = str(tmp_path / folder / "f.parquet")
    assert read_by_spark(spark, rows.schema, spark_schema(rows.schema), [path]) is None


def test_a_store_that_spark_does_not_reach_is_read_by_python(spark: SparkSession) -> None:
    schema = pa.schema([("id", pa.int64())])
    for path in ("s3://bucket/f.parquet", "gs://bucket/f.parquet", "nowhere://host/f.parquet"):
        assert read_by_spark(spark, schema, spark_schema(schema), [path]) is None


def test_a_file_that_is_gone_is_not_left_out(spark: SparkSession, kind: TableFormat, tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2]})
    outline, files = staged(rows, kind, tmp_path / "lake")
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        frame = by_spark(spark, rows, kind, outline, files)
        assert frame is not None
        for file in tmp_path.rglob("*.parquet"):
            file.unlink()
        with pytest.raises(Exception, match="does not exist"):
            frame.collect()
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


BYTES, RECORDS = "spark.sql.execution.arrow.maxBytesPerBatch", "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.mark.parametrize(
    ("staged", "given", "within"),
    [
        ([200_000, 250_000], {}, (str(2**31 - 1), "10000")),
        ([200_000, 5_000], {}, (str(2**31 - 1), "5000")),
        ([200_000, 5_000], {RECORDS: "2000"}, (str(2**31 - 1), "2000")),
        ([200_000, 5_000], {RECORDS: "0"}, (str(2**31 - 1), "5000")),
        # Rows may be large where files have few of them; and what a session says holds.
        ([200_000, 64], {}, (None, None)),
        ([], {}, (None, None)),
        ([200_000], {BYTES: "1000000"}, ("1000000", None)),
    ],
)
def test_batches_are_counted_by_rows_where_these_are_small(
    spark: SparkSession, staged: Sequence[int], given: dict[str, str], within: tuple[str | None, str | None]
) -> None:
    def limits() -> tuple[str | None, str | None]:
        return spark.conf.get(BYTES, None), spark.conf.get(RECORDS, None)

    for name, text in given.items():
        spark.conf.set(name, text)
    try:
        before = limits()
        with counted_batches(spark, staged):
            assert limits() == within
        assert limits() == before
    finally:
        for name in given:
            spark.conf.unset(name)
