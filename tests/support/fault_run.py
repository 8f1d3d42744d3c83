"""One run of the package under the fault harness: its ports and its catalog, with a boundary at each step.

At a boundary the run's fate is asked: it goes on, gives the turn to others (it may be gone on with later, as the zombie
of a try that everybody took for dead), fails, or is killed. A killed run has no effect any more: neither on the
catalog nor on files, not even by cleaning up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import CommitTableResponse, Table

from airflow_lakestream.core.landing import Job, land
from airflow_lakestream.core.plan import Plan, TopicState
from airflow_lakestream.core.ports import Boundary, Chunk, Decoder, Reader, Source, TableState
from airflow_lakestream.core.report import LandingReport
from airflow_lakestream.exceptions import LakestreamError, Transient
from tests.support.fault_turns import Killed, Turn
from tests.support.faults import CatalogDown, ReadTimeout, WrappedCatalog, WrappedSource

PAUSE, KILL, FAIL = "pause", "kill", "fail"
TRIM, LOST = "retention meanwhile", "not written"
REFUSED, TIMED_OUT = "refused", "timed out"
APPLIED_REFUSED, APPLIED_TIMED_OUT = "applied, reported as refused", "applied, timed out"
LATE, DOWN, APPLIED_DOWN = "timed out, applied later", "catalog down", "applied, catalog down"
COMMIT_FAULTS = (REFUSED, TIMED_OUT, APPLIED_REFUSED, APPLIED_TIMED_OUT, LATE, DOWN, APPLIED_DOWN)
# What can happen at which boundary.
POINTS: Mapping[str, Sequence[str]] = {
    "load": (PAUSE, KILL, FAIL),
    "look": (PAUSE, KILL, FAIL),
    "boundaries": (PAUSE, KILL, FAIL),
    "read": (PAUSE, PAUSE, KILL, FAIL, TRIM),
    "decode": (FAIL,),
    "write": (PAUSE, KILL, FAIL),
    "data file": (KILL, FAIL),
    "manifest": (KILL, FAIL),
    "identity": (PAUSE, KILL, FAIL),
    "commit": (PAUSE, PAUSE, PAUSE, KILL, *COMMIT_FAULTS),
    "committed": (PAUSE, KILL),
    "mirror": (PAUSE, KILL, LOST),
}


class InjectedFault(LakestreamError, Transient):
    """What a port raises when its boundary is told to fail."""


class InjectedDiskFault(OSError):
    """What a file system raises when its boundary is told to fail."""


@dataclass
class Fate:
    """What happens to a run, and when: at the `count`-th time that it comes to `point`."""

    point: str = ""
    count: int = 1
    what: str = ""

    def at(self, point: str) -> str:
        """Return what happens at a boundary: nothing, most of the time."""
        if point != self.point:
            return ""
        self.count -= 1
        return self.what if self.count == 0 else ""

    def __str__(self) -> str:
        return f"{self.what} at {self.point} {self.count}" if self.what else "goes through"


class PausesEverywhere(Fate):
    """A run among others that are gone on with in turns; now and then, as `chance` says, it gives the turn away."""

    def __init__(self, chance: Callable[[], bool]) -> None:
        super().__init__()
        self._chance = chance

    def at(self, point: str) -> str:
        return PAUSE if PAUSE in POINTS[point] and self._chance() else ""


@dataclass(frozen=True)
class Asked:
    """What a run was asked to do; clearing or retrying it asks the same again."""

    run_id: str
    topic: str
    config: Mapping[str, Any]

    @property
    def mode(self) -> str:
        return str(self.config["mode"])

    def __str__(self) -> str:
        told = {k: v for k, v in self.config.items() if k not in ("mode", "schema", "table_properties")}
        return f"{self.run_id} {self.topic} {self.mode} {told}"


class Run:
    """One try of a run. `go_on` lets it run to its next pause or to its end."""

    def __init__(self, number: int, asked: Asked, fate: Fate, trim: Callable[[], object]) -> None:
        self.number, self.asked, self.fate = number, asked, fate
        self.job: Job | None = None
        self.report: LandingReport | None = None
        self.error: BaseException | None = None
        self.dead = self.down = False
        self.met_commit_fault = self.trims_midway = False
        # A request that the catalog was sent, and has not decided upon yet.
        self.pending: Callable[[], object] | None = None
        self._trim = trim
        self._turn = Turn(self._land)

    @property
    def is_over(self) -> bool:
        return self._turn.is_over

    def go_on(self) -> None:
        self._turn.go_on()

    def at(self, point: str) -> str:
        """Meet a boundary: return what is to happen there, if that is for the caller to do. May pause or raise."""
        if self.dead:
            raise Killed
        what = self.fate.at(point)
        if what == PAUSE:
            assert self._turn.is_this_thread(), point
            self._turn.pause()
            return self.at(point) if self.fate.point == point else ""
        if what == KILL:
            self.dead = True
            raise Killed
        if what == FAIL:
            if point in ("data file", "manifest"):
                raise InjectedDiskFault(f"{point}: no space left")
            raise InjectedFault(f"{point} failed")
        if what == TRIM:
            self.trims_midway = True
        return what

    def midway(self) -> None:
        """Do what happens in the middle of a read."""
        if self.trims_midway:
            self.trims_midway = False
            self._trim()

    def _land(self) -> None:
        assert self.job is not None
        try:
            self.report = land(self.job)
        except BaseException as e:  # noqa: BLE001  # judged by whoever has the turn next
            self.error = e

    def __str__(self) -> str:
        return f"#{self.number} ({self.asked})"


class RunFileIO(PyArrowFileIO):
    """A file system as one run sees it."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def new_output(self, location: str) -> Any:
        self._run.at("data file" if location.endswith(".parquet") else "manifest")
        return super().new_output(location)

    def delete(self, location: Any) -> None:
        if not self._run.dead:
            super().delete(location)


class RunCatalog(WrappedCatalog):
    """A catalog as one run sees it."""

    def __init__(self, catalog: Catalog, run: Run) -> None:
        super().__init__(catalog)
        self._run = run
        self._io = RunFileIO(run)

    def __getattr__(self, name: str) -> Any:
        self._reach()
        return super().__getattr__(name)

    def _reach(self) -> None:
        if self._run.dead:
            raise Killed
        if self._run.down:
            raise CatalogDown

    def load_table(self, identifier: Any) -> Table:
        self._run.at("load")
        self._reach()
        table = self.real.load_table(identifier)
        table.io = self._io
        return table

    def create_table_transaction(self, *args: Any, **options: Any) -> Any:
        self._reach()
        transaction = self.real.create_table_transaction(*args, **options)
        transaction._table.io = self._io
        return transaction

    def commit_table(self, *request: Any) -> CommitTableResponse:
        run = self._run
        what = run.at("commit")
        self._reach()
        run.met_commit_fault |= what in COMMIT_FAULTS
        if what == REFUSED:
            raise CommitFailedException("somebody else was quicker")
        if what == TIMED_OUT:
            raise ReadTimeout
        if what == LATE:
            run.pending = lambda: self.real.commit_table(*request)
            raise ReadTimeout
        if what == DOWN:
            run.down = True
            raise CatalogDown
        response = self.real.commit_table(*request)
        if what == APPLIED_REFUSED:
            raise CommitFailedException("somebody else was quicker")
        if what == APPLIED_TIMED_OUT:
            raise ReadTimeout
        if what == APPLIED_DOWN:
            run.down = True
            raise CatalogDown
        run.at("committed")
        return response


class RunSource(WrappedSource):
    """A topic as one run sees it; `looked` is told of each look."""

    def __init__(self, source: Source, run: Run, looked: Callable[[Run], object]) -> None:
        super().__init__(source)
        self._run = run
        self._looked = looked

    def look(self) -> TopicState:
        self._run.at("look")
        state = self._source.look()
        self._looked(self._run)
        return state

    def identity(self) -> Any:
        self._run.at("identity")
        return self._source.identity()

    def boundaries(self, state: TopicState, at_ms: int) -> Mapping[int, Boundary]:
        self._run.at("boundaries")
        return self._source.boundaries(state, at_ms)

    def mirror(self, offsets: Mapping[int, int]) -> None:
        if self._run.at("mirror") != LOST:
            self._source.mirror(offsets)


class RunReader:
    """A reader that does what happens in the middle of a read."""

    def __init__(self, reader: Reader, run: Run) -> None:
        self._reader = reader
        self._run = run

    def read(self, plan: Plan, cancelled: threading.Event) -> Generator[Chunk, None, None]:
        for number, chunk in enumerate(self._reader.read(plan, cancelled)):
            if number == 1:
                self._run.midway()
            yield chunk


class RunDecoders:
    """Decoders as one run sees them; asked for right before each read."""

    def __init__(self, decoders: Any, run: Run) -> None:
        self._decoders = decoders
        self._run = run

    def __call__(self, schema: Any, first: Any) -> Decoder | None:
        if first is None:
            self._run.at("read")
        decoder = self._decoders(schema, first)
        return decoder and _RunDecoder(decoder, self._run)


class _RunDecoder:
    def __init__(self, decoder: Decoder, run: Run) -> None:
        self._decoder = decoder
        self._run = run

    def decode(self, batch: Any) -> Any:
        self._run.at("decode")
        return self._decoder.decode(batch)


class RunSink:
    """A sink as one run sees it; `watch` is told of what it loaded and landed."""

    def __init__(self, sink: Any, run: Run, watch: Any) -> None:
        self._sink = sink
        self._run = run
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def load(self, run_id: str) -> TableState:
        state = self._sink.load(run_id)
        self._watch.loaded(self._run, state)
        return state

    def write(self, *rows: Any, **more: Any) -> None:
        self._run.at("write")
        self._sink.write(*rows, **more)

    def commit(self, landing: Any) -> int:
        snapshot_id = self._sink.commit(landing)
        self._watch.landed(self._run, landing)
        return snapshot_id

    def replace(self, landing: Any) -> Any:
        done = self._sink.replace(landing)
        self._watch.replaced(self._run, done[1])
        return done

    def discard(self) -> None:
        if not self._run.dead:
            self._sink.discard()
