from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.write.layout import check_layout, partition_spec, sort_order
from airflow_lakestream.tables.schema.ddl import parse_schema

SCHEMA = parse_schema(
    "timestamp timestamp, local timestamp_ntz, d date, user_id bigint not null, name string, amount double, t time, "
    "u uuid, flag boolean, s struct<a: int, at timestamp>, l array<struct<x: int>>, m map<string, int>, "
    '"odd name" int, "bucket(2, user_id)" int, price decimal(10, 2), timestamp_day string, "k desc" int'
)


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("db")
    return catalog


def words(spec: PartitionSpec) -> list[tuple[str, str, str]]:
    return [(SCHEMA.find_column_name(f.source_id) or "", str(f.transform), f.name) for f in spec.fields]


@pytest.mark.parametrize(
    ("text", "column", "transform", "name"),
    [
        ("day(local)", "local", DayTransform(), "local_day"),
        ("days(local)", "local", DayTransform(), "local_day"),
        (" DAY ( local ) ", "local", DayTransform(), "local_day"),
        ("hour(timestamp)", "timestamp", HourTransform(), "timestamp_hour"),
        ("hours(timestamp)", "timestamp", HourTransform(), "timestamp_hour"),
        ("month(d)", "d", MonthTransform(), "d_month"),
        ("months(d)", "d", MonthTransform(), "d_month"),
        ("year(d)", "d", YearTransform(), "d_year"),
        ("years(d)", "d", YearTransform(), "d_year"),
        ("bucket(16, user_id)", "user_id", BucketTransform(16), "user_id_bucket_16"),
        ("bucket(user_id,16)", "user_id", BucketTransform(16), "user_id_bucket_16"),
        ("truncate(4, name)", "name", TruncateTransform(4), "name_trunc_4"),
        ("truncate(5, price)", "price", TruncateTransform(5), "price_trunc_5"),
        ("name", "name", IdentityTransform(), "name"),
        ("identity(name)", "name", IdentityTransform(), "name"),
        ("s.a", "s.a", IdentityTransform(), "s.a"),
        ("day(s.at)", "s.at", DayTransform(), "s.at_day"),
        ("odd name", "odd name", IdentityTransform(), "odd name"),
        ('"odd name"', "odd name", IdentityTransform(), "odd name"),
        ("bucket(4, `odd name`)", "odd name", BucketTransform(4), "odd name_bucket_4"),
        ("bucket(2, user_id)", "bucket(2, user_id)", IdentityTransform(), "bucket(2, user_id)"),
        ("u", "u", IdentityTransform(), "u"),
        ("bucket(4, t)", "t", BucketTransform(4), "t_bucket_4"),
        ("flag", "flag", IdentityTransform(), "flag"),
        ("day(timestamp)", "timestamp", DayTransform(), "timestamp_day_2"),
    ],
)
def test_each_way_to_partition(text: str, column: str, transform: Transform, name: str) -> None:
    spec = partition_spec(SCHEMA, [text])

    assert words(spec) == [(column, str(transform), name)]
    assert type(spec.fields[0].transform) is type(transform)
    assert spec.fields[0].field_id == 1000


def test_one_text_may_hold_several_terms() -> None:
    spec = partition_spec(SCHEMA, 'day(local), bucket(16, user_id), "odd name"')

    assert words(spec) == words(partition_spec(SCHEMA, ["day(local)", "bucket(16, user_id)", "odd name"]))
    assert [field.field_id for field in spec.fields] == [1000, 1001, 1002]


@pytest.mark.parametrize("nothing", [None, [], "", ()])
def test_nothing_asked_for_is_no_partitions_and_no_order(nothing: object) -> None:
    assert partition_spec(SCHEMA, nothing).is_unpartitioned()  # type: ignore[arg-type]  # only what is asked of it
    assert sort_order(SCHEMA, nothing) == UNSORTED_SORT_ORDER  # type: ignore[arg-type]  # only what is asked of it


BAD_TERMS = [
    ("dayz(timestamp)", "unknown transform 'dayz'. Did you mean 'day'?"),
    ("xyzzy(timestamp)", "unknown transform 'xyzzy'. Known are identity, year, years,"),
    ("void(timestamp)", "unknown transform 'void'"),
    ("day(timestmp)", "there is no column 'timestmp'. Did you mean 'timestamp'?"),
    ("User_ID", "there is no column 'User_ID'. Did you mean 'user_id'?"),
    ("day(user_id)", "day takes no bigint, which 'user_id' is. Are these milliseconds since the epoch? Give schema"),
    ("hours(user_id)", '"user_id timestamp from epoch_ms"'),
    ("day(name)", 'Are these times with a zone? Give schema with "name timestamp".'),
    ("hour(d)", "hour takes no date, which 'd' is"),
    ("truncate(4, timestamp)", "truncate takes no timestamp, which 'timestamp' is"),
    ("bucket(4, flag)", "bucket takes no boolean"),
    ("s", "identity takes no struct<a: int, at: timestamp>"),
    ("l", "identity takes no array<"),
    ("bucket(2, m)", "bucket takes no map<string, int>"),
    ("l.element.x", "is in a list or map"),
    ("m.value", "is in a list or map"),
    ("bucket(user_id)", "bucket takes a number of 1 or more and a column"),
    ("bucket(0, user_id)", "bucket takes a number of 1 or more and a column"),
    ("bucket(99999999999, user_id)", "bucket takes a number of 1 or more and a column"),
    ("bucket(-1, user_id)", "bucket takes a number of 1 or more and a column"),
    ("truncate(x, name)", "truncate takes a number of 1 or more and a column"),
    ("day(2, timestamp)", "there is no column '2, timestamp'"),
    ("day()", "there is no column ''"),
    ("day", "there is no column 'day'"),
    ("day(timestamp", "there is no column"),
    ("", "there is no column ''"),
]


@pytest.mark.parametrize(
    ("column", "hint"),
    [
        ("date", "Write day(timestamp): it makes partitions of its days."),
        ("Hour", "Write hour(timestamp): it makes partitions of its hours."),
        ("dates", "Did you mean"),
    ],
)
def test_a_unit_of_time_that_is_no_column_names_the_way_to_it(column: str, hint: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(hint)):
        partition_spec(SCHEMA, [column])


@pytest.mark.parametrize(("text", "message"), BAD_TERMS)
def test_anything_else_is_an_error_for_partitions_and_orders_alike(text: str, message: str) -> None:
    for build, argument in ((partition_spec, "partition_by"), (sort_order, "sort_order")):
        with pytest.raises(InvalidArgument) as error:
            build(SCHEMA, [text])
        assert error.value.argument == argument
        assert repr(text) in str(error.value)
        assert message in str(error.value)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (["name", "identity(name)"], "'identity(name)' is there twice"),
        (["day(timestamp)", "days(timestamp)"], "'days(timestamp)' is there twice"),
        (["day(timestamp)", "hour(timestamp)"], "'timestamp' makes partitions of a unit of time already"),
        (["amount"], "a double makes no partitions"),
    ],
)
def test_what_cant_be_written_as_partitions_is_refused(terms: list[str], message: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        partition_spec(SCHEMA, terms)

    assert error.value.argument == "partition_by"
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("user_id", "user_id identity asc nulls-first"),
        ("user_id asc", "user_id identity asc nulls-first"),
        ("user_id DESC", "user_id identity desc nulls-last"),
        ("user_id desc nulls first", "user_id identity desc nulls-first"),
        ("user_id  nulls  LAST", "user_id identity asc nulls-last"),
        ("bucket(16,user_id) asc nulls last", "user_id bucket[16] asc nulls-last"),
        ("days(timestamp) desc", "timestamp day desc nulls-last"),
        ("s.a desc", "s.a identity desc nulls-last"),
        ("k desc", "k desc identity asc nulls-first"),
        ("k desc desc", "k desc identity desc nulls-last"),
        ('"odd name" desc', "odd name identity desc nulls-last"),
        ("amount", "amount identity asc nulls-first"),
    ],
)
def test_each_way_to_sort(text: str, expected: str) -> None:
    assert order_words(sort_order(SCHEMA, [text])) == [expected]


def test_a_column_may_be_sorted_by_twice_in_different_ways_only() -> None:
    order = sort_order(SCHEMA, "bucket(16, user_id), user_id desc")

    assert order.order_id == 1
    assert order_words(order) == ["user_id bucket[16] asc nulls-first", "user_id identity desc nulls-last"]
    with pytest.raises(InvalidArgument, match="'user_id desc' is there twice"):
        sort_order(SCHEMA, ["user_id", "user_id desc"])


def test_pyiceberg_creates_the_table_and_the_check_agrees_with_it(catalog: SqlCatalog) -> None:
    by = ["day(timestamp)", "bucket(16, user_id)", "truncate(4, name)", "s.a", "d"]
    order = ["timestamp desc", "bucket(4, user_id)", "name nulls last"]

    table = create(catalog, by, order)

    assert [field.name for field in table.spec().fields] == [
        "timestamp_day_2", "user_id_bucket_16", "name_trunc_4", "s.a", "d",
    ]  # fmt: skip
    check_layout(table, by, order)
    check_layout(table, ", ".join(reversed(by)), ", ".join(order))
    check_layout(table, None, None)


@pytest.mark.parametrize(
    ("by", "order", "message"),
    [
        (
            ["day(timestamp)"],
            None,
            "partition_by: day(timestamp) asked for; db.t is partitioned by hour(timestamp), bucket(16, user_id), "
            "name. Leave the argument out to keep the table's own, or evolve the table.",
        ),
        ([], None, "partition_by: nothing asked for; db.t is partitioned by hour(timestamp), "),
        (["hour(timestamp)", "bucket(8, user_id)", "name"], None, "bucket(8, user_id), name asked for; "),
        (
            None,
            ["user_id desc nulls first"],
            "sort_order: user_id desc nulls first asked for; db.t is sorted by user_id desc nulls last, "
            "day(timestamp) asc nulls first.",
        ),
        (None, ["day(timestamp)", "user_id desc"], "sort_order: day(timestamp) asc nulls first, user_id desc"),
        (None, "", "sort_order: nothing asked for; "),
    ],
)
def test_another_layout_than_the_tables_is_refused_with_both(
    catalog: SqlCatalog, by: list[str] | None, order: list[str] | None, message: str
) -> None:
    table = create(catalog, ["hour(timestamp)", "bucket(16, user_id)", "name"], ["user_id desc", "day(timestamp)"])

    with pytest.raises(InvalidArgument) as error:
        check_layout(table, by, order)

    assert message in str(error.value)


def test_a_table_without_a_layout_is_told_apart_from_one_asked_for(catalog: SqlCatalog) -> None:
    table = create(catalog, None, None)

    check_layout(table, [], [])
    with pytest.raises(InvalidArgument, match=r"day\(d\) asked for; db.t is partitioned by nothing"):
        check_layout(table, ["day(d)"])
    with pytest.raises(InvalidArgument, match=r"d asc nulls first asked for; db.t is sorted by nothing"):
        check_layout(table, None, ["d"])


def test_names_and_ids_of_an_evolved_spec_do_not_matter(catalog: SqlCatalog) -> None:
    table = create(catalog, ["day(timestamp)", "name"], None)
    with table.update_spec() as update:
        update.remove_field("name")
        update.add_field("user_id", BucketTransform(16), "by_user")
        update.rename_field("timestamp_day_2", "the_day")

    check_layout(catalog.load_table("db.t"), ["days(timestamp)", "bucket(16, user_id)"])
    with pytest.raises(InvalidArgument):
        check_layout(catalog.load_table("db.t"), ["days(timestamp)", "name"])


def create(catalog: SqlCatalog, by: list[str] | None, order: list[str] | None) -> Table:
    spec, sorted_by = partition_spec(SCHEMA, by), sort_order(SCHEMA, order)
    return catalog.create_table("db.t", SCHEMA, partition_spec=spec, sort_order=sorted_by)


def order_words(order: SortOrder) -> list[str]:
    return [
        f"{SCHEMA.find_column_name(f.source_id)} {f.transform} {f.direction.value} {f.null_order.value}"
        for f in order.fields
    ]
