"""What goes wrong between a run and its table: catalogs, file systems and readers that fail at a chosen moment.

Each wraps the real thing, which does all the work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import OutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import CommitTableResponse, Table

from airflow_lakestream.core.landing.plan import Plan, TopicState
from airflow_lakestream.core.ledger import Landing, TopicIdentity
from airflow_lakestream.core.ports import RecordChunk, RecordReader, Rows, Sink, TableState, TopicSource

Apply = Callable[[], CommitTableResponse]
Fault = Callable[[Apply], CommitTableResponse]


class ReadTimeout(Exception):
    """What an HTTP client raises when no answer came: the request may have been applied, or may yet be."""


FAILED = CommitFailedException("somebody else was quicker")
TIMEOUT = ReadTimeout("no answer within 60 s")
# What a sink is told of a commit, whatever became of it.
ERRORS = pytest.mark.parametrize("error", [FAILED, TIMEOUT], ids=["reported as failed", "timed out"])


def unapplied(error: Exception) -> Fault:
    """Fail a commit that is never applied."""

    def fault(apply: Apply) -> CommitTableResponse:
        raise error

    return fault


def applied(error: Exception) -> Fault:
    """Apply a commit, and report an error all the same."""

    def fault(apply: Apply) -> CommitTableResponse:
        apply()
        raise error

    return fault


def twice(apply: Apply) -> CommitTableResponse:
    """Apply a commit, and ask again, as a client does that has lost the answer."""
    apply()
    return apply()


def before(action: Callable[[], object]) -> Fault:
    """Do something right before a commit, as another writer would."""

    def fault(apply: Apply) -> CommitTableResponse:
        action()
        return apply()

    return fault


def after(action: Callable[[], object]) -> Fault:
    """Do something right after a commit."""

    def fault(apply: Apply) -> CommitTableResponse:
        response = apply()
        action()
        return response

    return fault


def passed(apply: Apply) -> CommitTableResponse:
    """Let a commit through."""
    return apply()


class WrappedCatalog:
    """A catalog that hands everything on to the real one."""

    def __init__(self, catalog: Catalog) -> None:
        self.real = catalog

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class FaultyCatalog(WrappedCatalog):
    """Meets the first commits with the given faults, one after the other; later ones go through, or all to `then`."""

    def __init__(self, catalog: Catalog, *faults: Fault, then: Fault = passed) -> None:
        super().__init__(catalog)
        self._faults = list(faults)
        self._then = then
        self.commits = 0

    def commit_table(self, *request: Any) -> CommitTableResponse:
        self.commits += 1
        fault = self._faults.pop(0) if self._faults else self._then
        return fault(lambda: self.real.commit_table(*request))


class LateCatalog(WrappedCatalog):
    """Reports an error for the first commit, and applies it before the `delay`-th call that follows."""

    def __init__(self, catalog: Catalog, error: Exception, delay: int) -> None:
        super().__init__(catalog)
        self._error = error
        self._delay = delay
        self._pending: tuple[Any, ...] | None = None
        self._given_up = False
        self.was_applied = False

    def commit_table(self, *request: Any) -> CommitTableResponse:
        if not self._given_up:
            self._given_up, self._pending = True, request
            raise self._error
        self.let_time_pass()
        return self.real.commit_table(*request)

    def load_table(self, identifier: Any) -> Table:
        self.let_time_pass()
        return self.real.load_table(identifier)

    def let_time_pass(self) -> None:
        """Come one call nearer to the moment when the request is applied."""
        if self._pending is None:
            return
        self._delay -= 1
        if self._delay <= 0:
            self.apply_now()

    def apply_now(self) -> None:
        """Apply the request, unless the table has changed so that it is refused."""
        request, self._pending = self._pending, None
        if request is not None:
            try:
                self.real.commit_table(*request)
                self.was_applied = True
            except CommitFailedException:
                pass


class CatalogDown(Exception):
    """Nobody listens at the catalog's address."""


class DyingCatalog(WrappedCatalog):
    """Goes down with the first commit, for good: `applied` says whether it still did that one."""

    def __init__(self, catalog: Catalog, *, applied: bool) -> None:
        super().__init__(catalog)
        self._applied = applied
        self._down = False

    def __getattr__(self, name: str) -> Any:
        if self._down:
            raise CatalogDown
        return super().__getattr__(name)

    def commit_table(self, *request: Any) -> CommitTableResponse:
        if not self._down and self._applied:
            self.real.commit_table(*request)
        self._down = True
        raise CatalogDown


class WatchedFileIO(PyArrowFileIO):
    """A file system that tells `watcher` of each file before it is written; the watcher may raise, or kill.

    Selection by the catalog's property py-io-impl, so the watcher stands on the class: one test at a time sets it.
    """

    watcher: Callable[[str], object] | None = None

    def new_output(self, location: str) -> Any:
        output: OutputFile = super().new_output(location)
        if WatchedFileIO.watcher is not None:
            WatchedFileIO.watcher(location)
        return output


class WrappedSink:
    """A sink that hands everything on to the real one."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def load(self, run_id: str) -> TableState:
        return self._sink.load(run_id)

    def write(self, rows: Rows, identity: TopicIdentity) -> None:
        self._sink.write(rows, identity)

    def pass_over(self, identity: TopicIdentity, partition: int, offsets: Any) -> None:
        self._sink.pass_over(identity, partition, offsets)

    def commit(self, landing: Landing) -> int:
        return self._sink.commit(landing)

    def replace(self, landing: Landing) -> tuple[int, Landing]:
        return self._sink.replace(landing)

    def discard(self) -> None:
        self._sink.discard()

    def schema_changes(self, snapshot_id: int) -> Sequence[str]:
        return self._sink.schema_changes(snapshot_id)


class InterposedSink(WrappedSink):
    """Does something between the reading and the first commit, be it an append or a replace."""

    def __init__(self, sink: Sink, action: Callable[[], object]) -> None:
        super().__init__(sink)
        self._action: Callable[[], object] | None = action

    def commit(self, landing: Landing) -> int:
        self._act()
        return self._sink.commit(landing)

    def replace(self, landing: Landing) -> tuple[int, Landing]:
        self._act()
        return self._sink.replace(landing)

    def _act(self) -> None:
        action, self._action = self._action, None
        if action is not None:
            action()


class SmallChunks:
    """A reader that cuts the real one's chunks down to so many records, as a large topic would give them."""

    def __init__(self, reader: RecordReader, records: int) -> None:
        self._reader = reader
        self._records = records

    def read(self, plan: Plan, cancelled: threading.Event) -> Iterator[RecordChunk]:
        for chunk in self._reader.read(plan, cancelled):
            yield from self._cut(chunk)

    def _cut(self, chunk: RecordChunk) -> Iterator[RecordChunk]:
        batch, covers = chunk.batch, chunk.covers
        at = covers.from_offset
        for start in range(0, max(1, len(batch)), self._records):
            is_last = start + self._records >= len(batch)
            piece = batch.cut(slice(start, start + self._records))
            until = covers.until_offset if is_last else batch.offsets[start + self._records]
            size = piece.values.total_values_length
            yield RecordChunk(replace(covers, from_offset=at, until_offset=until), piece, size)
            at = until


class OnlyPartitions:
    """A reader that passes over all but some partitions of the plan."""

    def __init__(self, reader: RecordReader, partitions: Sequence[int]) -> None:
        self._reader = reader
        self._partitions = partitions

    def read(self, plan: Plan, cancelled: threading.Event) -> Iterator[RecordChunk]:
        return (chunk for chunk in self._reader.read(plan, cancelled) if chunk.covers.partition in self._partitions)


class InterposedReader:
    """Does something once so many chunks have been handed on."""

    def __init__(self, reader: RecordReader, action: Callable[[], object], chunks: int = 1) -> None:
        self._reader = reader
        self._action = action
        self._chunks = chunks

    def read(self, plan: Plan, cancelled: threading.Event) -> Iterator[RecordChunk]:
        for number, chunk in enumerate(self._reader.read(plan, cancelled), start=1):
            yield chunk
            if number == self._chunks:
                self._action()


class WrappedSource:
    """A source that hands everything on to the real one."""

    def __init__(self, source: TopicSource) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


class InterposedSource(WrappedSource):
    """Does something before the looks with the given numbers, counted from 1."""

    def __init__(self, source: TopicSource, action: Callable[[], object], *looks: int) -> None:
        super().__init__(source)
        self._action = action
        self._when = looks
        self.looks = 0

    def look(self) -> TopicState:
        self.looks += 1
        if self.looks in self._when:
            self._action()
        return self._source.look()
