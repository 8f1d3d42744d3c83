"""Random histories of an engine, publications, damage and retention: main has what the ledger says, and no less."""

from __future__ import annotations

import random
import uuid
from collections import Counter

import pytest
from pyiceberg.types import LongType

from airflow_lakestream.core.landing.plan import DataLoss
from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry, union
from airflow_lakestream.core.policies import OnDataLoss
from airflow_lakestream.core.publishing.publish import RowlessMeaning
from airflow_lakestream.core.publishing.refusals import LandedAhead, PublicationRefused
from airflow_lakestream.core.ranges import RangeSet
from tests.support.fault_log import Kind
from tests.support.publishing import BRANCH, ORDERS, TOPIC, BegunWorld, Position, SaidPositions, World, rows_of
from tests.support.replacing import offsets_of

KINDS = (Kind.DATA, Kind.DATA, Kind.DATA, Kind.MARKER, Kind.ABORTED, Kind.TOMBSTONE, Kind.HOLE)
STEPS = 16
EVENTS = (
    *("produce", "step") * 5,
    *("publish",) * 3,
    *("late", "lose") * 2,
    *("restore", "begin_again", "drop", "cut", "expire", "roll_back", "change_columns"),
)
# All others leave main as it is.
ON_MAIN = ("publish", "begin_again", "roll_back", "change_columns")


class History:
    """What happens to one world, whose engine has begun.

    :param filters: the engine's statement takes each third record only.
    :param has_line: an account is kept of the engine's jobs, as of Flink's, and not of Connect's.
    """

    def __init__(self, world: World, chance: random.Random, *, filters: bool, has_line: bool) -> None:
        self.world, self.chance, self.filters = world, chance, filters
        if not has_line:
            self.world.positions = SaidPositions(has_line=False)
        self.rowless = RowlessMeaning.FILTERED if filters else RowlessMeaning.MISSING
        self.checkpoints = [dict(self.world.at)]
        # What had landed when a column was dropped and added again has no value there.
        self.before_change: set[Position] = set()

    def is_kept(self, at: Position) -> bool:
        entry = self.world.log.partitions[at[0]].entries[at[1]]
        return entry.kind is Kind.DATA and not (self.filters and at[1] % 3)

    def produce(self) -> None:
        self.world.produce(self.chance.randrange(2), *self.chance.choices(KINDS, k=self.chance.randrange(1, 9)))

    def step(self) -> None:
        """Let the engine read and commit, to a branch off main where there is none; sometimes the driver looks on."""
        rows = [one for one in self.world.read() if self.is_kept(one)]
        if not self.world.has_branch():
            self.world.table().manage_snapshots().create_branch(self.world.heads() or 0, BRANCH).commit()
        self.world.write(rows)
        self.checkpoints.append(dict(self.world.at))
        if self.chance.random() < 0.5:
            self.world.note_passed()

    def retention(self) -> None:
        p = self.chance.randrange(2)
        log = self.world.log.partitions[p]
        self.world.log.trim(p, min(len(log.entries), log.low + self.chance.randrange(1, 6)))

    def late(self) -> None:
        """Let records leave Kafka before the engine comes to them."""
        self.produce()
        p = self.chance.randrange(2)
        end = len(self.world.log.partitions[p].entries)
        self.world.log.trim(p, self.chance.randint(min(self.world.at.get(p, 0), end), end))
        self.step()

    def restore(self) -> None:
        self.world.restore(self.chance.choice(self.checkpoints[-2:]))

    def drop(self) -> None:
        if self.world.has_branch():
            self.world.table().manage_snapshots().remove_branch(BRANCH).commit()

    def cut(self) -> None:
        """Set the branch to any snapshot that there is."""
        self.drop()
        to = self.chance.choice([one.snapshot_id for one in self.world.table().snapshots()])
        self.world.table().manage_snapshots().create_branch(to, BRANCH).commit()

    def lose(self) -> None:
        """Let the branch lose what the engine has just written, while that goes on."""
        self.produce()
        self.step()
        self.chance.choice((self.cut, self.drop))()
        self.produce()
        self.step()

    def expire(self) -> None:
        table = self.world.table()
        named = {ref.snapshot_id for ref in table.refs().values()}
        others = [one.snapshot_id for one in table.snapshots() if one.snapshot_id not in named]
        for one in self.chance.sample(others, min(len(others), 3)):
            self.world.table().maintenance.expire_snapshots().by_id(one).commit()

    def roll_back(self) -> None:
        there = {one.snapshot_id for one in self.world.table().snapshots()}
        on_main = [one.snapshot_id for one in self.world.table().history() if one.snapshot_id in there]
        self.world.table().manage_snapshots().set_current_snapshot(self.chance.choice(on_main)).commit()

    def change_columns(self) -> None:
        self.before_change |= set(self.world.rows())
        with self.world.table().update_schema() as update:
            update.delete_column("n")
        with self.world.table().update_schema() as update:
            update.add_column("n", LongType())

    def publish(self) -> None:
        """Publish; where that is refused, do what the error says, which ends with a landing of all that is there."""
        job = {"rowless": self.rowless}
        try:
            self.world.publish(**job)
        except DataLoss as error:
            self.check()
            says(error, 'on_data_loss="record"')
            self._publish_with_receipts()
        except PublicationRefused as error:
            self.check()
            self._begin_as_told(error)

    def _publish_with_receipts(self) -> None:
        try:
            self.world.publish(rowless=self.rowless, on_data_loss=OnDataLoss.RECORD)
        except PublicationRefused as error:
            self._begin_as_told(error)

    def _begin_as_told(self, error: PublicationRefused) -> None:
        says(error, "drop the branch")
        self.drop()
        self.begin_again()
        self.step()
        self.world.publish(rowless=self.rowless, on_data_loss=OnDataLoss.RECORD)
        entry = self.world.entry()
        for p, log in enumerate(self.world.log.partitions):
            assert entry.held.first_missing(TOPIC, p, entry.origin.get(p, 0)) == log.end

    def begin_again(self) -> None:
        """Start a job without state; holes below what is landed are for the extract, as the error says."""
        try:
            self.world.begin_again(on_data_loss=OnDataLoss.RECORD)
        except LandedAhead as error:
            says(error, "Run KafkaExtractOperator once")
            self._extract()
            self.world.begin_again(on_data_loss=OnDataLoss.RECORD)
        self.checkpoints = [dict(self.world.at)]

    def _extract(self) -> None:
        logs, entry = self.world.log.partitions, self.world.entry()
        lacking = union(RangeSet.of(TOPIC, p, entry.origin.get(p, 0), log.end) for p, log in enumerate(logs))
        lacking -= entry.held
        gone = lacking & union(RangeSet.of(TOPIC, p, 0, log.low) for p, log in enumerate(logs))
        rows = [one for one in offsets_of(lacking - gone) if self.is_kept(one)]
        sink = self.world.job().sink
        sink.load("extract")
        sink.write(rows_of(rows), ORDERS)
        change = TopicEntry(landed=lacking - gone, lost=gone, counts=Counts(len(rows), len(rows)))
        sink.commit(Landing(uuid.uuid4().hex, "extract", {ORDERS: change}))

    def check(self) -> None:
        """Assert that each row is a record, once, and in the ledger, and that what is landed, and kept, is a row."""
        entry, found = self.world.entry(), self.world.table().scan().to_arrow()
        rows = list(zip(found["_kafka_partition"].to_pylist(), found["_kafka_offset"].to_pylist(), strict=True))
        assert not [row for row, times in Counter(rows).items() if times > 1]
        landed = set(offsets_of(entry.landed))
        assert set(rows) == {one for one in landed if self.is_kept(one)}
        assert entry.counts.written == len(rows)
        assert {row for row, n in zip(rows, found["n"].to_pylist(), strict=True) if n is None} <= self.before_change
        assert not entry.landed & entry.lost
        gone = union(RangeSet.of(TOPIC, p, 0, log.low) for p, log in enumerate(self.world.log.partitions))
        assert not entry.lost - gone


def says(error: Exception, remedy: str) -> None:
    assert remedy in str(error)


@pytest.mark.long
@pytest.mark.parametrize(
    ("filters", "has_line"), [(True, True), (False, True), (False, False)], ids=["flink, sql", "flink", "connect"]
)
@pytest.mark.parametrize("seed", range(4))
def test_main_has_what_the_ledger_says_whatever_becomes_of_the_branch(
    begun: BegunWorld, seed: int, filters: bool, has_line: bool
) -> None:
    chance = random.Random(seed)
    history = History(begun.again(), chance, filters=filters, has_line=has_line)
    for _ in range(STEPS):
        event = chance.choice(EVENTS)
        getattr(history, event)()
        if event in ON_MAIN:
            history.check()
    history.publish()
    history.check()
