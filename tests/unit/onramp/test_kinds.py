"""The kinds of values in JSON documents, and what is said of a type that was chosen by some of them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.json.infer import infer_schema
from airflow_lakestream.decode.json.kinds import kinds_of, remarks
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.onramp.preview import documents_of
from airflow_lakestream.onramp.samples import TopicSample
from airflow_lakestream.tables.schema.columns import to_schema, to_timed_schema
from tests.support.given_records import FORMATS, GivenLake

MS = 1_763_596_800_123


def batch(*documents: Any) -> RawBatch:
    values = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in documents]
    return RawBatch("t", 3, range(100, 100 + len(values)), [0] * len(values), pa.array(values, pa.binary()))


def said(*documents: Any) -> list[str]:
    one = batch(*documents)
    return list(remarks(to_schema(infer_schema(one)), kinds_of([one]), {}))


def test_each_kind_is_counted_with_a_place() -> None:
    found = kinds_of([batch({"a": 1}, b"no JSON", {"a": None}, {"a": 2}, {"a": "n/a"}, {"b": {"c": [1]}})])
    told = {name: [(s.kind, s.count, s.partition, s.offset, s.value) for s in seen] for name, seen in found.items()}
    assert told == {
        "a": [("integer", 2, 3, 100, "1"), ("text", 1, 3, 104, "n/a")],
        "b": [("object", 1, 3, 105, '{"c":[1]}')],
        "b.c": [("array", 1, 3, 105, "[1]")],
        "b.c[]": [("integer", 1, 3, 105, "1")],
    }


def test_a_string_by_two_values_of_many_is_named_with_what_another_type_would_mean() -> None:
    [remark] = said(*[{"amount": n} for n in range(496)], {"amount": "n/a"}, {"amount": "-"})
    assert remark == (
        "amount: 496 integers (such as 0 at [3] 100); 2 texts (such as n/a at [3] 596). As string all are kept, as "
        'their text. With "amount bigint" in --schema, 2 of these values are bad records.'
    )


@pytest.mark.parametrize(
    ("documents", "words"),
    [
        ([{"at": MS}] * 2, ["at: 2 integers, likely milliseconds since the epoch", '"at timestamp from epoch_ms"']),
        ([{"at": MS // 1000}], ["at: 1 integer, likely seconds since the epoch", '"at timestamp from epoch_s"']),
        ([{"at": MS / 1000}], ["a fraction, likely seconds since the epoch", '"at timestamp from epoch_s"']),
        ([{"o": {"at": MS * 1000}}], ["o.at: 1 integer, likely micro", '"at timestamp from epoch_us"']),
        ([{"at": "2026-11-20 05:05:00"}], ["at: 1 time without a zone", "\"at timestamp at time zone 'UTC'\""]),
        ([{"o": {"x": 1}}, {"o": {"x": "a"}}], ["o.x: 1 integer", "1 text", "is a bad record"]),
        ([{"a": [1]}, {"a": 1}], ["a: 1 array", "As string all are kept, as their text."]),
        (
            [{"a": MS}] * 3 + [{"a": "2026-11-20T05:05:00Z"}],
            ['"a timestamp from epoch_ms" in', "1 of these values is a"],
        ),
        ([{"a": [{"b": [{"at": MS}]}]}], ["a[].b[].at: 1 integer, likely milli", '"at timestamp from epoch_ms"']),
        ([{"o": {"a": [MS]}}], ["o.a[]: 1 integer, likely milli", '"a array<timestamp from epoch_ms>"']),
    ],
)
def test_what_a_column_may_be_mistaken_for(documents: list[Any], words: list[str]) -> None:
    [remark] = said(*documents)
    assert [word for word in words if word not in remark] == []


@pytest.mark.parametrize(
    "documents",
    [
        [{"a": 1}, {"a": 1.5}],
        [{"a": 12}, {"a": MS}],
        [{"a": "2026-11-20T05:05:00Z"}, {"a": None}],
        [{"a": "text"}],
        [{"a": {"b": True}}],
        [{"a": MS * 100_000}],
        [{"a": [{"b": 1}, {"b": MS}]}],
    ],
)
def test_what_a_type_holds_as_it_is_needs_no_remark(documents: list[Any]) -> None:
    assert said(*documents) == []


def test_fields_of_csv_have_kinds_too_and_times_that_a_schema_says_need_no_remark() -> None:
    values = [b"1,1763596800123,2026-11-20 05:05:00", b"2,1763596800999,soon", b"x,,", b"3,4", b"no,17,row,", b'"5",7,']
    one = RawBatch("t", 3, range(100, 106), [0] * 6, pa.array(values, pa.binary()))
    schema = "id string, at bigint, local timestamp_ntz"
    config = ExtractConfig(topic="t", table="a.b", consumer_group="g", format="csv", schema=schema)
    kinds = kinds_of(list(documents_of(config, TopicSample((one,)))))
    assert {name: [(s.kind.split(",")[0], s.count, s.offset) for s in seen] for name, seen in kinds.items()} == {
        "id": [("integer", 3, 100), ("text", 1, 102)],
        "at": [("integer", 2, 100), ("integer", 1, 105)],
        "local": [("time without a zone", 1, 100), ("text", 1, 101)],
    }
    [mixed, local] = remarks(to_schema(schema), kinds, {})
    assert 'With "id bigint" in --schema, 1 of these values is a bad record.' in mixed
    assert "As timestamp_ntz, 1 of these values is a bad record." in local
    told, times = to_timed_schema("id string, at timestamp from epoch_ms, local timestamp at time zone 'UTC'")
    assert [one.partition(":")[0] for one in remarks(told, kinds, times)] == ["id", "local"]


@pytest.mark.parametrize("table_format", FORMATS)
def test_the_recipes_land_what_they_say(table_format: str, tmp_path: Path) -> None:
    lake = GivenLake(tmp_path, table_format)
    lake.land(
        [json.dumps({"id": 1, "opened_at": MS, "local": "2026-11-20 05:05:00"}).encode(), b'{"id": 2}'],
        schema="id bigint, opened_at bigint, local timestamp_ntz",
        sql_input="decoded",
        sql="SELECT id, make_timestamptz(opened_at * 1000) AS opened_at, "
        "timezone('Europe/Berlin', local) AS local FROM {{ input }}",
    )
    rows = [(r["id"], r["opened_at"], r["local"]) for r in lake.rows()]
    assert rows == [
        (1, datetime(2025, 11, 20, 0, 0, 0, 123_000, UTC), datetime(2026, 11, 20, 4, 5, tzinfo=UTC)),
        (2, None, None),
    ]


@pytest.mark.parametrize("table_format", FORMATS)
@pytest.mark.parametrize(
    "landing",
    [
        {"schema": "id bigint, opened_at timestamp from epoch_ms, local timestamp at time zone 'Europe/Berlin'"},
        {
            "schema": "id bigint, opened_at timestamp from epoch_ms, local timestamp at time zone 'Europe/Berlin'",
            "sql_input": "decoded",
            "sql": "SELECT id, opened_at, local + INTERVAL 0 DAY AS local FROM {{ input }}",
        },
    ],
    ids=["columns", "sql"],
)
def test_the_shorthand_lands_the_same_and_rejects_what_is_no_time(
    table_format: str, landing: dict[str, Any], tmp_path: Path
) -> None:
    lake = GivenLake(tmp_path, table_format)
    documents = [
        {"id": 1, "opened_at": MS, "local": "2026-11-20 05:05:00"},
        {"id": 2},
        {"id": 3, "opened_at": 10**18},
        {"id": 4, "local": "2026-10-25T02:30:00"},
    ]
    lake.land([json.dumps(one).encode() for one in documents], **landing, on_error="reject", max_rejected=1.0)
    assert [(r["id"], r["opened_at"], r["local"]) for r in lake.rows()] == [
        (1, datetime(2025, 11, 20, 0, 0, 0, 123_000, UTC), datetime(2026, 11, 20, 4, 5, tzinfo=UTC)),
        (2, None, None),
    ]
    assert {offset: (one["stage"], one["error"]) for offset, one in lake.rejected().items()} == {
        2: ("decode", f"opened_at: {10**18} milliseconds since the epoch: not in the years 1 to 9999"),
        3: ("decode", "local: 2026-10-25 02:30:00.000000 twice in Europe/Berlin: the clocks were put back"),
    }


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_table_that_has_the_column_takes_it_and_one_of_another_type_refuses_it(
    table_format: str, tmp_path: Path
) -> None:
    lake = GivenLake(tmp_path, table_format)
    lake.land([b'{"id": 1, "at": "2026-11-20T05:05:00Z"}'], schema="id bigint, at timestamp, n bigint")
    two = [b"{}", b'{"id": 2, "at": 1795151100}']
    lake.land(two, schema="id bigint, at timestamp from epoch_s")
    assert [r["at"] for r in lake.rows()] == [datetime(2026, 11, 20, 5, 5, tzinfo=UTC)] * 2
    with pytest.raises(InvalidArgument, match="'n' is given as timestamp and is bigint in the table"):
        lake.land([*two, b"{}"], schema="id bigint, n timestamp from epoch_s")


@pytest.mark.parametrize("table_format", FORMATS)
@pytest.mark.parametrize("column", ["at timestamp", "at timestamp_ntz"])
@pytest.mark.parametrize(
    ("value", "unit"),
    [
        (str(MS), "milliseconds"),
        (str(MS // 1000), "seconds"),
        (f'"{MS}"', "milliseconds"),
        ("1.763596800123E12", "milliseconds"),
        ("17", None),
    ],
)
def test_the_reason_of_a_bad_time_says_what_the_number_is(
    table_format: str, column: str, value: str, unit: str | None, tmp_path: Path
) -> None:
    lake = GivenLake(tmp_path, table_format)
    lake.land(
        [b'{"id": 1}'] * 3 + [f'{{"id": 2, "at": {value}}}'.encode()], schema=f"id bigint, {column}", on_error="reject"
    )
    [rejected] = lake.rejected().values()
    source = {"milliseconds": "epoch_ms", "seconds": "epoch_s"}.get(str(unit))
    hint = f'likely {unit} since the epoch: in schema, "timestamp from {source}" makes times of such numbers'
    assert (hint if unit else "date-time") in rejected["error"]
    assert ("likely" in rejected["error"]) is (unit is not None)
