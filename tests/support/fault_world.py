"""A sequence of the fault harness: what people, schedulers and other tools do, at random, to one table.

Two topics are landed in it by the package's own code; every choice comes from the `Random` that is given, so a seed
says all. What went wrong is a `Violation`, with the whole story in it. What has to hold is in `fault_oracle`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table import Table

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.landing.job import Contention
from airflow_lakestream.core.landing.plan import DamagedBatch, DataLoss, RangesGone
from airflow_lakestream.core.ports import CannotReplace, ReplacedMeanwhile
from airflow_lakestream.iceberg.commit.committing import CommitOutcomeUnknown, CommitRefused
from airflow_lakestream.iceberg.upkeep.ledger_edit import EditNotDone
from airflow_lakestream.run.job import build_job
from airflow_lakestream.tables.rejects.settlement import rejects_of
from tests.support.fault_catalog import HarnessCatalog
from tests.support.fault_log import EPOCH_MS, FIRST_MS
from tests.support.fault_oracle import GROUP, Oracle, Violation
from tests.support.fault_outside import ODD_PROPERTIES, Outside
from tests.support.fault_ports import RunCatalog, RunDecoders, RunSink, RunSource
from tests.support.fault_run import POINTS, Asked, Fate, InjectedDiskFault, InjectedFault, PausesEverywhere, Run
from tests.support.fault_topics import ModelKafka, Topic
from tests.support.fault_turns import Killed
from tests.support.fault_upkeep import MAINTAIN, Upkeep
from tests.support.faults import CatalogDown, ReadTimeout
from tests.support.lake import QUICK_RETRIES

TILE_MS = 100
LAST = {"mode": "resume", "on_data_loss": "record", "max_rejected": 1.0}
TILES = 6
# What a run may end in though nothing is wrong with the package. A commit's outcome is unknown only after a fault.
EXPECTED = (InjectedFault, InjectedDiskFault, CatalogDown, ReadTimeout, DataLoss, RangesGone, CannotReplace)
EXPECTED += (ReplacedMeanwhile,)


class World:
    """One sequence. `play` does all of it."""

    def __init__(self, random: Random, catalog: HarnessCatalog, kafka: ModelKafka, namespace: str) -> None:
        self.random, self.catalog = random, catalog
        self.name = f"{namespace}.events"
        self.story: list[str] = []
        self.topics = [kafka.topic(name, index, random.randint(1, 2)) for index, name in enumerate("ab")]
        self.runs: list[Run] = []
        self.foreign: dict[int, int] = {}
        self.rollbacks = 0
        self._numbers = itertools.count()
        keep = random.choice(["all", "all", "1000", "2", "4"])
        self.properties = {**QUICK_RETRIES, "lakestream.snapshots.keep": keep}
        self.properties["commit.retry.num-retries"] = random.choice(["4", "4", "0"])
        self.properties |= random.choice([{}, *ODD_PROPERTIES])
        self.outside = Outside(self)
        self.upkeep = Upkeep(self)
        # A third of the sequences is longer, and mostly of maintenance.
        self.is_of_upkeep = random.random() < 0.33
        self.tell(f"table properties {self.properties}")
        self.oracle = Oracle(self)
        self.leftovers = keep in ("2", "4")

    # The sequence

    def play(self) -> None:
        """Play it to its end. Raises Violation."""
        actions = self._actions()
        for topic in self.topics:
            self.outside.produce(topic)
        try:
            for _ in range(self.random.randint(8, 15) * (2 if self.is_of_upkeep else 1)):
                self.random.choice(actions)()
            self.settle()
        except Violation:
            raise
        except Exception as e:
            raise Violation(f"the harness itself failed: {e!r}", self.story) from e
        finally:
            for run in self.alive:
                run.dead = True
                run.go_on()

    def _actions(self) -> list[Callable[[], object]]:
        weights: Mapping[Callable[[], object], int] = {
            self.outside.produce: 6,
            self.outside.produce_in_transaction: 3,
            self.start: 8,
            self.try_again: 5,
            self.go_on: 5,
            self.backfill: 3,
            self.outside.roll_back: 2,
            self.outside.expire: 2,
            self.outside.compact: 2,
            self.outside.append_foreign: 2,
            self.outside.add_partition: 1,
            self.outside.trim: 2,
            self.outside.compact_log: 1,
            self.outside.damage: 1,
            self.outside.evolve: 1,
            self.outside.forget_damaged: 1,
            self.upkeep.maintain: 40 if self.is_of_upkeep else 3,
            self.upkeep.tag: 3 if self.is_of_upkeep else 1,
            self.late_request: 2,
        }
        return [action for action, weight in weights.items() for _ in range(weight)]

    def tell(self, what: str) -> None:
        self.story.append(what)

    @property
    def alive(self) -> list[Run]:
        """The runs that have begun and are not over."""
        return [run for run in self.runs if not run.is_over]

    def topic(self) -> Topic:
        return self.random.choice(self.topics)

    # Runs

    def start(self) -> Run | None:
        topic = self.topic()
        mode = self.random.choice(["resume", "resume", "interval", "interval", "ranges"])
        config: dict[str, Any] = {"mode": mode}
        if mode == "interval":
            first = self.random.randrange(TILES)
            config |= self._interval(first, first + self.random.choice([1, 1, 2]))
            if self.random.random() < 0.1:
                config |= {"interval_start": self.random.choice([-1, -2, -3, -5_000, FIRST_MS])}
        if mode == "ranges":
            ranges = self._ranges(topic)
            if not ranges:
                return None
            config |= {"ranges": ranges}
        if mode != "resume" and self.random.random() < 0.4:
            config |= {"replace": True}
        elif self.random.random() < 0.15:
            config |= {"max_records": self.random.randint(1, 6)}
        return self._begin(self._asked(topic, config), self.fate())

    def backfill(self) -> None:
        """Run the intervals of a time in parallel, as Airflow's backfill does, each going on at random."""
        topic = self.topic()
        count = self.random.randint(2, 4)
        first = self.random.randrange(TILES - count + 1)
        tiles = [
            self._asked(topic, {"mode": "interval"} | self._interval(n, n + 1)) for n in range(first, first + count)
        ]
        if self.random.random() < 0.3:
            # The live DAG beside it.
            tiles.append(self._asked(topic, {"mode": "resume"}))
        if self.random.random() < 0.3:
            tiles.append(self.random.choice(tiles))
        self.random.shuffle(tiles)
        chance = self.random.choice([0.2, 0.5, 1.0])
        runs = [self._begin(tile, PausesEverywhere(lambda: self.random.random() < chance)) for tile in tiles]
        stay = self.random.random() < 0.2
        while going := [run for run in runs if not run.is_over]:
            if stay and len(going) == 1:
                return
            self._go_on(self.random.choice(going))
            if self.random.random() < 0.05:
                self.outside.produce(topic)

    def try_again(self) -> None:
        """Retry or clear a run: the same again, though the try before may be alive."""
        if self.runs and len(self.alive) < 5:
            before = self.random.choice(self.runs[-4:])
            if before.asked.mode == MAINTAIN:
                self.upkeep.begin(before.asked)
            else:
                self._begin(before.asked, self.fate())

    def go_on(self) -> None:
        """Let a run go on that everybody took for dead."""
        if self.alive:
            run = self.random.choice(self.alive)
            run.fate = self.fate()
            self.tell(f"run #{run.number} goes on: {run.fate}")
            self._go_on(run)

    def late_request(self) -> None:
        """Let the catalog apply a request that it was sent long ago."""
        waiting = [run for run in self.runs if run.pending is not None]
        if waiting:
            self._apply_late(self.random.choice(waiting))

    def _apply_late(self, run: Run) -> None:
        request, run.pending = run.pending, None
        assert request is not None
        try:
            request()
            self.tell(f"a late request of #{run.number} is applied")
        except (CommitFailedException, TableAlreadyExistsError):
            self.tell(f"a late request of #{run.number} is refused")
        except ValueError as e:
            # Rolled back to its base: main is where it asserts it to be, and its sequence number is taken.
            if "sequence number" not in str(e):
                raise
            self.tell(f"a late request of #{run.number} is refused for its sequence number")

    def _interval(self, first: int, last: int) -> dict[str, Any]:
        return {"interval_start": EPOCH_MS + first * TILE_MS, "interval_end": EPOCH_MS + last * TILE_MS}

    def _ranges(self, topic: Topic) -> list[list[int]]:
        ranges = []
        for partition, log in enumerate(topic.log.partitions):
            if log.end and self.random.random() < 0.7:
                start = self.random.randrange(log.end)
                ranges.append([partition, start, self.random.randint(start + 1, log.end)])
        return ranges

    def _asked(self, topic: Topic, config: dict[str, Any]) -> Asked:
        config["on_data_loss"] = self.random.choice(["fail", "record"])
        # Some commit each chunk of theirs.
        config["max_batch_bytes"] = self.random.choice(["1", "256MiB", "256MiB"])
        # What is bad is drawn, and of some runs it is most.
        config["max_rejected"] = 1.0
        # What is a row for one run is a bad record for another.
        config["unknown_fields"] = self.random.choice(["ignore", "fail"])
        config["tombstones"] = self.random.choice(["keep", "keep", "reject"])
        return Asked(f"r{next(self._numbers)}", topic.log.name, config)

    def fate(self, points: Sequence[str] = tuple(sorted(POINTS))) -> Fate:
        """Draw what happens to a run.

        :param points: the boundaries that the sequence reaches.
        """
        if self.random.random() < 0.4:
            return Fate()
        point = self.random.choice(points)
        return Fate(point, self.random.choice([1, 1, 1, 2, 3]), self.random.choice(POINTS[point]))

    def _begin(self, asked: Asked, fate: Fate) -> Run:
        topic = next(t for t in self.topics if t.log.name == asked.topic)
        run = Run(len(self.runs), asked, fate, lambda: self.outside.trim_midway(topic))
        config = ExtractConfig(
            topic=asked.topic,
            table=self.name,
            consumer_group=GROUP,
            schema="n bigint, s struct<a: bigint not null>",
            table_properties=self.properties,
            **asked.config,
        )
        job = build_job(config, topic.client_config(), RunCatalog(self.catalog, run), run_id=asked.run_id)
        source, reader = topic.ports(job, run, self.random.randint(1, 4))
        run.job = replace(
            job,
            source=RunSource(source, run, self.oracle.looked),
            reader=reader,
            decoders=RunDecoders(job.decoders, run),
            sink=RunSink(job.sink, run, self.oracle),
            # One process: threads here go on one at a time, as the seed says.
            children=None,
        )
        self.begin(run)
        return run

    def begin(self, run: Run) -> None:
        """Let a run begin beside those that are alive."""
        for other in self.alive:
            other.beside += 1
            run.beside += 1
        self.runs.append(run)
        self.tell(f"run {run} {run.fate}")
        self._go_on(run)

    def _go_on(self, run: Run) -> None:
        run.go_on()
        if not run.is_over:
            self.tell(f"run #{run.number} waits")
            return
        self.tell(f"run #{run.number} ended: {run.error!r}" if run.error else f"run #{run.number} succeeded")
        self.leftovers |= isinstance(run.error, Killed | CommitOutcomeUnknown) or run.met_commit_fault
        if run.asked.mode == MAINTAIN:
            # Files that a killed or an overtaken work has written, and those that an expiry could not delete.
            self.leftovers = True
        if run.error is None:
            self.oracle.ended(run)
        elif not (isinstance(run.error, (Killed, *EXPECTED)) or self._may_end_so(run)):
            raise Violation(f"run {run} ended in {run.error!r}", self.story) from run.error

    def _may_end_so(self, run: Run) -> bool:
        if isinstance(run.error, CommitOutcomeUnknown):
            return run.met_commit_fault
        if run.asked.mode == MAINTAIN:
            return isinstance(run.error, EditNotDone) and (run.met_commit_fault or run.beside > 1)
        # Others may keep getting in first, and pauses between the tries take no time here. Beside one, no run gives up.
        if isinstance(run.error, (Contention, CommitRefused)):
            return run.beside > 1
        return isinstance(run.error, DamagedBatch) and self._is_damage(run, run.error)

    def _is_damage(self, run: Run, error: DamagedBatch) -> bool:
        """Tell whether a run names a damaged batch, and was not told to go on without it."""
        (named,) = error.ranges
        log = next(topic.log for topic in self.topics if topic.log.name == named.topic)
        _, is_refused = log.partitions[named.partition].damaged[named.from_offset]
        # A replace has rows to lose.
        return not (is_refused and run.asked.config["on_data_loss"] == "record") or "replace" in run.asked.config

    def table(self) -> Table | None:
        return self._load(self.name)

    def rejects(self) -> Table | None:
        """Return the reject table, if there is one by now."""
        return self._load(rejects_of(self.name))

    def _load(self, name: str) -> Table | None:
        try:
            return self.catalog.load_table(name)
        except NoSuchTableError:
            return None

    # The end

    def settle(self) -> None:
        """Let everything come to its end, and land what is left: then all must be there, once each."""
        for run in list(self.alive):
            run.fate = Fate()
            if self.random.random() < 0.3:
                run.dead = True
            self.tell(f"run #{run.number} {'dies' if run.dead else 'goes on to its end'}")
            self._go_on(run)
        for topic in self.topics:
            if topic.transaction is not None:
                topic.end_transaction(True, self.outside.now())
        for run in self.runs:
            if run.pending is not None:
                self._apply_late(run)
        self.oracle.check_books()
        # The second ones find nothing to land, and remove the rejected records that the first ones brought anew.
        for topic in (*self.topics, *self.topics):
            self.outside.forget_damaged(topic)
            config = {"mode": "resume", "on_data_loss": "record", "max_rejected": 1.0}
            last = self._begin(Asked("last", topic.log.name, config), Fate())
            if last.error is not None:
                raise Violation(f"the last run ended in {last.error!r}", self.story) from last.error
        self.oracle.check_books()
        self.oracle.check_nothing_is_left()
        self.oracle.check_no_reject_is_over()
        self.oracle.check_files()
        self.upkeep.check_tags()
        self.upkeep.check_no_orphan_is_left()
        self.oracle.check_books()
