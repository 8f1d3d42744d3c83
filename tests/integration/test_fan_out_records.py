"""Records that choose their tables, on the real broker: who goes where, what is refused, what the books say."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.landing.algorithm import land as land_job
from airflow_lakestream.core.landing.plan import LandedByAnotherGroup
from airflow_lakestream.exceptions import BadRecord, InvalidArgument
from airflow_lakestream.iceberg.fan_out.books import MEMBER, LandedByFanOut
from airflow_lakestream.iceberg.fan_out.tables import LandedOutside
from airflow_lakestream.iceberg.ledger_store import read_ledger
from airflow_lakestream.run.topics import RunReport, land_run
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.lake import GROUP, Lake, assert_files_are_whole

pytestmark = pytest.mark.integration

Land = Callable[..., RunReport]


@pytest.fixture
def land(lake: Lake) -> Land:
    """Give `land(topic, table, run_id, **config)`, which creates the tables it lacks."""

    def land(topic: str, table: str = "lake.{event}", run_id: str = "r", **config: Any) -> RunReport:
        given = {"consumer_group": GROUP, "new_tables": "create", **config}
        return land_run(ExtractConfig(topic=topic, table=table, **given), lake.kafka, lake.catalog(), run_id=run_id)

    return land


def records(*events: Any) -> list[str]:
    return [json.dumps({"n": n, "event": event}) for n, event in enumerate(events)]


def numbers(lake: Lake, table: str) -> list[int]:
    return lake.table(table).scan().to_arrow().sort_by("n")["n"].to_pylist()


def tables(lake: Lake) -> dict[str, list[int]]:
    """Return the numbers in each table of the lake that has rows."""
    names = [".".join(name) for name in lake.catalog().list_tables("lake")]
    return {name: found for name in names if (found := numbers(lake, name))}


def home_of(topic: str, group: str = GROUP) -> str:
    return f"lake.{topic.replace('-', '_')}__{group}__home"


def let_in(lake: Lake, table: str, home: str) -> None:
    """Let a fan-out into a table that it did not make, as the table's owner may."""
    with lake.table(table).transaction() as changes:
        changes.set_properties({MEMBER + home: "let in"})


def landed(lake: Lake, table: str, topic: str) -> list[tuple[int, int, int]]:
    entries = read_ledger(lake.table(table), GROUP).topics
    ranges = [r for identity, entry in entries.items() if identity.topic == topic for r in entry.landed]
    return [(r.partition, r.from_offset, r.until_offset) for r in ranges]


def test_a_field_chooses_the_table(lake: Lake, land: Land, topic_of: TopicOf) -> None:
    name = topic_of(records("click", "Page View", "click"), records("click"))
    report = land(name)
    assert report.tables == {"lake.click": 3, "lake.page_view": 1}
    assert tables(lake) == {"lake.click": [0, 0, 2], "lake.page_view": [1]}
    result = report.to_dict()
    assert (result["rows"], result["table"], result["home_table"]) == (4, "lake.{event}", home_of(name))
    assert result["tables"] == {"lake.click": 3, "lake.page_view": 1}
    assert lake.committed_offsets(name) == {0: 3, 1: 1}
    # The columns that carried the routes are gone.
    assert [c for c in lake.table("lake.click").schema().column_names if c.startswith("_lakestream")] == []


@pytest.mark.parametrize(
    ("template", "options"),
    [
        ("lake.{key}", {"keys": [b"a", b"b", b"a"]}),
        ("lake.{header:type}", {"headers": [[("type", b"x"), ("type", v)] for v in (b"a", b"b", b"a")]}),
    ],
)
def test_the_key_or_a_header_chooses_the_table(
    lake: Lake, land: Land, topic_of: TopicOf, template: str, options: Any
) -> None:
    name = topic_of(records("x", "x", "x"), **options)
    assert land(name, template).tables == {"lake.a": 2, "lake.b": 1}
    assert tables(lake) == {"lake.a": [0, 2], "lake.b": [1]}


def test_several_placeholders_and_the_topic_together(lake: Lake, land: Land, topic_of: TopicOf) -> None:
    name = topic_of(records("click", "view"), keys=[b"eu", b"us"])
    base = f"lake.{name.replace('-', '_')}"
    assert land(name, "lake.{topic}_{key}_{event}").tables == {f"{base}_eu_click": 1, f"{base}_us_view": 1}


@pytest.mark.parametrize(("kind", "values", "names"), [("bigint", [1, 2], "12"), ("boolean", [True], ["true"])])
def test_a_number_or_a_boolean_chooses_too(
    lake: Lake, land: Land, topic_of: TopicOf, kind: str, values: list[Any], names: Sequence[str]
) -> None:
    name = topic_of(records(*values))
    report = land(name, "lake.v_{event}", schema=f"n bigint, event {kind}")
    assert sorted(report.tables) == [f"lake.v_{text}" for text in names]


def test_later_runs_add_and_every_ledger_says_what_its_table_has(
    lake: Lake, land: Land, topic_of: TopicOf, produce: Producing
) -> None:
    name = topic_of(records("a", "b"))
    land(name)
    assert land(name, run_id="nothing").changed_nothing
    produce(name, 0, records("a", "c"))
    report = land(name, run_id="more")
    assert report.tables == {"lake.a": 1, "lake.c": 1}
    assert tables(lake) == {"lake.a": [0, 0], "lake.b": [1], "lake.c": [1]}
    assert landed(lake, home_of(name), name) == [(0, 0, 4)]
    # A new table begins with the ranges of the home; one that got no record needs no commit.
    assert landed(lake, "lake.c", name) == [(0, 0, 4)]
    assert landed(lake, "lake.b", name) == [(0, 0, 2)]
    for table in ("lake.a", "lake.c", home_of(name)):
        assert_files_are_whole(lake.table(table))


def test_several_commits_in_a_run(lake: Lake, land: Land, topic_of: TopicOf) -> None:
    name = topic_of(*(records("a", "b", "a", "c") for partition in range(3)))
    report = land(name, max_batch_bytes=1)
    assert report.snapshots == 3
    assert report.tables == {"lake.a": 6, "lake.b": 3, "lake.c": 3}
    assert tables(lake) == {"lake.a": [0, 0, 0, 2, 2, 2], "lake.b": [1, 1, 1], "lake.c": [3, 3, 3]}


def test_another_try_reports_the_tables_of_the_first(lake: Lake, land: Land, topic_of: TopicOf) -> None:
    name = topic_of(records("a", "b"))
    first = land(name).to_dict()
    assert land(name).to_dict() == first


def test_intervals_and_ranges_route_too(lake: Lake, land: Land, topic: Topics, produce: Producing) -> None:
    name = topic(1)
    at = int(time.time() * 1000) - 10_000
    produce(name, 0, records("a", "b", "a", "b"), timestamps=[at, at + 1000, at + 2000, at + 3000])
    assert land(name, mode="ranges", ranges=[[0, 1, 2]]).tables == {"lake.b": 1}
    report = land(name, run_id="i", mode="interval", interval_start=at, interval_end=at + 3000)
    assert report.tables == {"lake.a": 2}
    assert report.to_dict()["complete"] is True
    assert land(name, run_id="rest").tables == {"lake.b": 1}
    assert tables(lake) == {"lake.a": [0, 2], "lake.b": [1, 3]}


def test_topics_of_a_regex_route_into_the_same_tables(
    lake: Lake, land: Land, topic: Topics, produce: Producing
) -> None:
    names = [topic(1), topic(1)]
    for name in names:
        produce(name, 0, records("a", "b"))
    report = land(f"^({'|'.join(names)})")
    assert report.tables == {"lake.a": 2, "lake.b": 2}
    assert tables(lake) == {"lake.a": [0, 0], "lake.b": [1, 1]}


# New tables


def test_a_value_without_a_table_creates_one_only_when_told(
    lake: Lake, land: Land, topic_of: TopicOf, produce: Producing
) -> None:
    name = topic_of(records("a"))
    land(name)
    produce(name, 0, records("a", "b"))
    with pytest.raises(BadRecord, match=r"field 'event' 'b' .*lake\.b.*new_tables") as refused:
        land(name, run_id="next", new_tables="fail", on_error="fail")
    assert (refused.value.topic, refused.value.partition, refused.value.offset) == (name, 0, 2)
    assert tables(lake) == {"lake.a": [0]}
    assert land(name, run_id="last").tables == {"lake.a": 1, "lake.b": 1}
    assert tables(lake) == {"lake.a": [0, 0], "lake.b": [1]}


def test_nothing_is_created_unless_told_and_nothing_stays(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(records("a"))
    config = ExtractConfig(topic=name, table="lake.{event}", consumer_group=GROUP)
    with pytest.raises(InvalidArgument, match=r'new_tables.*lake\.a.*"create"'):
        land_run(config, lake.kafka, lake.catalog(), run_id="r")
    assert lake.has_nothing()


def test_two_values_of_one_name_are_refused_by_both(
    lake: Lake, land: Land, topic_of: TopicOf, produce: Producing
) -> None:
    name = topic_of(records("page-view"))
    land(name)
    produce(name, 0, records("page_view"))
    with pytest.raises(BadRecord, match=r"'page_view' .*lake\.page_view.*'page-view'") as refused:
        land(name, run_id="next", on_error="fail")
    assert refused.value.offset == 1
    assert tables(lake) == {"lake.page_view": [0]}


def test_the_number_of_tables_is_limited(lake: Lake, land: Land, topic_of: TopicOf) -> None:
    name = topic_of(records("a", "b", "c"))
    with pytest.raises(BadRecord, match=r"'c' .*max_tables=2") as refused:
        land(name, max_tables=2, on_error="fail")
    assert refused.value.offset == 2
    assert lake.has_nothing()
    assert len(land(name, max_tables=3).tables) == 3


def test_no_value_names_the_home(land: Land, topic_of: TopicOf) -> None:
    name = topic_of(records("here"))
    with pytest.raises(BadRecord, match="home_table"):
        land(name, home_table="lake.here", on_error="fail")


# Unroutable


def first_bad(land: Land, name: str, **config: Any) -> BadRecord:
    with pytest.raises(BadRecord) as refused:
        land(name, on_error="fail", **config)
    return refused.value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ('{"n":1,"event":null}', "no field 'event'"),
        ('{"n":1}', "no field 'event'"),
        (None, "no field 'event'"),
        ('{"n":1,"event":""}', "field 'event' ''"),
        ('{"n":1,"event":"--"}', "field 'event' '--'"),
        ('{"n":1,"event":{"a":1}}', '{"a":1}'),
        ('{"n":1,"event":["a"]}', "not a single value"),
        (json.dumps({"n": 1, "event": "x" * 300}), "more than 200"),
    ],
)
def test_a_record_without_a_route_is_named(
    lake: Lake, land: Land, topic_of: TopicOf, value: str | None, reason: str
) -> None:
    name = topic_of([*records("a"), value])
    refused = first_bad(land, name, schema="n bigint, event string")
    assert (refused.topic, refused.partition, refused.offset) == (name, 0, 1)
    assert reason in refused.reason
    assert lake.has_nothing()


@pytest.mark.parametrize(
    ("template", "options"),
    [
        ("lake.{key}", {"keys": [b"a", None]}),
        ("lake.{key}", {"keys": [b"a", b"\xff"]}),
        ("lake.{header:type}", {"headers": [[("type", b"a")], [("other", b"a")]]}),
        ("lake.{header:type}", {"headers": [[("type", b"a")], [("type", None)]]}),
        ("lake.{key}_{event}", {"keys": [b"a", b"b\x1fc"]}),
    ],
)
def test_a_record_without_key_or_header_is_named(land: Land, topic_of: TopicOf, template: str, options: Any) -> None:
    name = topic_of(records("x", "x"), **options)
    assert first_bad(land, name, table=template).offset == 1


# Contradictions


def argument_of(land: Land, name: str, **config: Any) -> str:
    with pytest.raises(InvalidArgument) as refused:
        land(name, **config)
    return refused.value.argument


def test_a_field_that_is_no_column_is_refused(land: Land, topic_of: TopicOf) -> None:
    name = topic_of(records("a"))
    assert argument_of(land, name, schema="n bigint") == "table"
    assert argument_of(land, name, schema="n bigint, event double") == "table"


@pytest.mark.parametrize(
    ("argument", "config"),
    [
        ("new_tables", {"new_tables": "maybe"}),
        ("max_tables", {"max_tables": 0}),
        ("home_table", {"home_table": "home"}),
        ("home_table", {"home_table": "lake.{event}"}),
        ("home_table", {"home_table": "lake.home", "table": "lake.t"}),
        ("home_table", {"home_table": "lake.home", "topic": "^t.*"}),
        ("replace", {"replace": True, "mode": "ranges", "ranges": [[0, 0, 1]]}),
    ],
)
def test_arguments_that_contradict_are_refused_by_name(argument: str, config: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        ExtractConfig(**{"topic": "t", "table": "lake.{event}", "consumer_group": "g", **config})
    assert refused.value.argument == argument


def test_a_table_with_rows_is_no_home(land: Land, topic_of: TopicOf) -> None:
    name = topic_of(records("a"))
    land(name, "lake.plain", consumer_group="someone-else")
    assert argument_of(land, name, home_table="lake.plain") == "home_table"


def test_a_home_is_of_one_topic(land: Land, topic: Topics, produce: Producing) -> None:
    names = [topic(1), topic(1)]
    for name in names:
        produce(name, 0, records("a"))
    land(names[0], home_table="lake.home")
    assert argument_of(land, names[1], home_table="lake.home") == "home_table"


def test_rows_that_were_landed_without_fan_out_are_left_alone(lake: Lake, land: Land, topic_of: TopicOf) -> None:
    name = topic_of(records("a", "b"))
    land(name, "lake.a")
    with pytest.raises(BadRecord, match=r"lake\.a"):
        land(name, run_id="fan out", on_error="fail")
    let_in(lake, "lake.a", home_of(name))
    with pytest.raises(LandedOutside, match=r"lake\.a"):
        land(name, run_id="fan out")
    assert numbers(lake, "lake.a") == [0, 1]


def test_records_that_another_group_landed_in_a_target_are_refused(lake: Lake, land: Land, topic_of: TopicOf) -> None:
    name = topic_of(records("a"))
    land(name)
    with pytest.raises(BadRecord, match=r"lake\.a.*by the fan-out of"):
        land(name, consumer_group="other", on_error="fail")
    let_in(lake, "lake.a", home_of(name, "other"))
    with pytest.raises(LandedByAnotherGroup, match=r"lake\.a"):
        land(name, consumer_group="other")
    assert tables(lake) == {"lake.a": [0]}
    land(name, consumer_group="other", allow_group_overlap=True)
    assert tables(lake) == {"lake.a": [0, 0]}


def test_a_plain_job_of_the_home_is_what_the_ledger_tools_see(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(records("a"))
    job = lake.job(name, table="lake.{event}", new_tables="create")
    assert job.table == home_of(name)
    report = land_job(job)
    assert report.table == home_of(name)
    assert landed(lake, home_of(name), name) == [(0, 0, 1)]


def test_many_values_in_one_batch(lake: Lake, land: Land, topic_of: TopicOf) -> None:
    name = topic_of(records(*each(20, 50)))
    report = land(name)
    assert report.tables == {f"lake.v{k}": 50 for k in range(20)}
    assert tables(lake)["lake.v7"] == list(range(7, 1000, 20))


def each(values: int, times: int) -> Iterable[str]:
    return [f"v{n % values}" for n in range(values * times)]


@pytest.mark.parametrize("table", ["lake.click", "home"])
def test_a_table_of_a_fan_out_is_not_landed_into_alone(
    lake: Lake, land: Land, topic_of: TopicOf, produce: Producing, table: str
) -> None:
    name = topic_of(records("click", "view"))
    land(name)
    produce(name, 0, records("view"))
    with pytest.raises(LandedByFanOut, match="nothing was landed"):
        land(name, table=home_of(name) if table == "home" else table)
    assert tables(lake) == {"lake.click": [0], "lake.view": [1]}
