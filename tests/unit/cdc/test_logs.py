"""Binary logs that follow each other: a mirror is its table after a failover and `RESET MASTER`, or it stops."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.events.log_state import LogState
from airflow_lakestream.cdc.events.logs import BinaryLogs
from airflow_lakestream.cdc.stops import MirrorStopped, StopReason
from airflow_lakestream.cdc.swap import is_other_log
from airflow_lakestream.core.routing import MIRROR
from airflow_lakestream.tables.design import TableDesign
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
            # Of several partitions one may not tell that the log began again, and a truncation is of all rows.
            if self.partitions == 1 and self.random.random() < 0.05:
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


@dataclass
class Play:
    """A random history, and its mirror."""

    source: Source
    follower: Follower
    # Whether something has happened that no GTID tells the order of.
    may_stop: bool = False
    has_read: bool = False

    def turn(self) -> None:
        """Let something happen, and land some of what was sent, or all of it."""
        source, random = self.source, self.source.random
        kinds = ["commit"] * 6 + ["rotate", "again", "again", "fail_over", "lose", "reset", "read"]
        getattr(self, f"_{random.choice(kinds)}")()
        land(source, self.follower, some(source))
        if random.random() < 0.5:
            self._commit()
            land(source, self.follower, source.pending)
            assert is_same(source, self.follower)

    def _commit(self) -> None:
        self.source.commit()
        self.source.send()

    def _rotate(self) -> None:
        self.source.rotate()

    def _again(self) -> None:
        self.source.send_again()

    def _fail_over(self) -> None:
        # Rows that a snapshot has read in another partition have no GTID.
        self.may_stop |= not self.source.gtids or (self.has_read and self.source.partitions > 1)
        self.source.fail_over()

    def _lose(self) -> None:
        # MariaDB refuses a GTID that it does not have, and Debezium asks MySQL for all of them: this is one more look.
        if self.source.gtids == "mariadb" and self.source.partitions == 1 and self.source.sent > 1:
            self.may_stop = True
            self.source.fail_over(loses=self.source.random.choice((1, 2)))

    def _reset(self) -> None:
        self.may_stop = True
        self.source.reset()

    def _read(self) -> None:
        self.may_stop |= self.source.partitions > 1 and self.source.server > 1
        if self.source.rows:
            self.has_read = True
            self.source.send()
            self.source.read()


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
    with tempfile.TemporaryDirectory() as folder:
        settled = {"key": ["id"], "soft_delete": soft_delete}
        follower = Follower(KINDS[kind](Path(folder), executors=executors), settled)
        play = Play(Source(gtids, partitions, random, rows={0: "v0"}), follower)
        play.source.read()
        land(play.source, follower, play.source.pending)
        try:
            for _ in range(random.randint(2, 14)):
                play.turn()
        except MirrorStopped as stop:
            if stop.reason is not StopReason.OTHER_LOG or not play.may_stop:
                raise


@pytest.fixture(params=KINDS)
def follower(request: pytest.FixtureRequest, tmp_path: Path) -> Follower:
    return Follower(KINDS[request.param](tmp_path, executors=1), {"key": ["id"]})


def begun(gtids: str, follower: Follower) -> Source:
    """Return a source whose log has reached its third file, all of which has landed."""
    source = Source(gtids, 1, Random(1), rows={0: "v0"})
    source.read()
    for _ in range(3):
        for _ in range(4):
            source.commit()
        source.rotate()
    source.send()
    land(source, follower, source.pending)
    assert is_same(source, follower)
    return source


@pytest.mark.parametrize("gtids", ["mariadb", "mysql"])
def test_with_gtids_a_mirror_follows_another_server_and_what_it_sends_again(gtids: str, follower: Follower) -> None:
    source = begun(gtids, follower)
    for _ in range(3):
        source.server, source.file, source.byte = source.server + 1, 1, 4
        held, source.log = source.log[-3:], []
        for one in held:
            source._write(one)
        # The last two transactions of the server before come once more, from the new one's log.
        source.sent = 1
        source.send()
        land(source, follower, source.pending)
        assert is_same(source, follower)
        for _ in range(3):
            source.commit()
            source.send()
            source.send_again()
            land(source, follower, source.pending)
            assert is_same(source, follower)


@pytest.mark.parametrize("gtids", ["mariadb", "mysql", ""])
def test_a_log_that_begins_again_stops_the_mirror_with_what_to_do(gtids: str, follower: Follower) -> None:
    source = begun(gtids, follower)
    source.reset()
    source.commit()
    source.send()
    match = r"offset \d+: the event was committed after all .* mirror resnapshot.* \[other-log\]"
    with pytest.raises(MirrorStopped, match=match):
        land(source, follower, source.pending)


def test_a_log_that_begins_again_right_behind_a_snapshot_stops_the_mirror(follower: Follower) -> None:
    source = Source("", 1, Random(1), rows={0: "v0"}, file=3)
    source.read()
    land(source, follower, source.pending)
    source.reset()
    source.commit()
    source.send()
    with pytest.raises(MirrorStopped, match=r"was committed after all that came before"):
        land(source, follower, source.pending)


def test_a_server_that_never_got_the_last_transaction_stops_the_mirror(follower: Follower) -> None:
    source = begun("mariadb", follower)
    source.fail_over(loses=1)
    # No place tells it: the log of the other server is longer.
    source.file = 9
    source.commit()
    source.send()
    with pytest.raises(MirrorStopped, match="has a GTID that another server's transaction had"):
        land(source, follower, source.pending)


def test_without_gtids_another_server_stops_the_mirror(follower: Follower) -> None:
    source = begun("", follower)
    source.server = 2
    source.commit()
    source.send()
    with pytest.raises(MirrorStopped, match="comes from another server, and has no GTID"):
        land(source, follower, source.pending)


@pytest.mark.parametrize("gtids", ["mariadb", "mysql", ""])
def test_a_snapshot_of_a_log_that_began_again_replaces_the_rows(gtids: str, follower: Follower) -> None:
    source = begun(gtids, follower)
    source.reset()
    source.rows = {7: "new", 8: "newer"}
    source.read()
    for _ in range(3):
        source.commit()
    source.send()
    land(source, follower, source.pending)
    assert is_same(source, follower)


@pytest.mark.parametrize("gtids", ["mariadb", "mysql", ""])
def test_what_a_connector_sends_again_is_late_as_ever(gtids: str, follower: Follower) -> None:
    source = begun(gtids, follower)
    for first in (0, 5, 11):
        source.pending += [record for one in source.log[first:] for record in source._records(one)][first:]
        land(source, follower, source.pending)
        assert is_same(source, follower)


@pytest.mark.parametrize(("before", "after"), [(100, 50), (0, 50), (50, 100)])
def test_memory_and_marks_of_another_log_do_not_count_once_the_table_was_read_again(before: int, after: int) -> None:
    held = replace(
        MirrorDesign(TableDesign(metadata=pa.schema([]))),
        logs=BinaryLogs({"t 0": LogState(place=before)} if before else {}),
    )
    aside = {MIRROR: json.dumps({"logs": BinaryLogs({"t 0": LogState(place=after)}).to_note()})}
    assert is_other_log(aside, held) is (before != 50)
    # Of a log that is none: nothing is said of it.
    assert not is_other_log({MIRROR: "{}"}, held)
