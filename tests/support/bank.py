"""Accounts in three tables of a real database, captured by one connector, and their mirrors."""

from __future__ import annotations

import os
import random
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.job import Contention
from airflow_lakestream.run.job import build_job
from airflow_lakestream.run.mirror_tag import MirrorTag
from dev.services.connect import Connect
from dev.services.kafka import Kafka
from tests.support.broker import poll_until
from tests.support.cdc import Sent
from tests.support.lake import GROUP, Lake

# make soak-cdc takes more.
TAGS = int(os.environ.get("LAKESTREAM_TAGS", "5"))
ACCOUNTS = 8
TOTAL = 3 * ACCOUNTS * 1_000

Execute = Callable[..., Any]


@dataclass
class TableTopic(Sent):
    """The topic of one of several tables."""

    kafka: Kafka
    name: str

    @property
    def topic(self) -> str:
        return self.name


@dataclass
class Bank(ABC):
    """The tables, their connector and their mirrors; `space` is the tables' schema or database."""

    connect: Connect
    kafka: Kafka
    lake: Lake
    space: str
    prefix: str = field(default_factory=lambda: f"bank_{uuid.uuid4().hex[:8]}")

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Execute]:
        """Begin a transaction of its own, and give what executes a statement and returns its rows."""

    @property
    def names(self) -> list[str]:
        """The database's tables."""
        return [f"{self.prefix}_{part}" for part in "abc"]

    @property
    def tables(self) -> list[str]:
        """The mirrors."""
        return [f"lake.{name}" for name in self.names]

    def topic(self, name: str) -> str:
        """Return the topic of a table."""
        return f"{self.prefix}.{self.space}.{name}"

    def fill(self) -> None:
        """Make the tables."""
        for name in self.names:
            with self.transaction() as execute:
                execute(f"create table {name} (id bigint primary key, balance bigint)")
            with self.transaction() as execute:
                for number in range(ACCOUNTS):
                    execute(f"insert into {name} values (%s, 1000)", (number,))

    def transact(self, chance: random.Random, names: list[str]) -> None:
        """Move money and accounts in one transaction; the sum of all tables stays."""
        with self.transaction() as execute:
            for _ in range(chance.randint(1, 3)):
                here, there = chance.choice(names), chance.choice(names)
                amount, whose, other = chance.randint(1, 99), *chance.sample(range(ACCOUNTS), 2)
                execute(f"update {here} set balance = balance - %s where id = %s", (amount, whose))
                execute(f"update {there} set balance = balance + %s where id = %s", (amount, other))
            if chance.random() < 0.2:
                # All in one account, which then comes back.
                ((left,),) = execute(f"select balance from {here} where id = %s", (whose,))
                execute(f"delete from {here} where id = %s", (whose,))
                execute(f"update {there} set balance = balance + %s where id = %s", (left, other))
                execute(f"insert into {here} values (%s, 0)", (whose,))

    def land(self, name: str, **settings: Any) -> None:
        """Land a mirror, as its DAG would."""
        config = MirrorConfig(topic=self.topic(name), table=f"lake.{name}", consumer_group=GROUP, **settings)
        land(build_job(config, self.lake.kafka, self.lake.catalog(), run_id=uuid.uuid4().hex))

    def land_all(self) -> None:
        """Land all mirrors, once their topics have the rows of the beginning."""
        for name in self.names:
            topic = TableTopic(self.kafka, self.topic(name))
            poll_until(lambda topic=topic: topic.sent() >= ACCOUNTS, f"the rows of {name}", 240)
            self.land(name)

    def await_last(self, name: str) -> None:
        """Wait until a last change of a table is in its topic."""
        mark = random.randint(10**6, 10**9)
        for statement in (f"insert into {name} values (%s, 0)", f"delete from {name} where id = %s"):
            with self.transaction() as execute:
                execute(statement, (mark,))
        topic = TableTopic(self.kafka, self.topic(name))
        poll_until(lambda: topic.ends_with(mark), "the last change", 120)

    def tag(self, name: str, **settings: Any) -> MirrorTag:
        """Return the work of a tag."""
        return MirrorTag(name=name, tables=self.tables, kafka=self.lake.kafka, landing={}, **settings)

    def tagged(self, tag: str) -> dict[str, int]:
        """Return the snapshots of a tag."""
        return {table: self.lake.table(table).metadata.refs[tag].snapshot_id for table in self.tables}

    def balances(self, name: str, tag: str) -> dict[int, int]:
        """Return the balances of a tagged mirror, by account."""
        table = self.lake.table(f"lake.{name}")
        rows = table.scan(snapshot_id=table.metadata.refs[tag].snapshot_id).to_arrow().to_pylist()
        return {row["id"]: row["balance"] for row in rows}

    def total(self, tag: str) -> int:
        """Return the sum of all accounts in the tagged snapshots."""
        return sum(sum(self.balances(name, tag).values()) for name in self.names)

    def rows(self, name: str) -> dict[int, int]:
        """Return the balances in the database, by account."""
        with self.transaction() as execute:
            return dict(execute(f"select id, balance from {name}"))

    def totals_under_load(self, seed: int, **settings: Any) -> list[int]:
        """Tag while transfers and other landings go on; return the sum of each tag."""
        self.land_all()
        of_transfers, of_others, chance = (random.Random(seed + number) for number in range(3))

        def others_land() -> None:
            # Batches that end anywhere, also within a transaction.
            try:
                self.land(of_others.choice(self.names), max_records=of_others.randint(1, 40))
            except Contention:
                return
            threading.Event().wait(of_others.random())

        with Background(lambda: self.transact(of_transfers, self.names), others_land):
            for number in range(TAGS):
                self.tag(f"t{number}", **settings).run(self.lake.catalog())
                self.land(chance.choice(self.names))
        return [self.total(f"t{number}") for number in range(TAGS)]


class Background:
    """Works that threads repeat until the end of the block; their errors are raised there."""

    def __init__(self, *works: Callable[[], object]) -> None:
        self._end, self._errors = threading.Event(), list[BaseException]()
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

    def _run(self, work: Callable[[], object]) -> None:
        try:
            while not self._end.is_set():
                work()
        except BaseException as e:  # noqa: BLE001  # the thread of the test raises it
            self._errors.append(e)
