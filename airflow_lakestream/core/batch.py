"""What a run has read since its last commit, and when that is enough."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, replace

from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry, union
from airflow_lakestream.core.pieces import Files, Piece
from airflow_lakestream.core.plan import Plan
from airflow_lakestream.core.ports import Chunk
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.core.records import RawBatch


@dataclass(frozen=True, slots=True)
class Limits:
    """When a run commits, and when it ends."""

    max_records: int | None = None
    max_batch_bytes: int = 256 * 2**20
    checkpoint_interval: float = 60.0
    idle_timeout: float = 0.0


class Batch:
    """What has been read since the last commit."""

    def __init__(self, plan: Plan, *, first: bool = True) -> None:
        self.plan = plan
        self._first = first
        self._covered: list[OffsetRange] = []
        self.records = 0
        self.pieces: list[Piece] = []
        self._bytes = 0
        self._since = time.monotonic()

    def add(self, chunk: Chunk) -> None:
        """Count a chunk whose rows the sink has taken."""
        self._covered.append(chunk.covers)
        self.records += len(chunk.batch)
        self._bytes += chunk.size

    def take(self, piece: Piece) -> None:
        """Count a piece that another worker has read, and whose files the sink has taken."""
        self.pieces.append(piece)
        self.records += piece.counts.read

    def is_due(self, limits: Limits) -> bool:
        """Tell whether it is time to commit."""
        return self._bytes >= limits.max_batch_bytes or self.age >= limits.checkpoint_interval

    @property
    def age(self) -> float:
        """Seconds since the last commit."""
        return time.monotonic() - self._since

    @property
    def covers_anything(self) -> bool:
        """Whether there is anything to hand over, rows or not."""
        return bool(self._covered)

    @property
    def changes_the_ledger(self) -> bool:
        """Whether there is anything to commit, rows or not."""
        return bool(self._covered or self.pieces) or (self._first and bool(self.plan.lost or self.plan.origin))

    def landing(self, run_id: str, *, is_last: bool = False) -> Landing:
        """Return the change that committing this batch makes to the ledger; the plan's last one adds covered time."""
        handed = sum((piece.counts for piece in self.pieces), Counts())
        own = self.records - handed.read
        # Origin and loss receipts go with the first commit: what they say holds from there on.
        entry = TopicEntry(
            landed=RangeSet(self._covered) | union(piece.ranges for piece in self.pieces),
            lost=self.plan.lost if self._first else RangeSet(),
            counts=Counts(read=own, written=own) + handed,
            origin=self.plan.origin if self._first else {},
            epochs=self._epochs(),
            covered=(self.plan.covered,) if is_last and self.plan.covered else (),
        )
        return Landing(uuid.uuid4().hex, run_id, {self.plan.state.identity: entry})

    def piece(self, files: Files) -> Piece:
        """Return this batch as a piece to be handed over, with its files."""
        counts = Counts(read=self.records, written=self.records)
        return Piece(self.plan.state.identity, RangeSet(self._covered), counts, self.plan.epochs, files)

    def _epochs(self) -> dict[int, int]:
        # Those before a piece was read: an unclean election after it has to be seen by whoever reads on.
        epochs = dict(self.plan.epochs)
        for piece in self.pieces:
            for partition, epoch in piece.epochs.items():
                epochs[partition] = min(epoch, epochs.get(partition, epoch))
        return epochs

    def next(self) -> Batch:
        """Return the empty batch that follows a commit of this one."""
        return Batch(self.plan, first=False)


def at_most(chunk: Chunk, count: int | None) -> Chunk:
    """Cut a chunk to its first `count` records; it then ends behind the last of them."""
    if count is None or len(chunk.batch) <= count:
        return chunk
    head = first_records(chunk.batch, count)
    return Chunk(replace(chunk.covers, until_offset=head.offsets[-1] + 1), head, chunk.size)


def first_records(batch: RawBatch, count: int) -> RawBatch:
    """Return the first `count` records."""
    return replace(
        batch,
        offsets=batch.offsets[:count],
        timestamps=batch.timestamps[:count],
        values=batch.values[:count],
        keys=batch.keys and batch.keys[:count],
        headers=batch.headers and batch.headers[:count],
    )
