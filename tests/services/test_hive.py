"""Landings through a real metastore of Hive's, whose locks expire: no commit takes out another one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hive_metastore.ttypes import LockState

from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.ledger import Ledger
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.commit.hive import MetastoreDoesNotCompare
from airflow_lakestream.iceberg.commit.new_table import make_namespace
from airflow_lakestream.iceberg.upkeep import expiry, ledger_edit
from airflow_lakestream.tables.rejects.settlement import rejects_of
from airflow_lakestream.tables.schema.ddl import parse_schema
from dev.services.kafka import Kafka
from dev.services.metastore import Metastore
from tests.support.broker import Producing, TopicOf
from tests.support.catalogs import SPAWN
from tests.support.hive_lake import HiveLake, land_paused, wait_until_stopped
from tests.support.lake import GROUP, TABLE, assert_files_are_whole, assert_landed_once, events

pytestmark = pytest.mark.integration


def test_a_writer_paused_until_its_lock_has_expired_takes_out_nothing(hive_lake: HiveLake, topic_of: TopicOf) -> None:
    name = topic_of(events(0, 0, 30))
    hive_lake.land(name, mode="ranges", ranges=[[0, 0, 10]])
    answers = SPAWN.Queue()
    paused = SPAWN.Process(target=land_paused, args=(hive_lake, name, [[0, 10, 20]], answers))
    paused.start()
    assert paused.pid is not None
    try:
        wait_until_stopped(paused.pid)
        # It waits for the lock, which nobody keeps alive.
        hive_lake.land(name, mode="ranges", ranges=[[0, 20, 30]])
    finally:
        os.kill(paused.pid, signal.SIGCONT)
    assert answers.get(timeout=120) == "landed"
    paused.join()

    assert_landed_once(hive_lake, name, {0: 30})
    assert_files_are_whole(hive_lake.table())


def foreign_rows(lake: HiveLake) -> None:
    lake.append_foreign()


def a_property(name: str = TABLE) -> Callable[[HiveLake], None]:
    """Return a commit of another's that does not even move the head."""

    def change(lake: HiveLake) -> None:
        with lake.table(name).transaction() as transaction:
            transaction.set_properties({"theirs": "kept"})

    return change


def lands(lake: HiveLake, topic: str, catalog: Any) -> None:
    land(lake.job(topic, catalog=catalog))


def replaces(lake: HiveLake, topic: str, catalog: Any) -> None:
    land(lake.job(topic, catalog=catalog, mode="ranges", ranges=[[0, 0, 10]], replace=True))


def renames(lake: HiveLake, topic: str, catalog: Any) -> None:
    def decide(table: Any) -> dict[str, Ledger]:
        ledger = ledger_store.read_ledger(table, GROUP)
        return {GROUP: Ledger(GROUP), "other": replace(ledger, consumer_group="other")}

    ledger_edit.rename(catalog, TABLE, GROUP, "other", decide)


def lets_expire(lake: HiveLake, topic: str, catalog: Any) -> None:
    assert expiry.prepare(catalog, TABLE, expiry.ExpiryRule(older_than=0))


# What is committed, what of another's comes in between, the table of both, and the rows of the first afterwards.
COMMITS = {
    "a landing, rows": (lands, foreign_rows, TABLE, 23),
    "a landing, a property": (lands, a_property(), TABLE, 20),
    "rejected records, a property": (lands, a_property(rejects_of(TABLE)), rejects_of(TABLE), 2),
    "a replace, rows": (replaces, foreign_rows, TABLE, 13),
    "a replace, a property": (replaces, a_property(), TABLE, 10),
    "a change of the ledger, rows": (renames, foreign_rows, TABLE, 13),
    "an expiry, a property": (lets_expire, a_property(), TABLE, 10),
}


@pytest.mark.parametrize(("commit", "between", "table", "rows"), COMMITS.values(), ids=COMMITS)
def test_what_another_commits_while_a_commit_is_held_up_stays(
    hive_lake: HiveLake,
    topic_of: TopicOf,
    produce: Producing,
    commit: Callable[..., None],
    between: Callable[[HiveLake], None],
    table: str,
    rows: int,
) -> None:
    name = topic_of([*events(0, 0, 10), *(["no JSON"] if table != TABLE else [])])
    hive_lake.land(name, mode="ranges", ranges=[[0, 0, 5]])
    hive_lake.land(name)
    if commit is lands:
        produce(name, 0, ["still none"] if table != TABLE else events(0, 10, 10))

    commit(hive_lake, name, hive_lake.interrupted(lambda: between(hive_lake)))

    found = hive_lake.table(table)
    assert len(found.scan().to_arrow()) == rows
    if between is not foreign_rows:
        assert found.properties["theirs"] == "kept"
    group = "other" if commit is renames else GROUP
    assert hive_lake.landed(name, group) == {0: [(0, 20 if rows >= 20 else 12 if table != TABLE else 10)]}


def test_a_lock_that_a_dead_writer_left_is_no_doubt_about_the_commit(
    hive_lake: HiveLake, topic_of: TopicOf, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic_of(events(0, 0, 10))
    hive_lake.land(name, mode="ranges", ranges=[[0, 0, 5]])
    # Its lock is there for some seconds; nobody waits for it that long here.
    hasty = hive_lake.catalog(**{"lock-check-retries": "1", "lock-check-min-wait-time": "0.5"})
    with hive_lake.catalog()._client as client:
        assert client.lock(hasty._create_lock_request("lake", "events")).state == LockState.ACQUIRED

    land(hive_lake.job(name, catalog=hasty))

    assert "did not report whether it was applied" not in caplog.text
    assert_landed_once(hive_lake, name, {0: 10})
    assert_files_are_whole(hive_lake.table())


def test_an_older_metastore_is_refused_before_anything_is_read(
    old_metastore: Metastore, kafka: Kafka, tmp_path: Path, topic_of: TopicOf
) -> None:
    lake = HiveLake(tmp_path, kafka.client_config(), old_metastore)
    name = topic_of(events(0, 0, 10))
    try:
        with pytest.raises(
            MetastoreDoesNotCompare, match=r"lake\.events: .*metastore \(3\.0\) does not show.*2\.3\.10"
        ):
            lake.land(name)
        assert lake.catalog().list_namespaces() == [("default",)]
        catalog = lake.catalog()
        catalog.create_namespace("lake")
        made = catalog.create_table(TABLE, parse_schema("id bigint"))
        with pytest.raises(MetastoreDoesNotCompare, match=r"lake\.events: .* can't compare and set.*HIVE-26882"):
            lake.land(name, metadata_columns=[])
        # It was asked by a change that it did not make.
        with catalog._client as client:
            assert client.get_table("lake", "events").partitionKeys == []
        assert catalog.load_table(TABLE).metadata_location == made.metadata_location
    finally:
        lake.empty()


def test_of_two_that_make_a_namespace_at_once_neither_loses_files(hive_lake: HiveLake) -> None:
    # The metastore, left alone, removes the folder with the one that it refuses, whatever the other has put in there.
    warehouse = Path(hive_lake.metastore.warehouse.removeprefix("file://"))
    for number in range(8):
        name, start = f"new{number}.t", threading.Barrier(2, timeout=60)

        def make(number: int, name: str = name, start: threading.Barrier = start) -> None:
            catalog = hive_lake.catalog()
            folder = warehouse / f"{name.partition('.')[0]}.db"
            start.wait()
            make_namespace(catalog, name)
            (folder / str(number)).touch()

        with ThreadPoolExecutor(2) as both:
            list(both.map(make, range(2)))
        assert sorted(path.name for path in (warehouse / f"new{number}.db").iterdir()) == ["0", "1"]
