from __future__ import annotations

import datetime as dt
import itertools
import math
import pickle
import threading
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import from_bytes
from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.types import LongType, StringType

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.write.files import delete_files, write_data_files
from airflow_lakestream.iceberg.write.layout import partition_spec, sort_order
from airflow_lakestream.tables.schema.ddl import parse_schema
from airflow_lakestream.tables.schema.types import arrow_schema

UTC = dt.UTC
Terms = Sequence[str]


class FailingIO(PyArrowFileIO):
    """Fails when the n-th file is made, after a part of it was written; counts what was written before."""

    def __init__(self, at: int, error: BaseException) -> None:
        super().__init__()
        self._at = at
        self._error = error
        self._lock = threading.Lock()
        self.made: list[str] = []

    def new_output(self, location: str) -> OutputFile:
        with self._lock:
            self.made.append(location)
            fails = len(self.made) == self._at
        output = super().new_output(location)
        if fails:
            with output.create() as stream:
                stream.write(b"half a fi")
            raise self._error
        return output


class UndeletableIO(PyArrowFileIO):
    """Refuses to delete some files, as an object store does whose credentials may only write."""

    def __init__(self, refused: str) -> None:
        super().__init__()
        self._refused = refused

    def delete(self, location: str | InputFile | OutputFile) -> None:
        if str(location).endswith(self._refused):
            raise PermissionError(location)
        super().delete(location)


@pytest.fixture
def create(tmp_path: Path) -> Callable[..., Table]:
    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("db")

    def create_table(ddl: str, by: Terms = (), order: Terms = (), **properties: str) -> Table:
        schema = parse_schema(ddl)
        name = f"db.t{uuid.uuid4().hex}"
        spec, sorted_by = partition_spec(schema, by), sort_order(schema, order)
        return catalog.create_table(name, schema, partition_spec=spec, sort_order=sorted_by, properties=properties)

    return create_table


def rows_of(table: Table, **columns: list[Any]) -> pa.Table:
    schema = arrow_schema(table.schema())
    arrays = []
    for name, values in columns.items():
        kind = schema.field(name).type
        if isinstance(kind, pa.UuidType):
            raw = pa.array([None if v is None else v.bytes for v in values], pa.binary(16))
            arrays.append(pa.ExtensionArray.from_storage(kind, raw))
        else:
            arrays.append(pa.array(values, kind))
    return pa.Table.from_arrays(arrays, names=list(columns))


def commit(table: Table, files: list[DataFile]) -> list[DataFile]:
    """Append the files in a real commit and return what the manifests then say."""
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for file in files:
            append.append_data_file(file)
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    return [
        entry.data_file
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
    ]


def local(location: str) -> Path:
    return Path(urlparse(location).path)


def parquet(file: DataFile) -> pa.Table:
    return pq.ParquetFile(local(file.file_path)).read()


def files_under(table: Table) -> list[Path]:
    return sorted(local(table.location()).rglob("*.parquet"))


def test_rows_come_back_and_file_names_tell_the_landing(create: Callable[..., Table]) -> None:
    table = create("id bigint not null, name string")
    rows = rows_of(table, id=[3, 1, 2], name=["c", None, "b"])
    counter = itertools.count(7)

    first = write_data_files(table.metadata, table.io, rows, "landing-42", counter)
    second = write_data_files(table.metadata, table.io, rows, "landing-42", counter)

    committed = commit(table, first + second)
    assert table.scan().to_arrow().to_pylist() == rows.to_pylist() * 2
    assert sorted(Path(f.file_path).name.rsplit("-", 1)[0] for f in committed) == [
        "landing-42-00007",
        "landing-42-00008",
    ]
    assert [f.record_count for f in committed] == [3, 3]
    assert [f.file_size_in_bytes for f in committed] == [local(f.file_path).stat().st_size for f in committed]
    assert [f.sort_order_id for f in committed] == [0, 0]


def test_two_writers_that_count_alike_do_not_overwrite_each_other(create: Callable[..., Table]) -> None:
    table = create("id bigint")
    rows = rows_of(table, id=[1])

    paths = {write_data_files(table.metadata, table.io, rows, "p")[0].file_path for _ in range(3)}

    assert len(paths) == len(files_under(table)) == 3


def test_no_rows_make_no_file(create: Callable[..., Table]) -> None:
    table = create("id bigint", ["id"], ["id"])

    assert write_data_files(table.metadata, table.io, rows_of(table, id=[]), "p") == []
    assert write_data_files(table.metadata, table.io, pa.table({"id": pa.chunked_array([], pa.int64())}), "p") == []
    assert files_under(table) == []


def test_statistics_and_field_ids_are_those_of_the_table(create: Callable[..., Table]) -> None:
    table = create('id bigint not null, "odd name" string, s struct<"a b": int, l: array<string>>')
    rows = rows_of(table, id=[5, 2], **{"odd name": ["b", None]}, s=[{"a b": 7, "l": ["x"]}, {"a b": 9, "l": None}])

    (file,) = commit(table, write_data_files(table.metadata, table.io, rows, "p"))

    schema = table.schema()
    by_name = {name: schema.find_field(name).field_id for name in schema.column_names}
    lower = {name: file.lower_bounds.get(at) for name, at in by_name.items()}
    assert from_bytes(schema.find_type("id"), lower["id"] or b"") == 2
    assert from_bytes(StringType(), lower["odd name"] or b"") == "b"
    assert file.null_value_counts[by_name["s.a b"]] == 0
    assert file.null_value_counts[by_name["odd name"]] == 1
    assert file.value_counts[by_name["id"]] == 2
    assert parquet_ids(file) == {"id": 1, "odd name": 2, "s.a b": by_name["s.a b"], "s.l": by_name["s.l.element"]}
    assert table.scan("id = 5").to_arrow().to_pylist() == rows.slice(0, 1).to_pylist()


def parquet_ids(file: DataFile) -> dict[str, int]:
    schema = pq.ParquetFile(local(file.file_path)).schema_arrow
    found = {}
    for field in schema:
        children = [field] if not pa.types.is_struct(field.type) else list(field.type)
        for child in children:
            leaf = child.type.value_field if pa.types.is_list(child.type) else child
            name = child.name if child is field else f"{field.name}.{child.name}"
            found[name] = int(leaf.metadata[b"PARQUET:field_id"])
    return found


VALUES: list[tuple[str, list[Any]]] = [
    ("boolean", [True, False, None]),
    ("int", [-1, 0, 2**31 - 1, None]),
    ("bigint", [-(2**63), 0, 2**62, None]),
    ("decimal(10, 2)", [Decimal("1.50"), Decimal("-1.51"), None]),
    ("decimal(38, 2)", [Decimal("1.50"), Decimal("-" + "9" * 36 + ".99"), None]),
    ("string", ["abc", "", "é€😀/=x", None]),
    ("binary", [b"abc", b"\xff\x00\x01", b"", None]),
    ("fixed[3]", [b"abc", b"\xff\x00\x01", None]),
    ("uuid", [uuid.UUID(int=5), uuid.UUID(int=2**128 - 1), None]),
    ("date", [dt.date(1969, 12, 31), dt.date(1, 1, 1), dt.date(2024, 2, 29), None]),
    ("time", [dt.time(0), dt.time(23, 59, 59, 999999), None]),
    ("timestamp_ntz", [dt.datetime(1969, 12, 31, 23), dt.datetime(1900, 1, 1, 0, 0, 0, 1), None]),
    ("timestamp", [dt.datetime(1969, 12, 31, 23, tzinfo=UTC), dt.datetime(2024, 5, 1, 1, tzinfo=UTC), None]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[kind for kind, _ in VALUES])
def test_each_type_is_written_plain_partitioned_and_sorted(
    create: Callable[..., Table], kind: str, values: list[Any]
) -> None:
    values = [*values, *reversed(values)]
    distinct = len(values) // 2
    for by, order, count in (([], [], 1), (["c"], [], distinct), ([], ["c desc"], 1), (["c"], ["c"], distinct)):
        table = create(f"c {kind}, n int", by, order)
        rows = rows_of(table, c=values, n=list(range(len(values))))

        files = commit(table, write_data_files(table.metadata, table.io, rows, "p"))

        assert len(files) == count
        back = table.scan().to_arrow().sort_by("n")
        assert back["c"].to_pylist() == rows["c"].to_pylist()
        assert back["n"].to_pylist() == rows["n"].to_pylist()


def test_days_before_1970_go_into_their_own_partitions(create: Callable[..., Table]) -> None:
    table = create("timestamp timestamp", ["day(timestamp)"])
    moments = [
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        dt.datetime(1970, 1, 1, tzinfo=UTC),
        dt.datetime(1969, 12, 31, tzinfo=UTC),
        dt.datetime(1969, 12, 30, 23, 59, 59, 999999, tzinfo=UTC),
        None,
    ]

    files = commit(table, write_data_files(table.metadata, table.io, rows_of(table, timestamp=moments), "p"))

    found = {file.partition[0]: file.record_count for file in files}
    assert found == {-1: 2, 0: 1, -2: 1, None: 1}
    assert "/timestamp_day=1969-12-31/" in "".join(file.file_path for file in files)
    assert table.scan("timestamp < '1970-01-01T00:00:00+00:00'").to_arrow().num_rows == 3


def test_partitions_by_several_terms_hold_what_their_values_say(create: Callable[..., Table]) -> None:
    table = create(
        "ts timestamp, name string, s struct<site: int>", ["day(ts)", "bucket(4, name)", "s.site"], ["name desc"]
    )
    start = dt.datetime(2024, 5, 1, tzinfo=UTC)
    rows = rows_of(
        table,
        ts=[start + dt.timedelta(hours=7 * at) for at in range(40)],
        name=[None if at % 7 == 0 else f"user {at % 11}" for at in range(40)],
        s=[None if at % 5 == 0 else {"site": None if at % 3 == 0 else at % 2} for at in range(40)],
    )
    chunked = pa.concat_tables([rows.slice(0, 13), rows.slice(13, 0), rows.slice(13, 20), rows.slice(33)])

    files = commit(table, write_data_files(table.metadata, table.io, chunked, "p"))

    seen: list[dict[str, Any]] = []
    for file in files:
        held = parquet(file).to_pylist()
        seen += held
        day, _, site = file.partition[0], file.partition[1], file.partition[2]
        assert {(row["ts"].date() - dt.date(1970, 1, 1)).days for row in held} == {day}
        assert {(row["s"] or {}).get("site") for row in held} == {site}
        names = [row["name"] for row in held if row["name"] is not None]
        assert names == sorted(names, reverse=True)
        assert [row["name"] is None for row in held] == sorted(row["name"] is None for row in held)
    assert len({tuple(file.partition[at] for at in range(3)) for file in files}) == len(files)
    buckets = {row["name"]: file.partition[1] for file in files for row in parquet(file).to_pylist()}
    assert buckets[None] is None
    assert len(set(buckets.values())) > 2
    assert sorted(seen, key=lambda row: row["ts"]) == rows.to_pylist()


def test_a_nan_does_not_take_its_row_away(create: Callable[..., Table]) -> None:
    # Not to be had from partition_by; but another engine may have made such a table.
    table = create("x double")
    with table.update_spec() as update:
        update.add_identity("x")
    rows = rows_of(table, x=[1.0, math.nan, None, math.nan])

    files = write_data_files(table.metadata, table.io, rows, "p")

    assert sorted(file.record_count for file in files) == [1, 1, 2]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("x", [None, None, -math.inf, -1.0, 2.0, math.inf, math.nan]),
        ("x nulls last", [-math.inf, -1.0, 2.0, math.inf, math.nan, None, None]),
        ("x desc", [math.nan, math.inf, 2.0, -1.0, -math.inf, None, None]),
        ("x desc nulls first", [None, None, math.nan, math.inf, 2.0, -1.0, -math.inf]),
    ],
)
def test_nulls_go_where_the_order_says_and_nan_is_the_greatest(
    create: Callable[..., Table], order: str, expected: list[float | None]
) -> None:
    table = create("x double", [], [order])
    rows = rows_of(table, x=[2.0, None, math.inf, math.nan, -1.0, None, -math.inf])

    (file,) = commit(table, write_data_files(table.metadata, table.io, rows, "p"))

    assert list(map(repr, parquet(file)["x"].to_pylist())) == list(map(repr, expected))
    assert file.sort_order_id == table.sort_order().order_id == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.none() | st.integers(-9, 9), st.none() | st.sampled_from("abc")), min_size=1, max_size=40),
    st.tuples(*(st.sampled_from(["", " asc nulls last", " desc", " desc nulls first"]),) * 2),
    st.lists(st.integers(1, 40), max_size=2),
)
def test_every_file_is_in_the_tables_order_and_equal_rows_keep_theirs(
    create: Callable[..., Table], values: list[tuple[int | None, str | None]], how: tuple[str, str], cuts: list[int]
) -> None:
    table = create("a int, b string, n int", ["b"], [f"truncate(3, a){how[0]}", f"b{how[1]}"])
    rows = rows_of(table, a=[a for a, _ in values], b=[b for _, b in values], n=list(range(len(values))))
    bounds = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]
    rows = pa.concat_tables([rows.slice(low, high - low) for low, high in itertools.pairwise(bounds)])

    files = write_data_files(table.metadata, table.io, rows, "p")

    expected: dict[str | None, list[int]] = {}
    for n in sorted(range(len(values)), key=lambda at: _rank(values[at][0], how[0])):
        expected.setdefault(values[n][1], []).append(n)
    assert {file.partition[0]: parquet(file)["n"].to_pylist() for file in files} == expected
    delete_files(table.io, [file.file_path for file in files])


def _rank(value: int | None, how: str) -> tuple[int, int]:
    nulls_last = how in (" asc nulls last", " desc")
    if value is None:
        return (1 if nulls_last else -1, 0)
    return (0, -(value // 3) if "desc" in how else value // 3)


def test_a_null_list_is_no_empty_list(create: Callable[..., Table]) -> None:
    # PyIceberg's own writer makes one of the other where the elements are structs.
    table = create("h array<struct<key: string not null, value: binary>>, m map<string, struct<x: int>>, l array<int>")
    rows = rows_of(
        table,
        h=[None, [], [{"key": "k", "value": None}, None]],
        m=[None, [], [("a", {"x": 1}), ("b", None)]],
        l=[None, [], [1, None]],
    )

    for part in (rows, rows.slice(1), rows.take(pa.array([2, 0]))):
        (file,) = write_data_files(table.metadata, table.io, part, "p")
        assert parquet(file).to_pylist() == part.to_pylist()


def test_rows_of_other_engines_are_taken_where_nothing_is_lost(create: Callable[..., Table]) -> None:
    table = create(
        "i bigint, s string, d decimal(12, 3), st struct<a: bigint, b: string>, l array<string>, k array<int>, gone int"
    )
    rows = pa.table(
        {
            "l": pa.array([["x", None], None], pa.large_list(pa.large_string())),
            "k": pa.array([[1], None], LIST),
            "st": pa.array([{"a": 1}, None], pa.struct([("a", pa.int16())])),
            "d": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
            "s": pa.array(["a", "b"], pa.string_view()),
            "i": pa.array([1, 2], pa.uint8()),
        }
    )

    (file,) = commit(table, write_data_files(table.metadata, table.io, rows, "p"))

    one = {"i": 1, "s": "a", "d": Decimal("1.500"), "st": {"a": 1, "b": None}, "l": ["x", None], "k": [1], "gone": None}
    two = {"i": 2, "s": "b", "d": None, "st": None, "l": None, "k": None, "gone": None}
    assert table.scan().to_arrow().to_pylist() == [one, two]
    assert file.record_count == 2


LIST = pa.list_(pa.int32())
REQUIRED_X = pa.list_(pa.field("element", pa.struct([pa.field("x", pa.int32(), nullable=False)])))
STRUCT_OF_TWO = pa.struct([("a", pa.int32()), ("b", pa.int32())])


@pytest.mark.parametrize(
    ("ddl", "column", "message"),
    [
        ("c int", pa.array([1], pa.int64()), "column 'c' is bigint, in the table int"),
        ("c int", pa.array(["1"]), "column 'c' is string, in the table int"),
        ("c bigint", pa.array([1.0]), "column 'c' is double, in the table bigint"),
        ("c timestamp", pa.array([0], pa.timestamp("us")), "is timestamp_ntz, in the table timestamp"),
        ("c timestamp", pa.array([0], pa.timestamp("ns", "UTC")), "no type for Arrow's timestamp"),
        ("c struct<a: int>", pa.array([{"a": 1, "b": 2}], STRUCT_OF_TWO), "column 'c' is struct<a: int, b: int>"),
        ("d int", pa.array([1], pa.int32()), "the table has no column 'c'"),
        ("c int not null", pa.array([1, None], pa.int32()), "column 'c' is required and has 1 nulls"),
        ("c int, r int not null", pa.array([1], pa.int32()), "column 'r' is required and has 1 nulls"),
        ("c array<int not null>", pa.array([[1, None], None], LIST),
         "column 'c.element' is required and has 1 nulls"),
        ("c array<array<int> not null>", pa.array([[[1]], [None]], pa.list_(LIST)),
         "column 'c.element' is required and has 1 nulls"),
        ("c map<string, int not null>", pa.array([[("a", None)]], pa.map_(pa.string(), pa.int32())),
         "column 'c.value' is required and has 1 nulls"),
        ("c array<struct<x: int not null>>", pa.array([[{"x": 1}, {"x": None}], None], REQUIRED_X),
         "column 'c.element.x' is required and has 1 nulls"),
        ("c struct<a: struct<x: int not null>>",
         pa.array([{"a": {"x": None}}, {"a": None}, None], pa.struct([("a", pa.struct([("x", pa.int32())]))])),
         "column 'c.a.x' is required and has 1 nulls"),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_are_refused_before_a_file_is_made(
    create: Callable[..., Table], ddl: str, column: pa.Array, message: str
) -> None:
    table = create(ddl)

    with pytest.raises(InvalidArgument, match=message) as error:
        write_data_files(table.metadata, table.io, pa.table({"c": column}), "p")

    assert error.value.argument == "rows"
    assert files_under(table) == []


def test_required_columns_all_the_way_down_are_written(create: Callable[..., Table]) -> None:
    table = create(
        "id bigint not null, l array<string not null> not null, m map<string, int not null>, "
        "s struct<a: int not null, b: array<struct<c: int not null>>>"
    )
    rows = rows_of(
        table,
        id=[1, 2, 3],
        l=[["a"], [], ["b", "c"]],
        m=[None, [("k", 1)], []],
        s=[None, {"a": 1, "b": None}, {"a": 2, "b": [None, {"c": 3}]}],
    )

    for part in (rows, rows.slice(1)):
        (file,) = write_data_files(table.metadata, table.io, part, "p")
        assert parquet(file).to_pylist() == part.to_pylist()
        assert not pq.ParquetFile(local(file.file_path)).schema_arrow.field("id").nullable


def test_a_file_grows_no_larger_than_the_table_wants(create: Callable[..., Table]) -> None:
    table = create("n bigint", [], ["n desc"], **{"write.target-file-size-bytes": "1000"})
    rows = rows_of(table, n=list(range(1000)))

    files = write_data_files(table.metadata, table.io, rows, "p")

    assert [file.record_count for file in files] == [125] * 8
    assert [n for file in files for n in parquet(file)["n"].to_pylist()] == list(range(999, -1, -1))


@pytest.mark.parametrize("codec", ["snappy", "zstd", "gzip", "uncompressed"])
def test_the_tables_codec_is_used(create: Callable[..., Table], codec: str) -> None:
    table = create("n bigint", **{"write.parquet.compression-codec": codec})

    (file,) = write_data_files(table.metadata, table.io, rows_of(table, n=[1]), "p")

    group = pq.ParquetFile(local(file.file_path)).metadata.row_group(0)
    assert group.column(0).compression.lower() == codec


def test_the_tables_limit_of_row_groups_is_kept(create: Callable[..., Table]) -> None:
    table = create("s string", **{"write.parquet.row-group-limit": "400"})
    rows = rows_of(table, s=[f"{n:040}" for n in range(1000)])

    (file,) = write_data_files(table.metadata, table.io, rows, "p")
    (other,) = write_data_files(create("s string").metadata, table.io, rows, "p")

    found, default = (pq.ParquetFile(local(one.file_path)).metadata for one in (file, other))
    assert [found.row_group(n).num_rows for n in range(found.num_row_groups)] == [400, 400, 200]
    assert default.num_row_groups == 1


def test_a_property_that_is_not_kept_is_told(create: Callable[..., Table]) -> None:
    table = create("n bigint", **{"write.parquet.bloom-filter-enabled.column.n": "true"})
    with pytest.warns(UserWarning, match=r"without what write\.parquet\.bloom-filter-enabled\.column\.n asks for"):
        write_data_files(table.metadata, table.io, rows_of(table, n=[1]), "p")


def test_all_columns_but_offsets_have_dictionaries(create: Callable[..., Table]) -> None:
    table = create("tags array<struct<k string, v int>>, props map<string, string>, _kafka_offset bigint")
    tags, props = [[{"k": "a", "v": 1}]] * 3, [[("p", "q")]] * 3
    rows = rows_of(table, tags=tags, props=props, _kafka_offset=[7, 8, 9])

    (file,) = write_data_files(table.metadata, table.io, rows, "p")

    group = pq.ParquetFile(local(file.file_path)).metadata.row_group(0)
    columns = [group.column(n) for n in range(group.num_columns)]
    assert [c.path_in_schema for c in columns if not c.has_dictionary_page] == ["_kafka_offset"]
    # What readers skip files by is there all the same.
    offset = table.schema().find_field("_kafka_offset").field_id
    assert [from_bytes(LongType(), bounds[offset]) for bounds in (file.lower_bounds, file.upper_bounds)] == [7, 9]


def test_large_values_come_back_from_small_pages(create: Callable[..., Table]) -> None:
    table = create("v binary")
    values = [bytes([n]) * 2**20 for n in range(24)]

    (file,) = write_data_files(table.metadata, table.io, rows_of(table, v=values), "p")

    assert parquet(file)["v"].to_pylist() == values


def test_a_table_of_another_file_format_is_refused(create: Callable[..., Table]) -> None:
    table = create("n bigint", **{"write.format.default": "orc"})

    with pytest.raises(InvalidArgument, match=r"write\.format\.default is 'orc'\. Only parquet"):
        write_data_files(table.metadata, table.io, rows_of(table, n=[1]), "p")


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
@pytest.mark.parametrize(("sites", "at"), [(1, 1), (12, 1), (12, 5), (12, 12)])
def test_when_one_file_fails_those_of_the_call_are_removed(
    create: Callable[..., Table], error: BaseException, sites: int, at: int
) -> None:
    table = create("site int", ["site"])
    rows = rows_of(table, site=list(range(sites)))
    kept = write_data_files(table.metadata, table.io, rows.slice(0, 1), "earlier")
    io = FailingIO(at, error)

    with pytest.raises(type(error)):
        write_data_files(table.metadata, io, rows, "p")

    assert len(io.made) >= at
    assert files_under(table) == [local(file.file_path) for file in kept]


def test_deleting_goes_on_past_what_cant_be_deleted(create: Callable[..., Table]) -> None:
    table = create("site int", ["site"])
    files = write_data_files(table.metadata, table.io, rows_of(table, site=[1, 2, 3]), "p")
    paths = [file.file_path for file in files]
    gone = f"{table.location()}/data/never-was.parquet"

    left = delete_files(UndeletableIO(paths[0]), [gone, *paths])

    assert left == [paths[0]]
    assert files_under(table) == [local(paths[0])]
    assert delete_files(table.io, iter(left)) == []


@pytest.mark.parametrize("version", ["1", "2"])
def test_data_files_from_another_process_are_committed_alike(create: Callable[..., Table], version: str) -> None:
    table = create(
        "d decimal(9, 2), u uuid, t timestamp, n int", ["d", "u", "day(t)"], ["n desc"], **{"format-version": version}
    )
    rows = rows_of(
        table,
        d=[Decimal("1.25"), None],
        u=[None, uuid.UUID(int=7)],
        t=[dt.datetime(2024, 5, 1, tzinfo=UTC), None],
        n=[1, 2],
    )
    files = write_data_files(table.metadata, table.io, rows, "p")

    sent = pickle.loads(pickle.dumps(files))

    for before, after in zip(files, sent, strict=True):
        assert vars(before) == vars(after)
        assert [before[at] for at in range(len(before))] == [after[at] for at in range(len(after))]
        assert type(after.partition) is type(before.partition)
        assert after.spec_id == table.spec().spec_id
    committed = commit(table, sent)
    assert [file.sort_order_id for file in committed] == [1, 1]
    assert {file.file_path: list(map(repr, file.lower_bounds.values())) for file in committed} == {
        file.file_path: list(map(repr, file.lower_bounds.values())) for file in files
    }
    assert table.scan().to_arrow().sort_by("n").to_pylist() == rows.to_pylist()
