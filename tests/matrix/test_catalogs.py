"""Landings in each catalog that users have: racing processes, a table that is renamed, one whose history expires."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.core.checks import ChecksFailed
from airflow_lakestream.hooks.iceberg import CatalogUnavailable, IcebergHook
from airflow_lakestream.iceberg.upkeep import expiry
from dev.services.kafka import Kafka
from dev.stack import Stack
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.catalogs import SPAWN, CatalogLake, land_each
from tests.support.lake import TABLE, assert_files_are_whole, assert_landed_once, events
from tests.support.replacing import ranges, versions
from tests.support.table_formats import IcebergTable, Place

pytestmark = pytest.mark.integration

LANDINGS, EACH = 8, 5


@pytest.fixture
def lake(place: Place, kafka: Kafka) -> CatalogLake:
    """Give an empty lake in each catalog."""
    return CatalogLake(place, kafka.client_config())


@pytest.mark.parametrize("same", [False, True], ids=["other ranges", "the same ranges"])
def test_two_processes_that_land_at_once_each_keep_what_they_land(
    lake: CatalogLake, topic: Topics, produce: Producing, same: bool
) -> None:
    name, count = topic(1), (LANDINGS if same else 2 * LANDINGS) * EACH
    produce(name, 0, events(0, 0, count))
    pieces = [(first, first + EACH) for first in range(0, count, EACH)]
    answers, start = SPAWN.Queue(), SPAWN.Barrier(2)
    shares: Sequence[Sequence[tuple[int, int]]] = [pieces, pieces] if same else [pieces[::2], pieces[1::2]]
    # The first landing of either creates the table and its namespace, if the other's has not.
    processes = [SPAWN.Process(target=land_each, args=(lake, name, share, start, answers)) for share in shares]
    for process in processes:
        process.start()
    said = [answers.get(timeout=240) for share in shares for _ in share]
    for process in processes:
        process.join()

    assert said == ["landed"] * len(said)
    assert_landed_once(lake, name, {0: count})
    assert_files_are_whole(lake.table())


def test_a_table_that_is_renamed_goes_on_where_it_was(lake: CatalogLake, topic_of: TopicOf, produce: Producing) -> None:
    name = topic_of(events(0, 0, 10))
    lake.land(name, table="lake.before")
    lake.catalog().rename_table("lake.before", TABLE)
    produce(name, 0, events(0, 10, 10))

    assert lake.land(name).rows == 10

    assert_landed_once(lake, name, {0: 20})


def test_history_that_expires_takes_nothing_of_the_ledger(
    lake: CatalogLake, topic_of: TopicOf, produce: Producing
) -> None:
    name = topic_of(events(0, 0, 30))
    for first in (0, 10):
        lake.land(name, mode="ranges", ranges=[[0, first, first + 10]])
    assert expiry.prepare(lake.catalog(), TABLE, expiry.ExpiryRule(older_than=0))
    table = lake.table()
    gone = [one.snapshot_id for one in table.snapshots() if one != table.current_snapshot()]
    table.maintenance.expire_snapshots().by_ids(gone).commit()

    assert lake.land(name).rows == 10

    assert_landed_once(lake, name, {0: 30})


@pytest.mark.xdist_group("Glue")
@pytest.mark.parametrize("careless", [False, True], ids=["Glue", "one that does not compare"])
def test_what_another_commits_between_the_look_and_the_change_stays_as_glue_compares(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, careless: bool
) -> None:
    properties = stack.up_glue(careless=careless).properties
    table = IcebergTable(tmp_path, monkeypatch, {**properties, "warehouse": f"file://{tmp_path}/warehouse"})
    table.land(ranges((0, 0, 5)))
    held: Any = table.catalog()
    update, waiting = held.glue.update_table, ["foreign"]

    def update_after_another(**request: Any) -> Any:
        while waiting:
            table.append_foreign(waiting.pop())
        return update(**request)

    held.glue.update_table = update_after_another
    table.through(held).land(ranges((0, 5, 9)), "new")

    # The second says that the test would see a loss.
    foreign = () if careless else ("foreign",)
    assert table.rows() == versions(((0, 0, 5), "old"), ((0, 5, 9), "new"), foreign=foreign)
    table.drop()


@pytest.mark.xdist_group("REST")
def test_a_rest_catalog_is_asked_with_the_connections_login(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = stack.up_rest_catalog()
    client, _, secret = rest.properties["credential"].partition(":")
    connection = {"conn_type": "iceberg", "host": rest.url, "password": secret}
    extra = {"oauth2-server-uri": rest.tokens}
    for name, login in (("RIGHT", client), ("WRONG", "somebody")):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps({**connection, "login": login, "extra": extra}))

    IcebergHook("right").open_catalog().list_namespaces()

    with pytest.raises(CatalogUnavailable, match=r"'wrong'.*Check host, login") as caught:
        IcebergHook("wrong").open_catalog()
    assert secret not in str(caught.value)


def test_rows_that_do_not_pass_their_checks_never_show(lake: CatalogLake, topic_of: TopicOf) -> None:
    name = topic_of(events(0, 0, 10))
    with pytest.raises(ChecksFailed, match=r"row_count.*10"):
        lake.land(name, checks={"row_count": {"max": 9}})
    assert not lake.records()

    assert lake.land(name, checks={"row_count": {"max": 10}, "unique": ["id"]}).rows == 10

    assert_landed_once(lake, name, {0: 10})
    assert list(lake.table().refs()) == ["main"]
