"""Rewriting of file groups by child processes: each process writes the new files of a group, and this process commits.

Each process needs the memory of a compaction by one. This process names the new files, and deletes those of a killed
process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFile
from pyiceberg.table.sorting import SortOrder

from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.iceberg.upkeep.compaction import FileRewriter, RewriteInterrupted, RewrittenGroup, Written
from airflow_lakestream.iceberg.upkeep.compaction_plan import FileGroup
from airflow_lakestream.iceberg.write.files import delete_files
from airflow_lakestream.iceberg.write.handover import IcebergOutline
from airflow_lakestream.runtime.processes import PATIENCE, ChildFailure, ChildPipe, ChildProcesses, ProcessDied

# Seconds between two looks whether the caller asked to end.
STOP_INTERVAL = 0.5
_STOP = "stop"


class RewriterDied(LakestreamError, Transient):
    """End of a process that rewrote files."""

    def __init__(self, location: str, error: ProcessDied) -> None:
        super().__init__(
            f"The compaction of {location} ended: {error.ending}. Groups of files that were committed stay, new files "
            "that were not are deleted. Run it again; if memory is short, with compact={'parallelism': 1}."
        )


@dataclass(frozen=True)
class RewriteOrder:
    """Order to a process to rewrite a group of a table's files; `paths` are the locations of the new files."""

    outline: IcebergOutline
    order: SortOrder
    group: FileGroup
    paths: Sequence[str]


@dataclass
class PooledRewriting:
    """Rewriting of a table's groups by processes.

    `busy` has the orders in work by process, `done` the groups written and not yielded yet.

    :param children: processes for `serve`.
    """

    children: ChildProcesses
    busy: dict[int, RewriteOrder] = field(default_factory=dict)
    done: list[RewrittenGroup] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)

    def rewrite(self, rewriter: FileRewriter, groups: Sequence[FileGroup]) -> Written:
        """Yield each group as soon as its files are written; files of groups that are not yielded are deleted.

        Raises RewriteInterrupted after the last group that was written when the caller asked to end, RewriterDied,
        and the errors of a process.
        """
        outline, waiting = IcebergOutline("", rewriter.metadata, rewriter.io).without_history(), [*reversed(groups)]
        try:
            while (waiting or self.busy) and not self.errors and not rewriter.is_over():
                for number in range(len(self.children)):
                    if waiting and number not in self.busy:
                        group = waiting.pop()
                        self._send(number, RewriteOrder(outline, rewriter.order, group, rewriter.paths(group)))
                self._receive(STOP_INTERVAL)
                yield from self._written()
            if self.errors:
                raise self.errors[0]
            if waiting or self.busy:
                self._stop()
                yield from self._written()
                raise RewriteInterrupted
        finally:
            self._stop()
            delete_files(rewriter.io, [file.file_path for rewritten in self.done for file in rewritten.new])

    def _written(self) -> Iterator[RewrittenGroup]:
        """Yield the groups in `done`, and forget them."""
        while self.done:
            yield self.done.pop()

    def _send(self, number: int, order: RewriteOrder) -> None:
        self.busy[number] = order
        self.children.send(number, order)

    def _receive(self, timeout: float) -> None:
        """Receive answers for `timeout` seconds, and keep written groups and errors."""
        try:
            answers = self.children.receive(list(self.busy), timeout)
        except ProcessDied as e:
            self.errors.append(RewriterDied(self._lose(e.number), e))
            return
        for number, answer in answers:
            order = self.busy.pop(number)
            if isinstance(answer, ChildFailure):
                self.errors.append(answer.error)
            elif answer is not None:
                self.done.append(RewrittenGroup(order.group, answer))

    def _lose(self, number: int) -> str:
        """Delete the files of a dead process; return the table's location."""
        order = self.busy.pop(number)
        delete_files(order.outline.io, order.paths)
        return order.outline.metadata.location

    def _stop(self) -> None:
        """Wait until no process works; a process that does not stop in time is killed."""
        deadline = time.monotonic() + PATIENCE
        for number in self.busy:
            self.children.send(number, _STOP)
        while self.busy:
            if (patience := deadline - time.monotonic()) > 0:
                self._receive(patience)
                continue
            number = min(self.busy)
            self.children.kill(number)
            self._lose(number)


class RewriterProcess:
    """A child process: rewrites groups by orders of the parent."""

    def __init__(self, child: ChildPipe) -> None:
        self._child, self._stop = child, threading.Event()

    def serve(self) -> None:
        """Send the new files of each order, None after a stop, or the error, until the parent is gone."""
        for order in self._child.requests(self._hear):
            try:
                answer: object = self._rewritten(order)
            except RewriteInterrupted:
                answer = None
            except Exception as e:  # noqa: BLE001  # the parent raises it
                answer = ChildFailure(e)
            try:
                self._child.send(answer)
            except OSError:
                # The parent is gone, and nobody commits the files.
                delete_files(order.outline.io, order.paths)

    def _rewritten(self, order: RewriteOrder) -> list[DataFile]:
        outline = order.outline
        rewriter = FileRewriter(outline.metadata, outline.io, order.order, self._stop.is_set)
        return rewriter.rewrite(order.group, order.paths).new

    def _hear(self, message: object) -> bool:
        """Note a stop, in the listening thread; return whether the message was a stop, and not an order."""
        if isinstance(message, RewriteOrder):
            self._stop = threading.Event()
            return False
        self._stop.set()
        return True


def serve(child: ChildPipe) -> None:
    """Rewrite groups, until the parent needs no more."""
    RewriterProcess(child).serve()
