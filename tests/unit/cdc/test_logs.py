"""Binary logs that follow each other: a mirror is its table after a failover and `RESET MASTER`, or it stops."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_lakestream.cdc.stops import MirrorStopped, StopReason
from tests.support.keyed import Follower, Record
from tests.support.mirroring import HandDeltaMirror, HandMirror

KINDS = {"iceberg": HandMirror, "delta": HandDeltaMirror}
KEYS = range(6)
Rows = dict[int, str]


@dataclass(frozen=True)
class Change:
    """One event of a transaction: its operation, and the row's key and value."""

    op: str
    key: int | None = None
    value: str | None = None


@dataclass(frozen=True)
class Transaction:
    """What a server wrote into its log, and where it stands in the log that is read."""

    changes: tuple[Change, ...]
    server: int
    number: int
    seconds: int
    place: tuple[int, int] = (0, 0)
    rows: Rows = field(default_factory=dict)


@dataclass
class Source:
    """A database whose binary log is read; `gtids` is `mariadb`, `mysql` or nothing."""

    gtids: str
    partitions: int
    random: Random
    log: list[Transaction] = field(default_factory=list)
    rows: Rows = field(default_factory=dict)
    server: int = 1
    # Of the next transaction, by what counts them.
    numbers: dict[str, int] = field(default_factory=dict)
    seconds: int = 1_000
    file: int = 1
    byte: int = 4
    values: int = 0
    # What is in the topic and was not landed.
    pending: list[Record] = field(default_factory=list)
    # Of the log: up to where it was sent.
    sent: int = 0

    def commit(self) -> None:
        """Write one transaction."""
        changes, rows = [], dict(self.rows)
        for _ in range(self.random.randint(1, 3)):
            key, self.values = self.random.choice(KEYS), self.values + 1
            if self.random.random() < 0.05:
                rows = {}
                changes.append(Change("t"))
            elif key in rows and self.random.random() < 0.4:
                changes.append(Change("d", key, rows.pop(key)))
            else:
                changes.append(Change("u" if key in rows else "c", key, f"v{self.values}"))
                rows[key] = f"v{self.values}"
        self.rows = rows
        counted_by = "all" if self.gtids == "mariadb" else str(self.server)
        number = self.numbers[counted_by] = self.numbers.get(counted_by, 0) + 1
        # A statement may begin before another one that is committed first.
        begun = self.seconds - self.random.choice((0, 0, 0, 1, 5))
        self._write(Transaction(tuple(changes), self.server, number, begun, rows=rows))
        self.seconds += self.random.choice((0, 0, 1, 3))

    def _write(self, one: Transaction) -> None:
        self.log.append(replace(one, place=(self.file, self.byte)))
        self.byte += 100 + 40 * len(one.changes)

    def rotate(self) -> None:
        """Begin a file."""
        self.file, self.byte = self.file + 1, 4

    def send(self) -> None:
        """Send what was not sent."""
        for one in self.log[self.sent :]:
            self.pending += self._records(one)
        self.sent = len(self.log)

    def send_again(self) -> None:
        """Send the end of what was sent once more, from the middle of a transaction on."""
        first = self.random.randrange(max(0, self.sent - 8), self.sent) if self.sent else 0
        records = [record for one in self.log[first : self.sent] for record in self._records(one)]
        self.pending += records[self.random.choice((0, 0, 1)) :]

    def fail_over(self, *, loses: int = 0) -> None:
        """Let another server go on, with a log of its own; what it never got is gone."""
        held = self.log[: len(self.log) - loses]
        if loses and held:
            self.rows = held[-1].rows
            self.numbers = {**self.numbers, "all": held[-1].number}
        known = sum(one in held for one in self.log[: self.sent])
        self.server += 1
        self.log, self.file, self.byte = [], self.random.randrange(1, 8), self.random.choice((4, 400))
        for one in held:
            if self.random.random() < 0.1:
                self.rotate()
            self._write(one)
        # Its log may not reach back to the beginning; and Debezium may go back, where GTIDs tell it the place.
        gone = self.random.randrange(known + 1)
        self.log = self.log[gone:]
        again = self.random.randrange(min(6, known - gone) + 1) if self.gtids else 0
        self.sent = known - gone - again
        self.seconds += 1

    def reset(self) -> None:
        """Begin the log again: `RESET MASTER`; the connector goes on with it."""
        self.log, self.file, self.byte, self.sent, self.numbers = [], 1, 4, 0, {}
        # What comes in the second of the last transaction can't be told from it.
        self.seconds += 6

    def read(self) -> None:
        """Let a new connector read the table, and go on from there."""
        rows = sorted(self.rows.items())
        for place, (key, value) in enumerate(rows):
            mark = "last" if place == len(rows) - 1 else "true"
            self.pending.append(self._record(Change("r", key, value), (self.file, self.byte), 0, mark))
        self.sent = len(self.log)

    def _records(self, one: Transaction) -> list[Record]:
        return [
            self._record(change, (one.place[0], one.place[1] + 40 * at), one, "false")
            for at, change in enumerate(one.changes)
        ]

    def _record(self, change: Change, place: tuple[int, int], of: Transaction | int, snapshot: str) -> Record:
        is_event = isinstance(of, Transaction)
        source: dict[str, Any] = {
            **{"connector": "mariadb", "db": "shop", "table": "orders", "sequence": None, "snapshot": snapshot},
            **{"file": f"binlog.{place[0]:06}", "pos": place[1], "row": 0},
            "ts_ms": (of.seconds if isinstance(of, Transaction) else self.seconds) * 1000,
            "server_id": of.server if isinstance(of, Transaction) else 0,
            "gtid": self._gtid(of) if isinstance(of, Transaction) else None,
        }
        row = None if change.key is None else {"id": change.key, "name": change.value}
        before, after = (row, None) if change.op == "d" else (None, row)
        value = json.dumps({"before": before, "after": after, "source": source, "op": change.op}).encode()
        assert is_event or change.op == "r"
        key = None if change.key is None else json.dumps({"id": change.key}).encode()
        return Record(key, value, 0 if change.key is None else change.key % self.partitions)

    def _gtid(self, one: Transaction) -> str | None:
        if not self.gtids:
            return None
        return f"0-{one.server}-{one.number}" if self.gtids == "mariadb" else f"aaaa-{one.server}:{one.number}"


def land(source: Source, follower: Follower, records: list[Record]) -> None:
    """Land these records of the pending ones, in their order."""
    if records:
        follower.land(records)
    left = {id(one) for one in records}
    source.pending = [one for one in source.pending if id(one) not in left]


def some(source: Source) -> list[Record]:
    """Return the pending records up to somewhere in each partition."""
    ends = {}
    for partition in range(source.partitions):
        own = [one for one in source.pending if one.partition == partition]
        ends[partition] = {id(one) for one in own[: source.random.randint(0, len(own))]}
    return [one for one in source.pending if id(one) in ends[one.partition]]


def is_same(source: Source, follower: Follower) -> bool:
    return {row["id"]: row["name"] for row in follower.rows()} == source.rows


@settings(max_examples=settings.get_profile(settings.get_current_profile_name()).max_examples // 3, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(["mariadb", "mysql", ""]),
    st.sampled_from([1, 3]),
    st.booleans(),
    st.sampled_from([0, 2]),
    st.sampled_from(list(KINDS)),
)
def test_a_mirror_equals_its_table_or_stops_where_a_log_tells_no_order(
    seed: int, gtids: str, partitions: int, soft_delete: bool, executors: int, kind: str
) -> None:
    random = Random(seed)
    source, may_stop = Source(gtids, partitions, random), False
    with tempfile.TemporaryDirectory() as folder:
        mirror = KINDS[kind](Path(folder), executors=executors)
        follower = Follower(mirror, {"key": ["id"], "soft_delete": soft_delete})
        source.rows = {0: "v0"}
        source.read()
        land(source, follower, source.pending)
        for _ in range(random.randint(2, 14)):
            turn = random.choice(["commit"] * 6 + ["rotate", "again", "again", "failover", "lossy", "reset", "read"])
            if turn == "commit":
                source.commit()
                source.send()
            elif turn == "rotate":
                source.rotate()
            elif turn == "again":
                source.send_again()
            elif turn == "failover":
                may_stop |= not gtids
                source.fail_over()
            elif turn == "lossy" and gtids == "mariadb" and source.sent > 1:
                # Debezium asks MySQL whether it has all transactions, and ends.
                may_stop = True
                source.fail_over(loses=random.choice((1, 2)))
            elif turn == "reset":
                may_stop = True
                source.reset()
            elif turn == "read" and source.rows:
                may_stop |= partitions > 1 and (source.server > 1 or may_stop)
                source.send()
                source.read()
            try:
                land(source, follower, some(source))
                if random.random() < 0.5:
                    source.commit()
                    source.send()
                    land(source, follower, source.pending)
                    assert is_same(source, follower)
            except MirrorStopped as stop:
                assert stop.reason is StopReason.OTHER_LOG
                assert may_stop, stop
                return
