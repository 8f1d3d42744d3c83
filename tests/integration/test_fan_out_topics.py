"""A topic for each table and several topics in one, from a regex, on the real broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.routing import NoTopicMatches
from airflow_lakestream.exceptions import BadRecord, InvalidArgument
from airflow_lakestream.run.topics import RunReport, land_run
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.lake import GROUP, Lake

pytestmark = pytest.mark.integration

Land = Callable[..., RunReport]


@pytest.fixture
def prefix() -> str:
    """Give the beginning of this test's topic names."""
    return f"f{uuid.uuid4().hex[:8]}"


@pytest.fixture
def land(lake: Lake) -> Land:
    """Give `land(topic, table, run_id, **config)`."""

    def land(topic: str, table: str = "lake.{topic}", run_id: str = "r", **config: Any) -> RunReport:
        settings = ExtractConfig(topic=topic, table=table, consumer_group=GROUP, **config)
        return land_run(settings, lake.kafka, lake.catalog(), run_id=run_id)

    return land


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b'{"n":%d}' % n for n in range(start, start + count)]


def landed(lake: Lake, table: str) -> list[int]:
    return sorted(lake.table(table).scan().to_arrow()["n"].to_pylist())


def test_each_topic_of_a_regex_lands_in_its_own_table(
    lake: Lake, land: Land, prefix: str, topic: Topics, produce: Producing
) -> None:
    names = [topic(1, name=f"{prefix}-{part}") for part in ("eu", "us", "other.x")]
    for number, name in enumerate(names):
        produce(name, 0, numbers(number + 1))
    report = land(f"^{prefix}-(eu|us)")
    assert report.tables == {f"lake.{prefix}_eu": 1, f"lake.{prefix}_us": 2}
    assert sorted(report.reports) == names[:2]
    assert landed(lake, f"lake.{prefix}_us") == [0, 1]
    assert [table for _, table in lake.catalog().list_tables("lake")] == [f"{prefix}_eu", f"{prefix}_us"]
    result = report.to_dict()
    assert (result["rows"], result["read"], result["remaining_lag"]) == (3, 3, 0)
    assert result["topics"][names[1]]["rows"] == 2


def test_a_single_topic_may_name_its_table_too(
    lake: Lake, land: Land, prefix: str, topic: Topics, produce: Producing
) -> None:
    name = topic(1, name=f"{prefix}.A")
    produce(name, 0, numbers(2))
    report = land(name, "lake.raw_{topic}")
    assert report.to_dict()["tables"] == {f"lake.raw_{prefix}_a": 2}
    assert landed(lake, f"lake.raw_{prefix}_a") == [0, 1]


def test_topics_of_a_regex_share_a_fixed_table_each_with_its_own_books(
    lake: Lake, land: Land, prefix: str, topic: Topics, produce: Producing
) -> None:
    names = [topic(1, name=f"{prefix}-{part}") for part in ("eu", "us")]
    produce(names[0], 0, numbers(2))
    produce(names[1], 0, numbers(3, start=10))
    assert land(f"^{prefix}-.*", "lake.all").tables == {"lake.all": 5}
    produce(names[1], 0, numbers(1, start=20))
    report = land(f"^{prefix}-.*", "lake.all", "next")
    assert report.tables == {"lake.all": 1}
    assert landed(lake, "lake.all") == [0, 1, 10, 11, 12, 20]


def test_a_topic_that_came_later_is_landed_by_the_next_run(
    lake: Lake, land: Land, prefix: str, topic: Topics, produce: Producing
) -> None:
    produce(topic(1, name=f"{prefix}-a"), 0, numbers(1))
    land(f"^{prefix}-.*")
    produce(topic(1, name=f"{prefix}-b"), 0, numbers(2))
    assert land(f"^{prefix}-.*", run_id="next").tables == {f"lake.{prefix}_a": 0, f"lake.{prefix}_b": 2}


def test_another_try_reports_what_the_first_had_landed_of_each_topic(
    lake: Lake, land: Land, prefix: str, topic: Topics, produce: Producing
) -> None:
    for part in "ab":
        produce(topic(1, name=f"{prefix}-{part}"), 0, numbers(2))
    first = land(f"^{prefix}-.*").to_dict()
    again = land(f"^{prefix}-.*")
    assert again.to_dict() == first
    assert again.recovered == 2
    assert land(f"^{prefix}-.*", run_id="another").changed_nothing


def test_most_records_are_those_of_all_topics_together(
    lake: Lake, land: Land, prefix: str, topic: Topics, produce: Producing
) -> None:
    for part in "abc":
        produce(topic(1, name=f"{prefix}-{part}"), 0, numbers(4))
    assert land(f"^{prefix}-.*", max_records=6).counts.read == 6
    # The same run again is not allowed more.
    assert land(f"^{prefix}-.*", max_records=6).counts.read == 6
    assert land(f"^{prefix}-.*", run_id="next").counts.read == 6
    assert [landed(lake, f"lake.{prefix}_{part}") for part in "abc"] == [[0, 1, 2, 3]] * 3


def test_a_topic_with_a_bad_record_keeps_no_other_from_landing(
    lake: Lake, land: Land, prefix: str, topic: Topics, produce: Producing
) -> None:
    bad, good = (topic(1, name=f"{prefix}-{part}") for part in "ab")
    produce(bad, 0, [b"{}x"])
    produce(good, 0, numbers(2))
    with pytest.raises(BadRecord) as failed:
        land(f"^{prefix}-.*", schema="n bigint", on_error="fail")
    assert (failed.value.topic, failed.value.offset) == (bad, 0)
    assert landed(lake, f"lake.{prefix}_b") == [0, 1]


def test_no_match_is_an_error_that_lists_near_names(land: Land, prefix: str, topic: Topics) -> None:
    name = topic(1, name=f"{prefix}-orders")
    with pytest.raises(NoTopicMatches) as failed:
        land(f"^{prefix}-order")
    assert failed.value.near[0] == name


def test_topics_that_come_to_one_table_are_refused_before_any_is_landed(
    lake: Lake, land: Land, prefix: str, topic: Topics, produce: Producing
) -> None:
    for part in ("a-b", "a.b"):
        produce(topic(1, name=f"{prefix}-{part}"), 0, numbers(1))
    with pytest.raises(InvalidArgument, match=f"lake.{prefix}_a_b"):
        land(f"^{prefix}-.*")
    assert lake.has_nothing()


@pytest.mark.parametrize(
    ("argument", "settings"),
    [("ranges", {"mode": "ranges", "ranges": [[0, 0, 1]]}), ("idle_timeout", {"idle_timeout": 5})],
)
def test_what_belongs_to_one_topic_does_not_go_with_a_regex(land: Land, argument: str, settings: Any) -> None:
    with pytest.raises(InvalidArgument) as refused:
        land("^x.*", **settings)
    assert refused.value.argument == argument


# Names that reach further than they should


@pytest.fixture
def other(lake: Lake, topic_of: TopicOf) -> Callable[..., None]:
    """Give `other(table, group)`: another stream, of a topic of its own, that fills a table."""

    def fill(table: str, group: str = "another-dag") -> None:
        name = topic_of(numbers(2, start=100))
        config = ExtractConfig(topic=name, table=table, consumer_group=group)
        land_run(config, lake.kafka, lake.catalog(), run_id="other")

    return fill


def refused(land: Land, pattern: str, run_id: str = "r") -> str:
    with pytest.raises(InvalidArgument) as failed:
        land(pattern, run_id=run_id)
    assert failed.value.argument == "table"
    return str(failed.value)


@pytest.mark.parametrize("group", ["another-dag", GROUP], ids=["another group", "the same group"])
def test_a_new_topic_does_not_reach_the_table_of_another_stream(
    lake: Lake, land: Land, prefix: str, topic: Topics, produce: Producing, other: Callable[..., None], group: str
) -> None:
    for part in "abc":
        produce(topic(1, name=f"{prefix}-{part}"), 0, numbers(2))
    other(f"lake.{prefix}_b", group)
    before = lake.table(f"lake.{prefix}_b").metadata_location
    why = refused(land, f"^{prefix}-.*")
    assert f"{prefix}-b" in why
    assert group in why
    assert lake.table(f"lake.{prefix}_b").metadata_location == before
    assert [landed(lake, f"lake.{prefix}_{part}") for part in "ac"] == [[0, 1], [0, 1]]


def test_rows_of_another_tool_are_out_of_reach_and_an_empty_table_is_taken(
    lake: Lake, land: Land, prefix: str, topic: Topics, produce: Producing
) -> None:
    for part in "abc":
        produce(topic(1, name=f"{prefix}-{part}"), 0, numbers(2))
    land(f"^{prefix}-a")
    schema = lake.table(f"lake.{prefix}_a").schema()
    lake.catalog().create_table(f"lake.{prefix}_c", schema)
    rows = lake.table(f"lake.{prefix}_a").scan().to_arrow()
    lake.catalog().create_table(f"lake.{prefix}_b", schema).append(rows)
    assert "has rows" in refused(land, f"^{prefix}-.*", "next")
    assert landed(lake, f"lake.{prefix}_c") == [0, 1]
    assert landed(lake, f"lake.{prefix}_b") == [0, 1]


def test_a_table_stays_with_its_topic_whoever_else_lands_in_it(
    lake: Lake, land: Land, prefix: str, topic: Topics, produce: Producing, other: Callable[..., None]
) -> None:
    name = topic(1, name=f"{prefix}-a")
    produce(name, 0, numbers(1))
    land(f"^{prefix}-.*")
    other(f"lake.{prefix}_a")
    produce(name, 0, numbers(1))
    assert land(f"^{prefix}-.*", run_id="next").tables == {f"lake.{prefix}_a": 1}


@pytest.mark.parametrize("suffix", ["__rejected", "--deleted", ".x__home"])
def test_a_topic_does_not_take_the_name_of_what_stands_beside_a_table(
    lake: Lake, land: Land, prefix: str, topic: Topics, produce: Producing, suffix: str
) -> None:
    for name in (f"{prefix}-a", f"{prefix}-a{suffix}"):
        produce(topic(1, name=name), 0, numbers(1))
    assert "next to other tables" in refused(land, f"^{prefix}-.*")
    assert [table for _, table in lake.catalog().list_tables("lake")] == [f"{prefix}_a"]


def test_a_new_topic_of_the_same_table_name_does_not_stop_the_one_that_has_the_table(
    lake: Lake, land: Land, prefix: str, topic: Topics, produce: Producing
) -> None:
    for part in ("a.b", "c"):
        produce(topic(1, name=f"{prefix}-{part}"), 0, numbers(1))
    land(f"^{prefix}-.*")
    produce(topic(1, name=f"{prefix}-a-b"), 0, numbers(5, start=10))
    for part in ("a.b", "c"):
        produce(f"{prefix}-{part}", 0, numbers(1, start=1))
    assert f"lake.{prefix}_a_b" in refused(land, f"^{prefix}-.*", "next")
    assert landed(lake, f"lake.{prefix}_a_b") == [0, 1]
    assert landed(lake, f"lake.{prefix}_c") == [0, 1]


def test_a_topic_that_names_no_table_keeps_no_other_from_landing(
    lake: Lake, land: Land, prefix: str, topic: Topics, produce: Producing
) -> None:
    for part in ("a", "x" * 200):
        produce(topic(1, name=f"{prefix}-{part}"), 0, numbers(1))
    assert "longer than" in refused(land, f"^{prefix}-.*")
    assert landed(lake, f"lake.{prefix}_a") == [0]
