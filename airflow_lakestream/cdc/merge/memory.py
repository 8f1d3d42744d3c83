"""A mirror's memory of deleted rows: entries in the table `<table>__deleted` next to the mirror.

Without it a late event, older than the deletion of its row, would bring the row back. An entry is a fact of the
source's history, true even if the landing that wrote it fails. So it is written before the mirror's commit, and
writing it twice does no harm. A truncation is an entry without a key, and so is the mark of a snapshot.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import COMMIT, OFFSET, PARTITION, POSITION, TIME, VERSION, version_schema
from airflow_lakestream.cdc.keys.identity import by_place, greatest_of_each, places
from airflow_lakestream.cdc.keys.ties import PartitionTies
from airflow_lakestream.cdc.merge.snapshots import Version, by_version, cut_of, is_later, is_mark, versions
from airflow_lakestream.cdc.rows import VersionCut
from airflow_lakestream.core.ledger import Landing, Ledger, TopicIdentity, union
from airflow_lakestream.core.names import DELETED
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.core.ports import or_discard
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.decode.connect.unavailable import Mask
from airflow_lakestream.tables.coordinates import is_within
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.columns import to_schema
from airflow_lakestream.tables.sink import TableSink

SUFFIX = DELETED
# Column with the deleted row as an Arrow IPC stream, only for the last event of a partition: the next event may create
# the row again under another key, without the values that did not change.
ROW = "_row"
# Table property with the mirror's own id: entries of an earlier mirror of the same name have another id.
MIRROR_ID = "lakestream.mirror-uuid"
# The reason of a conflict, if the mirror has another id than at the look before a merge.
REPLACED = "all rows of the mirror were replaced"

# The entries have a ledger without any topic: the guard makes their commits safe, not the offsets.
ENTRIES_GROUP = "mirror"
NO_TOPIC = TopicIdentity("", "", "")


@dataclass(frozen=True)
class MirrorMemory:
    """A mirror's memory as read by a merge.

    :param key: the columns of the mirror's key.
    :param entries: the entries of landed events.
    :param ahead: the entries of events that are not landed: a landing failed after it wrote them, or the mirror was
        rolled back. These events come with a later landing, which decides with all events before them.
    """

    key: tuple[str, ...]
    entries: pa.Table | None
    ahead: pa.Table | None = None

    @classmethod
    def of(cls, key: tuple[str, ...], entries: pa.Table | None, read_landed: Callable[[], RangeSet]) -> MirrorMemory:
        """Return the memory at a head.

        :param read_landed: returns the offsets that the head's ledgers hold.
        """
        if entries is None or not len(entries):
            return cls(key, entries)
        landed = pa.array(_is_landed(entries, read_landed()))
        return cls(key, entries.filter(landed), entries.filter(pc.invert(landed)))

    @cached_property
    def truncated(self) -> Version | None:
        """The last known truncation, or None. A snapshot counts as a truncation."""
        return max((cut_of(version) if is_mark(version) else version for version in self._without_key), default=None)

    @property
    def snapshots(self) -> Sequence[Version]:
        """The marks of all known snapshots."""
        return [version for version in self._without_key if is_mark(version)]

    @cached_property
    def _without_key(self) -> Sequence[Version]:
        """The versions of truncations, and the marks of snapshots."""
        return [] if self.entries is None else versions(self.entries.filter(self.entries[self.key[0]].is_null()))

    def is_dead(self, rows: pa.Table, ties: PartitionTies | None = None) -> Mask:
        """Return a mask of the rows with a deletion of the key after the row's version.

        :param ties: checks the order of rows and deletions, if given; raises MirrorStopped.
        """
        dead = np.zeros(len(rows), np.bool_)
        if self.entries is None or not len(rows):
            return dead
        entries = self.entries.filter(self.entries[self.key[0]].is_valid())
        if not len(entries):
            return dead
        last = last_of_each(entries, self.key)
        indices = places(rows, last, self.key)
        with_deletion = np.flatnonzero(indices >= 0)
        deletions, deleted_rows = last.take(pa.array(indices[with_deletion])), rows.take(pa.array(with_deletion))
        if ties is not None:
            ties.check(deleted_rows, deletions)
        dead[with_deletion] = is_later(deletions, deleted_rows)
        return dead

    def deletions(self, keys: pa.Table) -> pa.Table:
        """Return all known deletions of some keys."""
        if self.entries is None:
            return keys.slice(0, 0)
        return self.entries.filter(pa.array(places(self.entries, keys, self.key) >= 0))

    def knows_deletion(self, row: pa.Table) -> bool:
        """Return whether a row's key was deleted at or after the row's place in the source."""
        if self._every is None:
            return False
        entries = self._every.filter(self._every[self.key[0]].is_valid())
        own_entries = entries.filter(pa.array(places(entries, row.select(list(self.key)), self.key) >= 0))
        place = (row[COMMIT][0].as_py(), row[POSITION][0].as_py())
        return any(
            deletion >= place
            for deletion in zip(own_entries[COMMIT].to_pylist(), own_entries[POSITION].to_pylist(), strict=True)
        )

    def cuts(self, new: Sequence[VersionCut] = ()) -> list[VersionCut]:
        """Return all known truncations with their times, also new ones; a snapshot counts as a truncation."""
        if self.entries is None or TIME not in self.entries.column_names:
            return list(new)
        times = self.entries.filter(self.entries[self.key[0]].is_null())[TIME].to_pylist()
        timed = zip(self._without_key, times, strict=True)
        return [*(VersionCut(cut_of(version) if is_mark(version) else version, time) for version, time in timed), *new]

    @property
    def has_moved(self) -> bool:
        """Whether there are rows that were deleted, and may have got another key."""
        return self._kept is not None and len(self._kept) > 0

    def moved(self, place: tuple[int, ...]) -> pa.Table | None:
        """Return the values of the row deleted at a place of the source, or None if not kept."""
        kept = self._kept
        if kept is None:
            return None
        entry = kept.filter(pc.and_(pc.equal(kept[COMMIT], place[0]), pc.equal(kept[POSITION], place[1])))
        return pa.ipc.open_stream(entry[row_column(self.key)][0].as_py()).read_all() if len(entry) else None

    @cached_property
    def _kept(self) -> pa.Table | None:
        """The entries with a deleted row, also of events that are not landed."""
        return None if self._every is None else self._every.filter(self._every[row_column(self.key)].is_valid())

    @cached_property
    def _every(self) -> pa.Table | None:
        """All entries: a deletion and the values of its row are facts, also if the event is not landed."""
        tables = [table for table in (self.entries, self.ahead) if table is not None]
        return pa.concat_tables(tables) if tables else None


def _is_landed(entries: pa.Table, ranges: RangeSet) -> Mask:
    """Return a mask of the entries whose events are landed.

    Entries do not contain their topic: an offset that any topic holds counts.
    """
    partitions, offsets = entries[PARTITION].to_numpy(), entries[OFFSET].to_numpy()
    # A snapshot's mark has the offset of its first event, see `snapshots.with_ends`.
    offsets = np.where(offsets < 0, -1 - offsets, offsets)
    landed, with_entries = np.zeros(len(entries), np.bool_), {*np.unique(partitions).tolist()}
    for topic, partition in ranges.partitions:
        if partition in with_entries:
            indices = np.flatnonzero(partitions == partition)
            is_in_ranges = is_within(pa.chunked_array([offsets[indices]]), ranges.intervals(topic, partition))
            landed[indices] |= is_in_ranges.to_numpy(zero_copy_only=False)
    return landed


def landed_by(ledgers: Iterable[Ledger]) -> RangeSet:
    """Return the offsets that any of the ledgers of a mirror holds."""
    return union(entry.held for ledger in ledgers for entry in ledger.topics.values())


def row_column(key: Sequence[str]) -> str:
    """Return the name of the column for the deleted row, unlike all columns of the key."""
    name = ROW
    while name in key:
        name += "_"
    return name


def entry_schema(key: pa.Schema, further: Iterable[pa.Field] = ()) -> pa.Schema:
    """Return the entries' columns for these key columns.

    :param further: columns next to the version, see `MirrorDesign.entry_columns`.
    """
    key_columns = [field.with_nullable(True) for field in key]
    return pa.schema([*key_columns, *version_schema(), *further, pa.field(row_column(key.names), pa.binary())])


def design_of_entries(
    key: pa.Schema, mirror_id: str, evolution: SchemaEvolution, further: Iterable[pa.Field] = ()
) -> TableDesign:
    """Return the design of the entries' table.

    :param key: the columns of the mirror's key; see `entry_schema` for `further`.
    :param mirror_id: the mirror's own id.
    :param evolution: whether the columns of the key may become wider.
    """
    payload = pa.schema([column for column in entry_schema(key, further) if column.name not in VERSION])
    notes = {MIRROR_ID: mirror_id}
    return TableDesign(version_schema(), to_schema(payload), evolution=evolution, argument="key", notes=notes)


def commit_entries(table: TableSink[Any], commit: Callable[[Landing], int], entries: pa.Table) -> None:
    """Add entries to the table of the entries in a separate commit. Raises the errors of a commit.

    After a failure, the files that were written are discarded.

    :param commit: commits the entries that were written to the table.
    """
    name = f"entries {uuid.uuid4().hex}"
    with or_discard(table):
        table.load(name)
        table.write(entries, NO_TOPIC)
        commit(Landing(name, name, {}))


def founding() -> Landing:
    """Return the empty landing that creates a mirror before its first entries: only one of concurrent runs can."""
    name = f"founding {uuid.uuid4().hex}"
    return Landing(name, name, {})


def last_of_each(entries: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return each key's entry with the greatest version."""
    ordered = by_version(entries)
    (last,) = greatest_of_each(by_place(ordered, key), np.arange(len(ordered)))
    return ordered.take(pa.array(last))
