"""Streams and history of an Iceberg table: landings, later snapshots of other writers, and rolled back landings.

A landing is a snapshot whose summary changes a ledger. Only the ancestors of a branch's head count. Replays of rejected
records are left out, since they do not show that the consumer runs. Module `delta` does the same for Delta tables.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from airflow_lakestream.core import codec, lineage
from airflow_lakestream.core.codec import UnreadableLedger
from airflow_lakestream.core.column_use import in_both, silent_texts
from airflow_lakestream.core.event_cursor import EventCursor, head_cursor
from airflow_lakestream.core.ledger import Landing, LandingEngine, Ledger
from airflow_lakestream.core.lineage import UndecidedLedger, decode_restated
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg import fitness, ledger_store
from airflow_lakestream.iceberg.upkeep.file_use import FileUse, is_compaction
from airflow_lakestream.tables.rejects.settlement import names_of
from airflow_lakestream.watching.causes import StreamCause, StreamReason, span
from airflow_lakestream.watching.streams.landing_events import NewLandings, landings_after

RECENT = 5  # number of newest landings in a history without `since_ms`
# Number of small files, or of delete files, that makes reading slow. Landings each minute write 2000 files in 33 hours.
MANY_FILES = 2000
_MOST_COLUMNS = 8  # most columns that a reason names
# Key in the summary of a cherry-picked snapshot: the id of the snapshot that was picked.
_SOURCE = "source-snapshot-id"
# Run id of a Spark landing: the query's id and the batch.
_BATCH = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/(\d+|before/)")


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """A snapshot of a table's history; `at_ms` is milliseconds since the epoch.

    `landing` is None for another writer's snapshot; `rows` are the rows that it added.
    """

    snapshot_id: int
    at_ms: int
    operation: str
    rows: int
    consumer_group: str | None = None
    landing: Landing | None = None
    is_compaction: bool = False

    @property
    def rejected(self) -> int:
        """Number of rejected records."""
        return self.landing.counts.rejected if self.landing else 0

    @property
    def is_replay(self) -> bool:
        """Whether the snapshot is a replay of rejected records."""
        return self.landing is not None and self.landing.is_replay

    @property
    def topics(self) -> frozenset[str]:
        """Topics of the landing."""
        return frozenset(identity.topic for identity in self.landing.topics) if self.landing else frozenset()

    @property
    def engine(self) -> LandingEngine | None:
        """Engine of the landing, or None for another writer's snapshot and for a ledger change without rows."""
        if self.landing is None:
            return None
        if self.landing.engine is not None:
            return self.landing.engine
        # Older versions of this package did not write the engine.
        if _BATCH.match(self.landing.run_id):
            return LandingEngine.SPARK
        landed = any(entry.held or entry.replaced for entry in self.landing.topics.values())
        return LandingEngine.EXTRACT if landed else None


@dataclass(frozen=True, slots=True)
class BranchHistory:
    """A branch's history, the newest snapshot first.

    :param recent: the newest snapshots that count.
    :param since: the snapshots after `recent` that do not count: compactions, and commits of other writers.
    :param rolled_back: landings after `recent` that are in no branch's history.
    :param expired: True if there were landings, and all their snapshots have expired.
    :param expired_ms: the time of the newest expired landing, if an expiry has noted the time.
    :param files: the use of the files of the table's head.
    """

    recent: tuple[SnapshotRecord, ...] = ()
    since: tuple[SnapshotRecord, ...] = ()
    rolled_back: tuple[SnapshotRecord, ...] = ()
    expired: bool = False
    expired_ms: int | None = None
    files: FileUse | None = None

    @property
    def newest(self) -> SnapshotRecord | None:
        """The newest snapshot that counts, or None."""
        return self.recent[0] if self.recent else None

    @property
    def landed_ms(self) -> int | None:
        """Time of the newest landing, expired or not, or None if unknown; in milliseconds since the epoch."""
        return self.expired_ms if self.newest is None else self.newest.at_ms

    @property
    def silent(self) -> Mapping[str, str]:
        """Columns without an expected value in the newest run; see `core.column_use`."""
        silent: Mapping[str, str] | None = None
        landings = [record.landing for record in self.recent if record.landing is not None and record.landing.rows]
        for landing in landings:
            if landing.run_id == landings[0].run_id:
                # A run may have several landings: a column is silent only if it had no value in all of them.
                silent = in_both(silent, landing.silent)
        return silent or {}

    def reasons(self, now_ms: int) -> list[StreamReason]:
        """Return reasons for a person to look closer, even if the newest landing is young.

        The reasons are many small files, silent columns, rolled back landings, and later snapshots of compactions and
        other writers.
        """
        reasons = []
        if self.files is not None and max(self.files.small, self.files.delete_files or 0) >= MANY_FILES:
            compacted_ms = self.files.compacted_at
            ago = None if compacted_ms is None else span(max(0, now_ms - compacted_ms) / 1000)
            last = "none is known" if ago is None else f"the last one was {ago} ago"
            numbers = f"{self.files.small:,} small files and {self.files.delete_files or 0:,} delete files"
            reasons.append(StreamReason(StreamCause.SMALL_FILES, f"{numbers} wait for a compaction; {last}"))
        if silent := silent_texts(self.silent):
            texts = "; ".join(silent[:_MOST_COLUMNS])
            if len(silent) > _MOST_COLUMNS:
                texts += f" and {len(silent) - _MOST_COLUMNS} more"
            reasons.append(
                StreamReason(StreamCause.SILENT_COLUMNS, f"no record of the last run had a value for {texts}")
            )
        if self.rolled_back:
            ids = ", ".join(str(record.snapshot_id) for record in self.rolled_back)
            rows = sum(record.rows for record in self.rolled_back)
            reasons.append(
                StreamReason(StreamCause.ROLLBACK, f"landings were rolled back, {rows:,} rows in snapshots {ids}")
            )
        for cause in (StreamCause.COMPACTION, StreamCause.OTHER_WRITER):
            snapshots = [record for record in self.since if record.is_compaction is (cause is StreamCause.COMPACTION)]
            if snapshots:
                ago = span(max(0, now_ms - snapshots[0].at_ms) / 1000)
                kind = "compactions, which land nothing" if cause is StreamCause.COMPACTION else "of other writers"
                last = f"the last one is snapshot {snapshots[0].snapshot_id}, {ago} ago"
                reasons.append(StreamReason(cause, f"{len(snapshots):,} newer snapshots are {kind}; {last}"))
        return reasons


def look_back(
    table: Table,
    consumer_group: str | None = None,
    branch: str = MAIN_BRANCH,
    operations: Collection[str] = (),
    since_ms: int | None = None,
    topic: str | None = None,
) -> BranchHistory:
    """Return a branch's history: the landings that count, without replays, and the newer snapshots.

    Landings under former names of the group count, too.

    :param consumer_group: the group whose landings count; None: the landings of all groups.
    :param operations: only snapshots of these operations count; if no group is given, also those of other writers.
    :param since_ms: return all snapshots that count from this time on; None: only the last few.
    :param topic: only landings of this topic count; None: of all topics.

    Raises InvalidArgument if the branch does not exist, UnreadableLedger; and without a landing also the errors of
    `read_ledgers`, since the ledger then decides whether landings have expired.
    """
    metadata = table.metadata
    names = None if consumer_group is None else names_of(metadata.properties, consumer_group)
    recent: list[SnapshotRecord] = []
    since: list[SnapshotRecord] = []
    has_landing = False
    for snapshot in ledger_store.ancestors(metadata, _head(metadata, branch)):
        record = _record_of(snapshot, metadata, names)
        if record.is_replay:
            continue
        counts = record.landing is not None or (names is None and bool(operations))
        if topic is not None and record.landing is not None and topic not in record.topics:
            continue
        has_landing |= record.landing is not None
        if counts and (not operations or record.operation in operations):
            is_enough = len(recent) >= RECENT and (since_ms is None or record.at_ms < since_ms)
            if is_enough:
                break
            recent.append(record)
        # A newer snapshot of another writer. Landings of other groups, and of other operations, are left out.
        elif not recent and codec.SUMMARY_LANDING_ID not in ledger_store.summary_of(snapshot):
            since.append(record)
        if consumer_group is not None and _starts_over(snapshot, consumer_group):
            break
    ledgers = {} if has_landing else read_ledgers(table, consumer_group, branch)
    expired = any(topic in (None, identity.topic) for ledger in ledgers.values() for identity in ledger.topics)
    expired_ms = _expired_ms(metadata, names or ledgers, topic) if expired else None
    rolled_back = (
        record for record in _rolled_back(metadata, names, recent) if topic is None or topic in record.topics
    )
    return BranchHistory(tuple(recent), tuple(since), tuple(rolled_back), expired, expired_ms)


def _expired_ms(metadata: TableMetadata, names: Iterable[str], topic: str | None) -> int | None:
    """Return the noted time of the groups' newest expired landing, or None without a note.

    :param names: the groups' names.
    :param topic: only landings of this topic count; None: of all topics.
    """
    times = []
    for name in names:
        for noted_topic, expired_ms in ledger_store.expired_landings(metadata, name).items():
            if topic in (None, noted_topic):
                times.append(expired_ms)
    return max(times, default=None)


def newest_snapshots(table: Table, most: int) -> list[SnapshotRecord]:
    """Return the newest snapshots of main, by any writer, newest first. Raises UnreadableLedger."""
    metadata = table.metadata
    snapshots = islice(ledger_store.ancestors(metadata, ledger_store.head_of(metadata)), most)
    return [_record_of(snapshot, metadata, None) for snapshot in snapshots]


def read_ledgers(table: Table, consumer_group: str | None, branch: str = MAIN_BRANCH) -> Mapping[str, Ledger]:
    """Return the ledgers at a branch's head by group: all ledgers, or only the ledger of one group.

    Raises UndecidedLedger, UnreadableLedger, FormatVersionTooOld, and InvalidArgument if the branch does not exist.
    """
    if table.metadata.format_version < 2:
        raise ledger_store.FormatVersionTooOld(ledger_store.name_of(table))
    names = (consumer_group,) if consumer_group is not None else ledger_store.groups(table)
    head = _head(table.metadata, branch)
    if head is None:
        return {name: Ledger(name) for name in names}
    return {name: lineage.read(ledger_store.history(table), name, at=head).ledger for name in names}


def _head(metadata: TableMetadata, branch: str) -> int | None:
    """Return the snapshot id of a branch's head, or None for an empty table. Raises InvalidArgument."""
    if branch == MAIN_BRANCH:
        return ledger_store.head_of(metadata)
    if (ref := metadata.refs.get(branch)) is None:
        known = ", ".join(sorted(metadata.refs)) or "none"
        raise InvalidArgument("branch", f"there is no branch {branch!r}. Known are: {known}.")
    return ref.snapshot_id


def _record_of(snapshot: Snapshot, metadata: TableMetadata, names: Collection[str] | None) -> SnapshotRecord:
    """Return a snapshot as a record, with its landing if the group is among `names`, or `names` is None."""
    summary = ledger_store.summary_of(snapshot)
    if codec.SUMMARY_GROUP not in summary and (source := summary.get(_SOURCE)) is not None:
        # A cherry-pick has the rows of its source snapshot, but not the lakestream.* keys.
        picked = metadata.snapshot_by_id(int(source))
        summary = {**summary, **ledger_store.summary_of(picked)} if picked is not None else summary
    group = summary.get(codec.SUMMARY_GROUP)
    landing = None
    if group is not None and (names is None or group in names):
        landing = codec.decode_summary(summary, group, f"snapshot {snapshot.snapshot_id}")
    rows = landing.rows if landing is not None else int(summary.get("added-records", 0))
    operation = snapshot.summary.operation.value if snapshot.summary is not None else ""
    compaction = landing is None and is_compaction(operation, summary)
    return SnapshotRecord(snapshot.snapshot_id, snapshot.timestamp_ms, operation, rows, group, landing, compaction)


def _starts_over(snapshot: Snapshot, consumer_group: str) -> bool:
    """Return whether the snapshot empties the group's ledger: earlier landings then no longer belong to the group."""
    summary = ledger_store.summary_of(snapshot)
    ledger = decode_restated(summary, consumer_group, f"snapshot {snapshot.snapshot_id}")
    return ledger is not None and not ledger.topics


def _rolled_back(
    metadata: TableMetadata, names: Collection[str] | None, recent: list[SnapshotRecord]
) -> Iterator[SnapshotRecord]:
    """Yield landings that are in no branch's history, and newer than all snapshots that count.

    :param names: the group's names, or None for all groups.
    :param recent: the snapshots that count.
    """
    in_branches = {
        ancestor.snapshot_id
        for branch in {MAIN_BRANCH, *metadata.refs}
        for ancestor in ledger_store.ancestors(metadata, _head(metadata, branch))
    }
    last = max((record.at_ms for record in recent), default=0)
    for snapshot in metadata.snapshots:
        summary = ledger_store.summary_of(snapshot)
        if codec.SUMMARY_GROUP in summary and snapshot.snapshot_id not in in_branches and snapshot.timestamp_ms > last:
            record = _record_of(snapshot, metadata, names)
            if record.landing is not None:
                yield record


class TableStreams(Protocol):
    """A table's streams, in the state of the table when it was opened."""

    @property
    def problems(self) -> tuple[type[Exception], ...]:
        """The classes of the errors that are raised if a group's ledger can't be read."""

    @property
    def files(self) -> FileUse:
        """The use of the table's files."""

    def groups(self) -> tuple[str, ...]:
        """Return the groups with a ledger."""

    def ledger(self, consumer_group: str) -> Ledger:
        """Return a group's ledger. Raises the errors in `problems`."""

    def history(self, consumer_group: str, topic: str = "", since_ms: int | None = None) -> BranchHistory:
        """Return a group's landings, of a topic or all; see `landings.look_back`. Raises the errors in `problems`."""

    def cursor(self) -> EventCursor:
        """Return the cursor after all landings."""

    def after(self, cursor: EventCursor, consumer_group: str | None = None) -> NewLandings:
        """Return the landings after a cursor, of a group or all. Raises the errors in `problems`."""


@dataclass(frozen=True)
class IcebergStreams:
    """The streams of an Iceberg table."""

    table: Table
    problems: tuple[type[Exception], ...] = (UnreadableLedger, UndecidedLedger, ledger_store.FormatVersionTooOld)

    @classmethod
    def at(cls, catalog: Catalog, name: str) -> IcebergStreams | None:
        """Open a table. Returns None if the table does not exist."""
        try:
            return cls(fitness.load_table(catalog, name))
        except NoSuchTableError:
            return None

    def groups(self) -> tuple[str, ...]:
        """Return the groups with a ledger."""
        return ledger_store.groups(self.table)

    def ledger(self, consumer_group: str) -> Ledger:
        """Return a group's ledger. Raises UnreadableLedger, UndecidedLedger, FormatVersionTooOld."""
        return read_ledgers(self.table, consumer_group)[consumer_group]

    def history(self, consumer_group: str, topic: str = "", since_ms: int | None = None) -> BranchHistory:
        """Return a group's landings, of a topic or all; see `look_back` for the errors."""
        history = look_back(self.table, consumer_group, topic=topic or None, since_ms=since_ms)
        return replace(history, files=self.files)

    @property
    def files(self) -> FileUse:
        """The use of the table's files."""
        return FileUse.of(self.table.metadata)

    def cursor(self) -> EventCursor:
        """Return the cursor after all landings."""
        return head_cursor(ledger_store.facts_of(self.table.metadata), str(self.table.metadata.table_uuid))

    def after(self, cursor: EventCursor, consumer_group: str | None = None) -> NewLandings:
        """Return the landings after a cursor. Raises UnreadableLedger, FormatVersionTooOld."""
        return landings_after(self.table, ledger_store.name_of(self.table), cursor, consumer_group)
