"""Data files as JSON, and the files of a folder that no snapshot has."""

from __future__ import annotations

import json
import math
import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from airflow_lakestream.iceberg.listing import CannotList
from airflow_lakestream.iceberg.write.files import data_folder, list_files, write_data_files
from airflow_lakestream.iceberg.write.handover import decode_files, encode_files, misfit
from airflow_lakestream.iceberg.write.layout import partition_spec
from airflow_lakestream.tables.schema.ddl import parse_schema
from airflow_lakestream.tables.schema.types import arrow_schema
from airflow_lakestream.tables.sink import decode_passed_over, encode_passed_over

MOMENTS = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))
# Every type of a column, and the terms that a table can be partitioned by it with.
COLUMNS: dict[str, tuple[st.SearchStrategy[Any], tuple[str, ...]]] = {
    "boolean": (st.booleans(), ("c",)),
    # Below the lowest multiple of ten that the type has, a truncation has no value: such rows are refused.
    "int": (st.integers(-(2**31) + 8, 2**31 - 1), ("c", "bucket(4, c)", "truncate(10, c)")),
    "bigint": (st.integers(-(2**63), 2**63 - 1), ("c", "bucket(4, c)")),
    "float": (st.floats(width=32), ("c",)),
    "double": (st.floats(), ("c",)),
    "decimal(9, 2)": (st.decimals("-9999999.90", "9999999.99", places=2), ("c", "bucket(4, c)", "truncate(10, c)")),
    "string": (st.text(st.characters(exclude_categories=["Cs"]), max_size=20), ("c", "bucket(4, c)", "truncate(2, c)")),
    "binary": (st.binary(max_size=20), ("c", "bucket(4, c)")),
    "fixed[3]": (st.binary(min_size=3, max_size=3), ("c",)),
    "uuid": (st.uuids(), ("c", "bucket(4, c)")),
    "date": (st.dates(date(1900, 1, 1), date(2200, 1, 1)), ("c", "year(c)", "month(c)", "day(c)", "bucket(4, c)")),
    "time": (st.times(), ("c",)),
    "timestamp": (
        MOMENTS.map(lambda at: at.replace(tzinfo=UTC)),
        ("c", "hour(c)", "day(c)", "month(c)", "bucket(4, c)"),
    ),
    "timestamp_ntz": (MOMENTS, ("c", "year(c)", "hour(c)")),
}


@dataclass
class Tables:
    """Makes tables in one catalog."""

    catalog: SqlCatalog

    def __call__(self, ddl: str, by: Sequence[str] = (), **properties: str) -> Table:
        schema = parse_schema(ddl)
        name = f"db.t{uuid.uuid4().hex}"
        # By the column itself also where partition_by refuses it: another engine may have made such a table.
        itself = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "c"))
        spec = itself if by == ["c"] else partition_spec(schema, by)
        return self.catalog.create_table(name, schema, partition_spec=spec, properties=properties)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("db")
    return Tables(catalog)


def rows_of(table: Table, values: Sequence[Any]) -> pa.Table:
    kind = arrow_schema(table.schema()).field("c").type
    if isinstance(kind, pa.UuidType):
        raw = pa.array([None if v is None else v.bytes for v in values], pa.binary(16))
        return pa.table({"c": pa.ExtensionArray.from_storage(kind, raw)})
    return pa.table({"c": pa.array(values, kind)})


def exactly(value: Any) -> Any:
    """Return what tells values apart that compare alike (NaN, 0.0 and -0.0, 1 and True), inside records too."""
    if isinstance(value, float):
        return ("float", struct.pack(">d", value) if not math.isnan(value) else "nan")
    if hasattr(value, "_data"):
        return (type(value), [exactly(item) for item in value._data])
    return (type(value), repr(value))


def write(table: Table, values: Sequence[Any], folder: str = "") -> list[DataFile]:
    return write_data_files(table.metadata, table.io, rows_of(table, values), "p", folder=folder)


def through_json(handed: dict[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(json.dumps(handed, allow_nan=False))
    return read


@pytest.mark.parametrize("kind", COLUMNS)
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_files_survive_json_over_all_partition_types_and_bounds(kind: str, tables: Tables, data: st.DataObject) -> None:
    values, terms = COLUMNS[kind]
    by = data.draw(st.sampled_from([[], *([term] for term in terms)]))
    table = tables(f"c {kind}", by)
    files = write(table, data.draw(st.lists(st.none() | values, min_size=1, max_size=4)))

    handed = through_json(encode_files(table.metadata, files))

    assert misfit(table.metadata, table.io, handed) is None
    for before, after in zip(files, decode_files(handed), strict=True):
        assert [exactly(before[at]) for at in range(len(before))] == [exactly(after[at]) for at in range(len(after))]
        assert after.spec_id == before.spec_id


def test_handed_files_are_committed_like_the_writers_own(tables: Tables) -> None:
    table = tables("c decimal(9, 2)", ["c"])
    handed = through_json(encode_files(table.metadata, write(table, [Decimal("1.25"), None, Decimal("-3.00")])))
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as producer:
        for file in decode_files(handed):
            producer.append_data_file(file)
    assert sorted(table.scan("c < 2").to_arrow()["c"].to_pylist()) == [Decimal("-3.00"), Decimal("1.25")]


def test_what_is_handed_grows_with_the_files_not_with_the_rows(tables: Tables) -> None:
    table = tables("c bigint")
    few, many = (encode_files(table.metadata, write(table, list(range(n)))) for n in (10, 100_000))
    assert abs(len(json.dumps(few)) - len(json.dumps(many))) < 50
    assert len(json.dumps(many)) < 1000


def test_files_that_are_gone_do_not_fit(tables: Tables) -> None:
    table = tables("c bigint", ["c"])
    files = write(table, [1, 2])
    handed = encode_files(table.metadata, files)
    table.io.delete(files[1].file_path)
    assert f"gone, such as {files[1].file_path}" in str(misfit(table.metadata, table.io, handed))


def test_a_value_that_is_none_of_a_partition_is_refused(tables: Tables) -> None:
    table = tables("c bigint", ["c"])
    [file] = write(table, [1])
    file.partition[0] = time(1)
    with pytest.raises(TypeError, match=r"datetime\.time\(1, 0\)"):
        encode_files(table.metadata, [file])


@pytest.mark.parametrize(
    ("by", "properties"),
    [
        ([], {}),
        (["c"], {}),
        (["c"], {"write.object-storage.enabled": "true"}),
        (["c"], {"write.object-storage.enabled": "true", "write.object-storage.partitioned-paths": "false"}),
    ],
    ids=["plain", "partitioned", "object store", "object store without partitions"],
)
@pytest.mark.parametrize("io", [None, FsspecFileIO], ids=["pyarrow", "fsspec"])
def test_files_of_a_folder_are_found_as_they_are_named(
    tables: Tables, by: list[str], properties: dict[str, str], io: Callable[[dict[str, str]], FileIO] | None
) -> None:
    table = tables("c bigint", by, **properties)
    if io is not None:
        table.io = io({})
    mine = {file.file_path for file in write(table, [1, 2, 3], "run-1")}
    others = {file.file_path for file in write(table, [1, 2, 3], "run-10")} | {f.file_path for f in write(table, [1])}
    assert set(list_files(table.io, data_folder(table.metadata, "run-1"))) == mine
    assert not mine & others
    assert list(list_files(table.io, data_folder(table.metadata, "run-2"))) == []


def test_files_lie_below_a_data_path_of_the_tables_own(tables: Tables, tmp_path: Path) -> None:
    table = tables("c bigint", **{"write.data.path": f"{tmp_path.as_uri()}/elsewhere/"})
    [file] = write(table, [1], "run-1")
    assert file.file_path.startswith(f"{tmp_path.as_uri()}/elsewhere/run-1/")
    assert list(list_files(table.io, data_folder(table.metadata, "run-1"))) == [file.file_path]


def test_a_file_system_that_can_not_list_says_so() -> None:
    class Blind:
        """A FileIO without a file system behind it."""

    with pytest.raises(CannotList, match="Blind can't list"):
        list(list_files(Blind(), "s3://a/b"))  # type: ignore[arg-type]  # only what is asked of it


def test_offsets_of_records_without_a_row_travel_as_ranges() -> None:
    offsets = pa.array([3, 4, 5, 9, 20, 21], pa.int64())
    told = through_json(encode_passed_over([(("t", 1), offsets), (("t", 2), offsets[:0])]))
    assert told["passed_over"] == [["t", 1, [3, 6], [9, 10], [20, 22]], ["t", 2]]
    assert decode_passed_over(told) == [(("t", 1), offsets), (("t", 2), offsets[:0])]
    assert not decode_passed_over(encode_passed_over([]))
