"""A landing read by several child processes: each reads a share of the plan, and the landing commits.

Like the tasks of a group, the processes hand over pieces. The files become the landing's own at once: it commits them
when a limit is reached, like files that it wrote itself, and deletes them when it fails.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_lakestream.core.bad_records import BadRecords
from airflow_lakestream.core.landing.batch import Batch
from airflow_lakestream.core.landing.job import LandingJob, Stopped, read_in_turn, take
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.landing.run_log import ReadProgress
from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.ports import or_discard
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.core.records import Rows
from airflow_lakestream.core.sharing.pieces import PlanShare, SharePiece, at_most_offsets, split
from airflow_lakestream.runtime.processes import PATIENCE, ChildFailure, ChildPipe, ChildProcesses

log = logging.getLogger(__name__)

# With fewer offsets per process one process is faster: each has to connect to Kafka.
LEAST_WIDTH = 100_000
# Rejected records that a process keeps before it hands them over.
MOST_REJECTED = 20_000
# Seconds between two looks at `stop`, since a signal's handler sets this event without waking a thread.
STOP_INTERVAL = 0.5
_HAND_OVER = "hand over"
_STOP = "stop"


@dataclass(frozen=True)
class ReadOrder:
    """Order to a process to read a share.

    :param run_id: the run of the landing.
    :param target: the outline of the table by the landing's sink.
    :param folder: the folder for the files, below the table's data.
    """

    run_id: str
    share: PlanShare
    target: Any
    folder: str


@dataclass(frozen=True)
class _ChildProgress:
    """Message of a child after a chunk: the offsets, the counts, the bad records and the bytes."""

    covers: OffsetRange
    counts: Counts
    bad: BadRecords
    size: int


@dataclass(frozen=True)
class _PieceMessage:
    """A piece with rejected records, or None; `asked`: the landing asked for the piece."""

    piece: SharePiece | None
    rejected: Sequence[Rows]
    asked: bool


@dataclass(frozen=True)
class _EndMessage:
    """The process has no more to hand over for this order."""


# The pieces for a commit, and whether they are the last ones.
Round = tuple[list[SharePiece], bool]
# Returns whether to commit now: from the records, the bad records and the bytes read since the last commit.
IsDue = Callable[[int, BadRecords, int], bool]


def is_worth_sharing(job: LandingJob, plan: Plan) -> bool:
    """Return whether child processes should read the plan.

    False without children, after a child was killed or died, for fewer than 2 * LEAST_WIDTH offsets, and for a
    careful job, which reads in its own process.
    """
    if job.careful:
        return False
    return job.children is not None and not job.children.are_broken and plan.ranges.width >= 2 * LEAST_WIDTH


def read_by_children(
    job: LandingJob, plan: Plan, done: RangeSet, most: int | None, is_due: IsDue
) -> Generator[Round, None, None]:
    """Read a plan by child processes; the sink has then taken all files of the pieces.

    Yields (pieces, whether they are the last ones): whenever a commit is due, and when all is read. The caller commits
    after each yield. Leaving early stops the processes, and waits until they have deleted what they did not hand over.

    Raises Stopped, ProcessDied, and errors of reading, decoding and writing.

    :param done: the offsets of the plan already read.
    :param most: most records to read; None for all.
    :param is_due: returns whether to commit, from the records read since the last commit, the bad records and the
        bytes.
    """
    assert job.children is not None, "`is_worth_sharing` was asked before"
    ranges = plan.ranges - done
    if most is not None:
        ranges = at_most_offsets(ranges, most)
    yield from _ShareReading(job, job.children, is_due, plan.state.identity.topic, most).read(
        [PlanShare.of(plan, part) for part in split(ranges, len(job.children), LEAST_WIDTH)]
    )


@dataclass
class _ShareReading:
    """Shares in work; `busy` are the children still reading, `awaited` the children asked to hand over.

    `pieces` are handed over and not yielded yet. `records`, `bad` and `size` count the reads since the last yield.
    """

    job: LandingJob
    children: ChildProcesses
    is_due: IsDue
    topic: str
    most: int | None
    folder: str = field(default_factory=lambda: f"lakestream-{uuid.uuid4().hex[:24]}")
    busy: set[int] = field(default_factory=set)
    awaited: set[int] | None = None
    pieces: list[SharePiece] = field(default_factory=list)
    records: int = 0
    bad: BadRecords = BadRecords()
    size: int = 0

    def read(self, shares: Sequence[PlanShare]) -> Generator[Round, None, None]:
        """Yield pieces like `read_by_children`: send each child an order, and receive messages until all have ended."""
        target = self.job.shared.outline()
        progress = ReadProgress(self.topic, sum(share.ranges.width for share in shares), self.most)
        try:
            for number, share in enumerate(shares):
                log.debug("Process %s reads %s offsets: %s", number, share.ranges.width, share.ranges)
                self.children.send(number, ReadOrder(self.job.run_id, share, target, self.folder))
                self.busy.add(number)
            while self.busy:
                for number, message in self._receive():
                    self._take(number, message, progress)
                # A limit is reached: ask all busy children to hand over, and yield once all have answered.
                if self.awaited is None and self.is_due(self.records, self.bad, self.size):
                    self.awaited = set(self.busy)
                    for number in self.busy:
                        self.children.send(number, _HAND_OVER)
                if self.busy and self.awaited is not None and not self.awaited:
                    yield self.pieces, False
                    self.pieces, self.awaited = [], None
                    self.records, self.bad, self.size = 0, BadRecords(), 0
        finally:
            self._abandon()
        yield self.pieces, True

    def _receive(self) -> Iterator[tuple[int, Any]]:
        """Yield each message with the child's number. Raises Stopped, and a child's error."""
        if self.job.stop.is_set():
            raise Stopped
        for number, message in self.children.receive(sorted(self.busy), STOP_INTERVAL):
            if isinstance(message, ChildFailure):
                self.busy.discard(number)
                raise message.error
            yield number, message

    def _take(self, number: int, message: object, progress: ReadProgress) -> None:
        """Count a child's progress, keep its piece, or note its end."""
        if isinstance(message, _ChildProgress):
            self.records += message.counts.read
            self.bad += message.bad
            self.size += message.size
            progress.add(message.covers, message.counts.read)
        elif isinstance(message, _PieceMessage):
            self._take_over(message)
            self.pieces += [message.piece] if message.piece is not None else []
            if message.asked and self.awaited is not None:
                self.awaited.discard(number)
        elif isinstance(message, _EndMessage):
            self.busy.discard(number)
            if self.awaited is not None:
                self.awaited.discard(number)

    def _take_over(self, handed: _PieceMessage) -> None:
        """Give a child's files to the sink, and its rejected records to the reject store."""
        if handed.piece is not None:
            self.job.shared.take_over(handed.piece.files)
        for records in handed.rejected:
            assert self.job.rejects is not None, "the children have the job's reject settings"
            self.job.rejects.reject(records)

    def _abandon(self) -> None:
        """Stop the busy children, and delete the files of killed children; never raises.

        A child that does not stop within PATIENCE seconds is killed.
        """
        deadline = time.monotonic() + PATIENCE
        for number in self.busy:
            self.children.send(number, _STOP)
        while self.busy:
            number = min(self.busy)
            if not self._has_stopped(number, max(0.0, deadline - time.monotonic())):
                continue
            self.busy.discard(number)
        if self.children.are_broken:
            # No process knows the files that a killed process had written.
            self.job.shared.sweep(self.folder)

    def _has_stopped(self, number: int, patience: float) -> bool:
        """Receive a child's next messages; return whether it has ended. After `patience` seconds, kill it."""
        try:
            answers = self.children.receive([number], patience)
        except Exception as e:  # noqa: BLE001  # the child process is dead, and its first error is raised
            log.info("%s", e)
            return True
        for _, message in answers:
            if isinstance(message, _PieceMessage) and message.piece is not None:
                # Handed over before the stop was read: deleted with all files that this run has not committed.
                self.job.shared.take_over(message.piece.files)
            if isinstance(message, _EndMessage | ChildFailure):
                return True
        # The time is over, and nothing came from the child.
        if patience == 0.0 and not answers:
            log.warning("Reader process %s does not stop. It is killed.", number)
            self.children.kill(number)
            return True
        return False


class _RejectBuffer:
    """`core.ports.RejectStore` of a child process: keeps the records until the piece is handed over."""

    def __init__(self) -> None:
        self.tables: list[Rows] = []

    def reject(self, records: Rows) -> None:
        """Keep the records."""
        self.tables.append(records)

    def __len__(self) -> int:
        return sum(map(len, self.tables))

    def take(self) -> list[Rows]:
        """Return the kept records, and empty the buffer."""
        tables, self.tables = self.tables, []
        return tables


class ReaderProcess:
    """A child process: reads shares by order of the parent, until the parent needs no more or is gone.

    :param make_job: makes the job for an order; the event stops the job
    """

    def __init__(self, child: ChildPipe, make_job: Callable[[ReadOrder, threading.Event], LandingJob]) -> None:
        self._child = child
        self._make_job = make_job
        self._stop = threading.Event()
        self._hand_over = threading.Event()

    def serve(self) -> None:
        """Read shares by the parent's orders, until the parent is gone or this process has to end.

        An error of an order is sent to the parent, and the next order is awaited.
        """
        for order in self._child.requests(self._hear):
            try:
                self._read(order)
                answer: object = _EndMessage()
            except Exception as e:  # noqa: BLE001  # raised in the parent
                answer = ChildFailure(e)
            try:
                self._child.send(answer)
            except OSError:
                log.debug("No process receives %s any more", answer)

    def _hear(self, message: object) -> bool:
        """Note a signal in the listening thread, and return True; return False for an order, left to `serve`."""
        if isinstance(message, ReadOrder):
            # Set here, in the listening thread: a stop may arrive before its order is begun.
            self._stop, self._hand_over = threading.Event(), threading.Event()
            return False
        (self._hand_over if message == _HAND_OVER else self._stop).set()
        return True

    def _read(self, order: ReadOrder) -> None:
        rejects = _RejectBuffer()
        job = replace(self._make_job(order, self._stop), rejects=rejects)
        with or_discard(job.sink):
            self._read_share(job, order, rejects)

    def _read_share(self, job: LandingJob, order: ReadOrder, rejects: _RejectBuffer) -> None:
        """Read a share; send a piece when the parent asks, when many records are rejected, and at the end."""
        share = order.share
        table = job.sink.load(order.run_id)
        job.shared.write_below(order.folder)
        batch = Batch(share.plan)
        decoder = job.decoders(table.schema, None)
        assert decoder is not None, "the table exists, so it has a schema"
        with closing(read_in_turn(job, batch.plan, decoder)) as results:
            for chunk in results:
                take(job.sink, job.rejects, batch, chunk)
                self._child.send(_ChildProgress(chunk.covers, chunk.counts, chunk.bad, chunk.size))
                is_asked = self._hand_over.is_set()
                if is_asked or len(rejects) >= MOST_REJECTED:
                    self._hand_over.clear()
                    batch = self._pass_on(job, batch, rejects, asked=is_asked)
        self._pass_on(job, batch, rejects, asked=False)

    def _pass_on(self, job: LandingJob, batch: Batch, kept: _RejectBuffer, *, asked: bool) -> Batch:
        """Send the batch as a piece with the rejected records; return the next batch. `asked`: the parent asked."""
        piece = batch.piece(job.shared.hand_over()) if batch.covers_anything else None
        self._child.send(_PieceMessage(piece, kept.take(), asked))
        # The parent has taken the files: an error from here on must not delete them.
        job.shared.let_go()
        return batch.next()
