"""What has to hold in a sequence of the fault harness: the readable log equals the table, once each."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
from pyiceberg.table import Table

from airflow_lakestream.core import codec
from airflow_lakestream.core.landing.plan import first_hole, first_origin
from airflow_lakestream.core.ledger import Landing, TopicEntry
from airflow_lakestream.core.ports import TableState
from airflow_lakestream.core.ranges import RangeSet, coalesce
from airflow_lakestream.iceberg.ledger_store import read_ledger
from airflow_lakestream.iceberg.reject_table import counting_rows, pending_in, settlement_of
from tests.support.fault_log import READABLE, Entry, Kind, Shape, TopicLog
from tests.support.fault_run import Run
from tests.support.lake import assert_files_are_whole

if TYPE_CHECKING:
    from tests.support.fault_world import World

GROUP = "g"


class Violation(AssertionError):
    """Something that must never happen, with the story of the sequence up to there."""

    def __init__(self, what: str, story: Sequence[str]) -> None:
        self.what = what
        super().__init__("\n".join(["", *(f"  {line}" for line in story), what]))


@dataclass
class Promise:
    """What a run that succeeds must have seen to: its ranges are held by the ledger then.

    Void once the table is rolled back or the log loses records below a settled boundary.
    """

    ranges: RangeSet
    rollbacks: int
    changes: int


@dataclass
class Replaced:
    """A replace that was committed: the how-manieth it was, by which run, and what."""

    run: Run
    ranges: RangeSet
    snapshot_id: int | None


class Oracle:
    """Watches the runs of a world, and looks into its table."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._removed: dict[str, RangeSet] = {}
        # With the number of rollbacks until then.
        self._loaded: dict[Run, tuple[TopicEntry, int]] = {}
        self._promises: dict[Run, Promise] = {}
        self._replaces: list[Replaced] = []
        self._seen_replaces: dict[Run, int] = {}

    # Told by the runs

    @property
    def rollbacks(self) -> int:
        """How often the table was rolled back so far."""
        return self._world.rollbacks

    def loaded(self, run: Run, state: TableState, rollbacks: int) -> None:
        """Remember the books that a run is about to plan from, and how many rollbacks there were before them."""
        self._loaded[run] = state.ledger.entry(self._log(run).identity), rollbacks
        self._seen_replaces.setdefault(run, len(self._replaces))

    def looked(self, run: Run) -> None:
        """Note what a run promises once it has looked at the topic; its first look says it."""
        if run in self._promises:
            return
        log, (entry, rollbacks) = self._log(run), self._loaded[run]
        if run.asked.mode == "interval":
            # One whose interval is not covered yet promises nothing before it has written that down.
            if self._is_covered(run, entry):
                self._promises[run] = Promise(self._covered(run, entry), rollbacks, log.changes)
            return
        if run.asked.mode == "ranges":
            ranges = [RangeSet.of(log.name, *each) for each in run.asked.config["ranges"]]
        else:
            now = log.state()
            origin = entry.origin or first_origin(entry, now, {})
            ranges = [RangeSet.of(log.name, p, origin.get(p, 0), marks.end) for p, marks in now.marks.items()]
        self._promises[run] = Promise(_union(ranges), rollbacks, log.changes)

    def landed(self, run: Run, landing: Landing) -> None:
        """Note what a run promises that has just written down that its interval is covered."""
        if any(change.covered for change in landing.topics.values()):
            log = self._log(run)
            ranges = self._covered(run, self._entry(log))
            self._promises[run] = Promise(ranges, self._world.rollbacks, log.changes)

    def replaced(self, run: Run, landing: Landing) -> None:
        """Check that no run put an older decoding over a newer one."""
        ranges = _union(change.replaced for change in landing.topics.values())
        table = self._table()
        assert table is not None
        alive = set(self._world.catalog.ancestry(table.metadata.current_snapshot_id))
        for other in self._replaces[self._seen_replaces[run] :]:
            if other.run is not run and other.ranges & ranges and other.snapshot_id in alive:
                self._fail(f"run {run} replaced what #{other.run.number} had replaced after it began")
        self._replaces.append(Replaced(run, ranges, table.metadata.current_snapshot_id))

    def ended(self, run: Run) -> None:
        """Check what a run that succeeded has promised."""
        promise = self._promises.get(run)
        # Maintenance promises no offsets.
        if promise is None:
            return
        log = self._log(run)
        if "max_records" in run.asked.config:
            return
        if (promise.rollbacks, promise.changes) != (self._world.rollbacks, log.changes):
            return
        if missing := promise.ranges - self._entry(log).held:
            self._fail(f"run {run} succeeded, but {missing} is not landed")

    def _is_covered(self, run: Run, entry: TopicEntry) -> bool:
        start, end = self._interval(run)
        return any(s <= start and end <= e for s, e in entry.covered)

    def _covered(self, run: Run, entry: TopicEntry) -> RangeSet:
        """Return the offsets of the covered time around a run's interval, as the log is now."""
        log = self._log(run)
        start, end = self._interval(run)
        start, end = next(part for part in coalesce([*entry.covered, (start, end)]) if part[0] <= start < part[1])
        state = log.state()
        lows, highs = log.boundaries(state, start), log.boundaries(state, end)
        return _union(RangeSet.of(log.name, p, lows[p].offset, highs[p].offset) for p in state.marks)

    def _interval(self, run: Run) -> tuple[int, int]:
        return run.asked.config["interval_start"], run.asked.config["interval_end"]

    # Looks into the table

    def check_books(self) -> None:
        """Check that the rows are those that the ledger says, with their values; and foreign rows untouched."""
        table = self._table()
        if table is None:
            return
        rows: dict[str, dict[tuple[int, int], list[Any]]] = defaultdict(lambda: defaultdict(list))
        foreign = 0
        for row in table.scan().to_arrow().to_pylist():
            if row["n"] == -1:
                foreign += 1
            else:
                place = row["_kafka_partition"], row["_kafka_offset"]
                rows[row["_kafka_topic"]][place].append((row["n"], row["s"]))
        head = table.metadata.current_snapshot_id
        expected = sum(self._world.foreign.get(s, 0) for s in self._world.catalog.ancestry(head))
        if foreign != expected:
            self._fail(f"{foreign} foreign rows instead of {expected}")
        rejected = self._rejected(table)
        self._removed = self._removed_by_what_was_rolled_back(table)
        for topic in self._world.topics:
            name = topic.log.name
            self._check_topic(topic.log, self._entry(topic.log), rows.pop(name, {}), rejected.get(name, {}))
        if rows:
            self._fail(f"rows of unknown topics: {sorted(rows)}")

    def _rejected(self, table: Table) -> dict[str, dict[tuple[int, int], list[Any]]]:
        """Return the values of the rejected records that count."""
        found: dict[str, dict[tuple[int, int], list[Any]]] = defaultdict(lambda: defaultdict(list))
        rejects = self._world.rejects()
        for part in () if rejects is None else counting_rows(rejects, table, GROUP):
            for row in part.to_pylist():
                found[row["_kafka_topic"]][row["_kafka_partition"], row["_kafka_offset"]].append(row["value"])
        return found

    def _removed_by_what_was_rolled_back(self, table: Table) -> dict[str, RangeSet]:
        """Return by topic what landings had that are not in the table's history (any more): rejected records that were
        there before them, they have removed for good; an audit finds that, and a repair rejects them again.
        """
        catalog = self._world.catalog
        history = set(catalog.ancestry(table.metadata.current_snapshot_id))
        found: dict[str, RangeSet] = defaultdict(RangeSet)
        for snapshot_id, summary in catalog.summaries.items():
            landing = None if snapshot_id in history else codec.decode_summary(summary, GROUP, "a snapshot")
            for identity, change in landing.topics.items() if landing is not None else ():
                found[identity.topic] |= change.landed | change.replaced
        return found

    def _is_excused(self, log: TopicLog, partition: int, offset: int) -> bool:
        entries = log.partitions[partition].entries if partition < len(log.partitions) else []
        if offset >= len(entries) or _is_good(entries[offset]):
            return False
        return bool(self._removed[log.name] & RangeSet.of(log.name, partition, offset, offset + 1))

    def _check_topic(
        self,
        log: TopicLog,
        entry: TopicEntry,
        rows: dict[tuple[int, int], list[Any]],
        rejected: dict[tuple[int, int], list[Any]],
    ) -> None:
        if entry.landed & entry.lost:
            self._fail(f"landed and lost: {entry.landed & entry.lost}")
        gone = _union(RangeSet.of(log.name, p, 0, part.low) for p, part in enumerate(log.partitions))
        gone |= _union(
            RangeSet.of(log.name, p, first, end)
            for p, part in enumerate(log.partitions)
            for first, (end, _) in part.damaged.items()
        )
        if entry.lost - gone:
            self._fail(f"receipts of a loss that are none: {entry.lost - gone}")
        if entry.counts.written != sum(map(len, rows.values())):
            self._fail(f"{log.name}: {entry.counts} counted, {sum(map(len, rows.values()))} rows")
        wrong: Counter[str] = Counter()
        left = dict(rows)
        removed = 0
        for place in ((r.partition, offset) for r in entry.landed for offset in range(r.from_offset, r.until_offset)):
            found, kept = left.pop(place, []), rejected.get(place, [])
            if not found and not kept and self._is_excused(log, *place):
                removed += 1
            elif problem := self._place_problem(log, entry, place, found, kept):
                wrong[f"{log.name}[{place[0]}] {place[1]} {problem}"] += 1
        if wrong:
            self._fail("; ".join(sorted(wrong)))
        there = sum(map(len, rejected.values()))
        if not there <= entry.counts.rejected <= there + removed:
            self._fail(f"{log.name}: {entry.counts} counted, {there} are rejected, {removed} may have been removed")
        if left:
            self._fail(f"{log.name}: rows that the ledger does not hold: {sorted(left)}")

    def _place_problem(
        self, log: TopicLog, entry: TopicEntry, place: tuple[int, int], found: list[Any], kept: list[Any]
    ) -> str:
        """Return what is wrong with an offset, or an empty text; one with a receipt was old, and has no row."""
        if not entry.forgotten & RangeSet.of(log.name, *place, place[1] + 1):
            return _problem(log, *place, found, kept)
        if found or kept:
            return f"has a receipt, and {found} or {kept}"
        was_old = log.partitions[place[0]].entries[place[1]].at_ms < self._world.upkeep.cutoff_ms
        return "" if was_old else "has a receipt, and was not old"

    def check_nothing_is_left(self) -> None:
        """Check after the last run: from origin to end all is landed or has a receipt, and the mirror is right."""
        for topic in self._world.topics:
            log = topic.log
            entry = self._entry(log)
            for p, part in enumerate(log.partitions):
                wanted = RangeSet.of(log.name, p, entry.origin.get(p, 0), part.end)
                if missing := wanted - entry.held:
                    self._fail(f"never landed: {missing}")
            holes = {p: first_hole(entry, log.identity, p) for p in range(len(log.partitions))}
            if (committed := dict(topic.committed(GROUP))) != holes:
                self._fail(f"{log.name}: the group's offsets are {committed} instead of {holes}")

    def check_no_reject_is_over(self) -> None:
        """Check after the last runs that the reject table has what counts, and nothing else but what may yet land."""
        table, rejects = self._table(), self._world.rejects()
        if table is None or rejects is None:
            return
        settlement = settlement_of(pending_in(rejects), table)
        rows = rejects.scan().to_arrow()
        rows = rows.filter(pc.invert(settlement.undecided(rows))).to_pylist()
        places = [(row["_kafka_topic"], row["_kafka_partition"], row["_kafka_offset"]) for row in rows]
        # What was rolled back, and then lost to retention, has its last copy here.
        landed = {topic.log.name: self._entry(topic.log).landed for topic in self._world.topics}
        there = Counter(place for place in places if landed[place[0]] & RangeSet.of(*place, place[2] + 1))
        counting = Counter(
            (topic, *place)
            for topic, places in self._rejected(table).items()
            for place, values in places.items()
            for _ in values
        )
        if there != counting:
            self._fail(f"rejected records that do not count: {sorted((there - counting).elements())}")

    def check_files(self) -> None:
        """Check that no file lacks that a snapshot needs, and that none is over where nothing was killed or unsure."""
        for table in (self._table(), self._world.rejects()):
            try:
                if table is not None:
                    assert_files_are_whole(table, leftovers_of_a_kill=self._world.leftovers)
            except AssertionError as e:
                raise Violation(f"{table}: {e}", self._world.story) from e

    def _table(self) -> Table | None:
        return self._world.table()

    def _entry(self, log: TopicLog) -> TopicEntry:
        table = self._table()
        return TopicEntry() if table is None else read_ledger(table, GROUP).entry(log.identity)

    def _log(self, run: Run) -> TopicLog:
        return next(topic.log for topic in self._world.topics if topic.log.name == run.asked.topic)

    def _fail(self, what: str) -> None:
        raise Violation(what, self._world.story)


def _problem(log: TopicLog, partition: int, offset: int, found: list[Any], rejected: list[Any]) -> str:
    if partition >= len(log.partitions) or offset >= len(log.partitions[partition].entries):
        return "is landed, but was never written"
    entry = log.partitions[partition].entries[offset]
    if entry.kind is Kind.OPEN:
        return "is landed, but its transaction is open"
    # What compaction took may have landed before.
    allowed = (1,) if entry.kind in READABLE else (0, 1) if entry.kind is Kind.HOLE else (0,)
    if len(found) + len(rejected) not in allowed:
        return f"({entry.kind}) is there {len(found)} times, and {len(rejected)} times rejected"
    if found and found[0] != entry.row:
        return f"is {found[0]} instead of {entry.row}"
    if rejected and rejected[0] != entry.value:
        return f"is rejected with the value {rejected[0]!r} instead of {entry.value!r}"
    if (found and _is_bad(entry)) or (rejected and _is_good(entry)):
        return f"({entry.shape}, {entry.at_ms} ms) is {'a row' if found else 'rejected'}"
    return ""


def _is_bad(entry: Entry) -> bool:
    """Tell whether an entry is a row for no run."""
    return not entry.has_a_place_in_time or (entry.shape is Shape.BAD and entry.number is not None)


def _is_good(entry: Entry) -> bool:
    """Tell whether an entry is a row for every run; tombstones are for some."""
    return entry.has_a_place_in_time and entry.shape is Shape.GOOD and entry.number is not None


def _union(sets: Any) -> RangeSet:
    total = RangeSet()
    for one in sets:
        total |= one
    return total
