"""Completeness of a branch written by an engine, proved by all snapshots of the table since the last publication.

Sequence numbers are given without a gap, each to one snapshot of the table, on any branch. So nothing is missed if each
number since the last publication is known; the numbers of expired snapshots are in older metadata files.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from airflow_lakestream.core.publishing.branch import EnginePositions
from airflow_lakestream.core.publishing.refusals import BranchCut
from airflow_lakestream.iceberg import ledger_store

_EXPIRED = (
    "snapshots that the table got since the last publication have expired, and no metadata file that is left shows "
    "them, so they may have been the engine's"
)


def reason_incomplete(table: Table, branch: str, base: int, last: int | None, positions: EnginePositions) -> str:
    """Return the reason why the completeness of the branch is unknown; empty if the branch is complete.

    :param base: the sequence number above which the engine's snapshots are.
    :param last: the snapshot that was published last, which must be an ancestor of the branch's head.

    Raises BranchCut if the branch lacks a snapshot of the engine.
    """
    newest = ledger_store.newest_sequence(table.metadata)
    known = _KnownSnapshots(base, table.metadata.refs[branch].snapshot_id, last)
    for one in ledger_store.metadata_files(table):
        known.learn(one)
        if (lacking := known.lacking(positions)) is not None:
            raise BranchCut(ledger_store.name_of(table), branch, lacking)
        if known.is_decided and (ledger_store.newest_sequence(one) <= base or known.has_all(newest)):
            return ""
    return _EXPIRED


@dataclass
class _KnownSnapshots:
    """Snapshots above a sequence number, known from the metadata files read before."""

    base: int
    head: int
    last: int | None
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    below: set[int] = field(default_factory=set)
    parents: dict[int, int] = field(default_factory=dict)

    def learn(self, metadata: TableMetadata) -> None:
        """Add the next older file: expiry removes snapshots, and by PyIceberg the parent ids of the children."""
        for one in metadata.snapshots:
            if (one.sequence_number or 0) <= self.base:
                self.below.add(one.snapshot_id)
                continue
            self.snapshots.setdefault(one.snapshot_id, one)
            if one.parent_snapshot_id is not None:
                self.parents.setdefault(one.snapshot_id, one.parent_snapshot_id)

    def has_all(self, newest: int) -> bool:
        """Return whether each sequence number above `base` is known, up to the newest."""
        return len({one.sequence_number for one in self.snapshots.values()}) == newest - self.base

    @property
    def is_decided(self) -> bool:
        """Whether the head's ancestors are known down to the first ancestor not above `base`."""
        line, end = self._walk()
        return end == self.last if self.last is not None else end in self.below or self._lowest(line) == 1

    def lacking(self, positions: EnginePositions) -> int | None:
        """Return a snapshot of the engine certainly outside of the head's ancestors, or None."""
        line, end = self._walk()
        if self.last is not None and end != self.last and end in self.below:
            return self.last
        # Numbers fall along the parents: a snapshot below the last known ancestor may be an ancestor that has expired.
        lowest = 0 if self.is_decided else self._lowest(line)
        for one in self.snapshots.values():
            is_known = (one.sequence_number or 0) >= lowest and one.snapshot_id not in line
            if is_known and positions.is_of_line(ledger_store.summary_of(one)):
                return one.snapshot_id
        return None

    def _lowest(self, line: set[int]) -> int:
        return min((self.snapshots[one].sequence_number or 0 for one in line), default=0)

    def _walk(self) -> tuple[set[int], int | None]:
        """Return the head's ancestors above `base`, and the id of the next ancestor, or None if unknown."""
        line: set[int] = set()
        at: int | None = self.head
        while at is not None and at in self.snapshots:
            line.add(at)
            at = self.parents.get(at)
        return line, at
