"""Fan-out when runs die between two tables, change their configuration, linger on, or come two at once.

The oracle is always the same: each record once, in the table that the last configuration sends it to.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.landing.algorithm import land as land_job
from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.iceberg.fan_out.books import Superseded
from airflow_lakestream.iceberg.ledger_store import read_ledger
from airflow_lakestream.iceberg.reject_table import counting_rows
from airflow_lakestream.run.topics import RunReport, land_run
from tests.support.broker import Producing, TopicOf
from tests.support.faults import before, passed
from tests.support.lake import GROUP, QUICK_RETRIES, Lake, assert_files_are_whole

pytestmark = pytest.mark.integration

# Each record has two fields to route by, which part the records differently.
EVENTS = ["a", "b", "a", "b", "c"]
KINDS = ["b", "x", "x", "b", "a"]
BY_EVENT: dict[str, Any] = {"table": "lake.{event}"}
BY_KIND: dict[str, Any] = {"table": "lake.{kind}"}
# Home with the tables written down, a, b, c, home with the landing.
COMMITS = 5


class Died(BaseException):
    """Ends a run where it stands, as a kill does: nothing that it left in doubt is cleaned up."""


def die() -> None:
    raise Died


def acting(lake: Lake, number: int, action: Callable[[], object]) -> Any:
    """Return a catalog that does something before the commit with a given number, as another run would."""
    return lake.failing(*[passed] * (number - 1), before(action))


def job(lake: Lake, topic: str, run_id: str, catalog: Catalog | None = None, **config: Any) -> Any:
    given = {"new_tables": "create", "schema": "n bigint, event string, kind string", **BY_EVENT, **config}
    return lake.job(topic, run_id, catalog=catalog, table_properties=QUICK_RETRIES, **given)


def land(lake: Lake, topic: str, run_id: str = "r", catalog: Catalog | None = None, **config: Any) -> None:
    land_job(job(lake, topic, run_id, catalog, **config))


def report(lake: Lake, topic: str, run_id: str = "r") -> RunReport:
    config = ExtractConfig(topic=topic, consumer_group=GROUP, new_tables="create", **BY_EVENT)
    return land_run(config, lake.kafka, lake.catalog(), run_id=run_id)


def dies_before(lake: Lake, topic: str, number: int, **config: Any) -> bool:
    try:
        land(lake, topic, "r", acting(lake, number, die), **config)
    except Died:
        return True
    return False


def die_before(lake: Lake, topic: str, number: int, **config: Any) -> None:
    assert dies_before(lake, topic, number, **config)


def records(first: int = 0) -> list[str]:
    pairs = zip(EVENTS, KINDS, strict=True)
    return [json.dumps({"n": first + i, "event": event, "kind": kind}) for i, (event, kind) in enumerate(pairs)]


@pytest.fixture
def name(topic_of: TopicOf) -> str:
    """Give a topic of two partitions with the records in each."""
    return topic_of(records(0), records(100))


def found(lake: Lake) -> dict[str, list[int]]:
    """Return the numbers in each table that has rows."""
    names = [".".join(name) for name in lake.catalog().list_tables("lake")]
    rows = {name: lake.table(name).scan().to_arrow().sort_by("n")["n"].to_pylist() for name in names}
    return {name: numbers for name, numbers in rows.items() if numbers}


def expected(values: list[str]) -> dict[str, list[int]]:
    wanted: dict[str, list[int]] = {}
    for start in (0, 100):
        for i, value in enumerate(values):
            wanted.setdefault(f"lake.{value}", []).append(start + i)
    return wanted


def assert_tables_are_whole(lake: Lake) -> None:
    for identifier in lake.catalog().list_tables("lake"):
        assert_files_are_whole(lake.table(".".join(identifier)), leftovers_of_a_kill=True)


@pytest.mark.parametrize("number", range(1, COMMITS + 1))
def test_a_run_that_died_between_two_tables_is_finished_by_its_retry(lake: Lake, name: str, number: int) -> None:
    die_before(lake, name, number)
    retried = report(lake, name)
    assert found(lake) == expected(EVENTS)
    assert retried.tables == {"lake.a": 4, "lake.b": 4, "lake.c": 2}
    assert_tables_are_whole(lake)
    assert report(lake, name, "next").changed_nothing


@pytest.mark.parametrize("number", range(1, COMMITS + 2))
def test_a_record_that_is_out_of_reach_is_rejected_once_whatever_dies(lake: Lake, name: str, number: int) -> None:
    # The table of another stream is that of the value "b".
    other = job(lake, name, "other", table="lake.b", consumer_group="another-dag", new_tables="fail")
    land_job(other)
    before = lake.table("lake.b").metadata_location
    # One commit more, of the rejected records, and one less, of the table that is out of reach.
    die_before(lake, name, number) if number < COMMITS + 1 else land(lake, name)
    assert report(lake, name).counts == Counts(read=10, written=6, rejected=4)
    rows = {table: sorted(lake.table(table).scan().to_arrow()["n"].to_pylist()) for table in ("lake.a", "lake.c")}
    assert rows == {"lake.a": [0, 2, 100, 102], "lake.c": [4, 104]}
    assert lake.table("lake.b").metadata_location == before
    home = f"lake.{name.replace('-', '_')}__{GROUP}__home"
    rejected = counting_rows(lake.table(f"{home}__rejected"), lake.table(home), GROUP, columns=["stage"])
    kept = [(row["_kafka_offset"], row["stage"]) for part in rejected for row in part.to_pylist()]
    assert sorted(kept) == [(1, "route"), (1, "route"), (3, "route"), (3, "route")]


def test_a_run_that_dies_again_and_again_gets_there(lake: Lake, name: str) -> None:
    # The second and third find the home written, and go on from where the one before stood.
    for number in (3, 2, 2):
        die_before(lake, name, number)
    land(lake, name)
    assert found(lake) == expected(EVENTS)
    assert_tables_are_whole(lake)


@pytest.mark.parametrize("number", range(1, COMMITS + 1))
def test_what_was_half_landed_under_another_template_is_done_again(lake: Lake, name: str, number: int) -> None:
    die_before(lake, name, number)
    land(lake, name, **BY_KIND)
    assert found(lake) == expected(KINDS)
    assert_tables_are_whole(lake)


@pytest.mark.parametrize("number", [3, 4, 5])
def test_what_was_half_landed_with_another_schema_is_done_again(lake: Lake, name: str, number: int) -> None:
    die_before(lake, name, number)
    land(lake, name, schema="n bigint, event string")
    assert found(lake) == expected(EVENTS)
    for table in expected(EVENTS):
        assert set(lake.table(table).scan().to_arrow()["kind"].to_pylist()) == {None}


def test_a_run_that_dies_after_each_of_its_commits_takes_over_in_the_end(lake: Lake, name: str) -> None:
    die_before(lake, name, 4)
    tries = 1
    while dies_before(lake, name, 2, **BY_KIND):
        tries += 1
        assert tries < 20
    # The claim, a fence for each of a, b, c, x, two tables done again, two new ones, the home.
    assert tries == 10
    assert found(lake) == expected(KINDS)
    assert_tables_are_whole(lake)


def test_there_and_back_again(lake: Lake, name: str) -> None:
    die_before(lake, name, 4)
    die_before(lake, name, 7, **BY_KIND)
    land(lake, name)
    assert found(lake) == expected(EVENTS)


def test_a_template_may_change_between_runs(lake: Lake, name: str, produce: Producing) -> None:
    land(lake, name)
    produce(name, 0, records(500))
    land(lake, name, "next", **BY_KIND)
    after = expected(EVENTS)
    for i, kind in enumerate(KINDS):
        after.setdefault(f"lake.{kind}", []).append(500 + i)
    assert found(lake) == {table: sorted(numbers) for table, numbers in after.items()}


@pytest.mark.parametrize("number", range(1, COMMITS + 1))
def test_a_zombie_of_another_configuration_can_write_nothing_any_more(lake: Lake, name: str, number: int) -> None:
    def take_over() -> None:
        land(lake, name, "new", **BY_KIND)

    zombie = job(lake, name, "old", acting(lake, number, take_over))
    if number == 1:
        # It comes too late for the home itself, whose configuration it then finds, takes over, and has nothing to do.
        land_job(zombie)
    else:
        with pytest.raises(Superseded):
            land_job(zombie)
    assert found(lake) == expected(KINDS)
    assert_tables_are_whole(lake)


def test_a_zombie_can_not_even_write_to_a_table_that_gets_nothing_any_more(
    lake: Lake, name: str, produce: Producing
) -> None:
    land(lake, name)
    produce(name, 0, records(500))

    def take_over() -> None:
        land(lake, name, "new", **BY_KIND)

    # Its third commit is to lake.c, which is there, and for which the new template has no records.
    with pytest.raises(Superseded):
        land_job(job(lake, name, "old", acting(lake, 3, take_over)))
    assert found(lake)["lake.c"] == [4, 104]
    assert sorted(n for numbers in found(lake).values() for n in numbers) == sorted(
        [*range(5), *range(100, 105), *range(500, 505)]
    )


@pytest.mark.parametrize("number", range(1, COMMITS + 1))
def test_another_run_of_the_same_configuration_may_come_in_between(lake: Lake, name: str, number: int) -> None:
    slow = job(lake, name, "slow", acting(lake, number, lambda: land(lake, name, "quick")))
    land_job(slow)
    assert found(lake) == expected(EVENTS)
    assert_tables_are_whole(lake)


def test_two_runs_at_once(lake: Lake, name: str) -> None:
    barrier = threading.Barrier(2)

    catalogs = {run: acting(lake, 1, lambda: barrier.wait(30)) for run in ("one", "two")}

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(land, lake, name, run, catalog) for run, catalog in catalogs.items()]:
            future.result()
    assert found(lake) == expected(EVENTS)
    assert_tables_are_whole(lake)


def test_the_ledgers_say_what_the_tables_hold_after_all(lake: Lake, name: str) -> None:
    die_before(lake, name, 4)
    land(lake, name, **BY_KIND)
    rows: Mapping[str, int] = {table: len(numbers) for table, numbers in found(lake).items()}
    for table, count in rows.items():
        [entry] = read_ledger(lake.table(table), GROUP).topics.values()
        assert entry.counts.written == count
