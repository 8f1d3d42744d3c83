"""Tags of one cut through mirrors of a real PostgreSQL, under transfers between accounts of three tables."""

from __future__ import annotations

import os
import random
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc
import pytest

from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.job import Contention
from airflow_lakestream.run.job import build_job
from airflow_lakestream.run.mirror_tag import MirrorTag
from dev.services.connect import Connect
from dev.services.kafka import Kafka
from dev.services.postgres import Postgres
from tests.support.broker import poll_until
from tests.support.cdc import Captured
from tests.support.lake import GROUP, Lake

pytestmark = pytest.mark.integration

# make soak-cdc takes more.
TAGS = int(os.environ.get("LAKESTREAM_TAGS", "5"))
ACCOUNTS = 8
TOTAL = 3 * ACCOUNTS * 1_000


@dataclass
class Bank:
    """Three tables of accounts, captured by one connector, and their mirrors."""

    captured: Captured
    lake: Lake

    @property
    def names(self) -> list[str]:
        """The database's tables."""
        return [f"{self.captured.name}_{part}" for part in "abc"]

    @property
    def tables(self) -> list[str]:
        """The mirrors."""
        return [f"lake.{name}" for name in self.names]

    def topic(self, name: str) -> str:
        """Return the topic of a table."""
        return f"{self.captured.name}.public.{name}"

    def transact(self, random_: random.Random, names: list[str]) -> None:
        """Move money and accounts in one transaction; the sum of all tables stays."""
        with self.captured.postgres.connect() as sql, sql.transaction():
            for _ in range(random_.randint(1, 3)):
                here, there = random_.choice(names), random_.choice(names)
                amount, whose, other = random_.randint(1, 99), *random_.sample(range(ACCOUNTS), 2)
                sql.execute(f"update {here} set balance = balance - %s where id = %s", (amount, whose))
                sql.execute(f"update {there} set balance = balance + %s where id = %s", (amount, other))
            if random_.random() < 0.2:
                # All in one account, which then comes back.
                moved = sql.execute(f"delete from {here} where id = %s returning balance", (whose,)).fetchone()
                assert moved is not None
                sql.execute(f"update {there} set balance = balance + %s where id = %s", (moved[0], other))
                sql.execute(f"insert into {here} values (%s, 0)", (whose,))

    def land(self, name: str, **settings: Any) -> None:
        """Land a mirror, as its DAG would."""
        config = MirrorConfig(topic=self.topic(name), table=f"lake.{name}", consumer_group=GROUP, **settings)
        land(build_job(config, self.lake.kafka, self.lake.catalog(), run_id=uuid.uuid4().hex))

    def tag(self, name: str, **settings: Any) -> MirrorTag:
        """Return the work of a tag."""
        return MirrorTag(name=name, tables=self.tables, kafka=self.lake.kafka, **settings)

    def total(self, tag: str) -> int:
        """Return the sum of all accounts in the tagged snapshots."""
        found = 0
        for table in map(self.lake.table, self.tables):
            snapshot = table.snapshot_by_name(tag)
            assert snapshot is not None
            found += pc.sum(table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()["balance"]).as_py()
        return found


@pytest.fixture
def bank(postgres: Postgres, connect: Connect, kafka: Kafka, lake: Lake) -> Iterator[Bank]:
    with postgres.connect() as sql:
        captured = Captured(sql, connect, kafka, postgres, connector="")
        bank = Bank(captured, lake)
        for name in bank.names:
            sql.execute(f"create table {name} (id bigint primary key, balance bigint)")
            sql.execute(f"insert into {name} select i, 1000 from generate_series(0, {ACCOUNTS - 1}) i")
        own = {"topic_prefix": captured.name, "slot_name": captured.name, "publication_name": captured.name}
        captured.connector = captured.name
        connect.capture(postgres, captured.name, f"public.{captured.name}_.*", heartbeat_interval_ms="500", **own)
        slot = f"select 1 from pg_replication_slots where slot_name = '{captured.name}' and active"
        poll_until(lambda: sql.execute(slot).fetchone() is not None, f"the slot of {captured.name}", 240)
        yield bank
        captured.release()
        sql.execute(f"select pg_drop_replication_slot('{captured.name}')")


class Background:
    """Work that is repeated by a thread until the end of the block; its error is raised there."""

    def __init__(self, *works: Any) -> None:
        self._works, self._end, self._errors = works, threading.Event(), list[BaseException]()
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in works]

    def __enter__(self) -> Background:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for one in self._threads:
            one.join()
        for error in self._errors:
            raise error

    def _run(self, work: Any) -> None:
        try:
            while not self._end.is_set():
                work()
        except BaseException as e:  # noqa: BLE001  # raised by the thread of the test
            self._errors.append(e)


def test_the_sum_of_all_accounts_is_right_in_each_tag(bank: Bank) -> None:
    chance = random.Random(5)
    own, theirs = random.Random(6), random.Random(7)
    for name in bank.names:
        poll_until(lambda name=name: bank.topic(name) in bank.captured.topics(), bank.topic(name), 120)
        bank.land(name)

    def others_land() -> None:
        # Batches that end anywhere, also within a transaction.
        with_few = {"max_records": theirs.randint(1, 40)}
        try:
            bank.land(theirs.choice(bank.names), **with_few)
        except Contention:
            return
        threading.Event().wait(theirs.random())

    with Background(lambda: bank.transact(own, bank.names), others_land):
        for number in range(TAGS):
            done = bank.tag(f"t{number}").run(bank.lake.catalog())
            assert set(done.snapshots) == set(bank.tables)
            bank.land(chance.choice(bank.names))
    assert [bank.total(f"t{number}") for number in range(TAGS)] == [TOTAL] * TAGS
