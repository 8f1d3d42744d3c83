"""Tags of one cut through mirrors of a real MariaDB: places in the binary log, and GTIDs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from dev.services.connect import Connect
from dev.services.kafka import Kafka
from dev.services.mariadb import MariaDb
from tests.support.bank import TAGS, TOTAL, Bank, Execute
from tests.support.lake import Lake
from tests.support.mariadb import DATABASE, mariadb, session

__all__ = ["mariadb"]

pytestmark = pytest.mark.integration


@dataclass
class MariaDbBank(Bank):
    """The accounts in MariaDB."""

    mariadb: MariaDb | None = None

    @contextmanager
    def transaction(self) -> Iterator[Execute]:
        assert self.mariadb is not None
        with session(self.mariadb) as sql, sql.cursor() as cursor:
            cursor.execute("begin")
            yield lambda *statement: cursor.execute(*statement) and cursor.fetchall()
            cursor.execute("commit")


@pytest.fixture
def bank(mariadb: MariaDb, connect: Connect, kafka: Kafka, lake: Lake) -> Iterator[Bank]:
    bank = MariaDbBank(connect, kafka, lake, DATABASE, mariadb=mariadb)
    bank.fill()
    tables, own = f"{DATABASE}.{bank.prefix}_.*", {"heartbeat_interval_ms": "500"}
    connect.capture_mariadb(mariadb, bank.prefix, tables, kafka.bootstrap, **own)
    yield bank
    connect.release(bank.prefix)


@pytest.mark.parametrize("by", ["events", "stored offset"])
def test_the_sum_of_all_accounts_is_right_in_each_tag(by: str, bank: Bank) -> None:
    settings = {} if by == "events" else {"offsets_topic": bank.connect.offsets_topic}
    assert bank.totals_under_load(11, **settings) == [TOTAL] * TAGS
