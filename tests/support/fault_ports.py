"""The ports and the catalog of a run under the fault harness: the real ones, with the run's boundaries around them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import CommitTableResponse, Table

from airflow_lakestream.core.landing.plan import Plan, TopicState
from airflow_lakestream.core.ports import (
    RecordChunk,
    RecordDecoder,
    RecordReader,
    TableState,
    TimeBoundary,
    TopicSource,
)
from tests.support.fault_run import (
    APPLIED_DOWN,
    APPLIED_REFUSED,
    APPLIED_TIMED_OUT,
    COMMIT_FAULTS,
    DOWN,
    LATE,
    LOST,
    REFUSED,
    TIMED_OUT,
    Run,
)
from tests.support.fault_turns import Killed
from tests.support.faults import CatalogDown, ReadTimeout, WrappedCatalog, WrappedSource


class RunFileIO(PyArrowFileIO):
    """A file system as one run sees it."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def new_output(self, location: str) -> Any:
        self._run.at("data file" if location.endswith(".parquet") else "manifest")
        self._run.files.append(location)
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

    def __init__(self, source: TopicSource, run: Run, looked: Callable[[Run], object]) -> None:
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

    def boundaries(self, state: TopicState, at_ms: int) -> Mapping[int, TimeBoundary]:
        self._run.at("boundaries")
        return self._source.boundaries(state, at_ms)

    def commit_offsets(self, offsets: Mapping[int, int]) -> None:
        if self._run.at("mirror") != LOST:
            self._source.commit_offsets(offsets)


class RunReader:
    """A reader that does what happens in the middle of a read."""

    def __init__(self, reader: RecordReader, run: Run) -> None:
        self._reader = reader
        self._run = run

    def read(self, plan: Plan, cancelled: threading.Event) -> Generator[RecordChunk, None, None]:
        for number, chunk in enumerate(self._reader.read(plan, cancelled)):
            if number == 1:
                self._run.midway()
            yield chunk


class RunDecoders:
    """Decoders as one run sees them; asked for right before each read."""

    def __init__(self, decoders: Any, run: Run) -> None:
        self._decoders = decoders
        self._run = run

    def __call__(self, schema: Any, first: Any) -> RecordDecoder | None:
        if first is None:
            self._run.at("read")
        decoder = self._decoders(schema, first)
        return decoder and _RunDecoder(decoder, self._run)

    def keeps_for_later(self, first: Any) -> bool:
        return bool(self._decoders.keeps_for_later(first))


class _RunDecoder:
    def __init__(self, decoder: RecordDecoder, run: Run) -> None:
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
        # A load gives the turn away more than once: the books may be from before what others did meanwhile.
        rollbacks = self._watch.rollbacks
        state = self._sink.load(run_id)
        self._watch.loaded(self._run, state, rollbacks)
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
