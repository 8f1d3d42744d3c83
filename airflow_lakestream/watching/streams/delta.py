"""Streams and landings of a Delta table, read from the Delta log; module `landings` does the same for Iceberg."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.core import codec
from airflow_lakestream.core.event_cursor import EventCursor, landing_of_summary
from airflow_lakestream.core.ledger import Ledger
from airflow_lakestream.delta import ledger_store
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.delta.protocol import Action, info_of, read_commit
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.iceberg.upkeep.file_use import FileUse
from airflow_lakestream.watching.streams.landing_events import LandingEvent, NewLandings, event_of
from airflow_lakestream.watching.streams.landings import RECENT, BranchHistory, SnapshotRecord

MOST_RECENT = 50  # most landings that are read for a time; each is a small file of the log
MOST_SINCE = 100  # most versions that are read after the newest landing
SMALL_SHARE = 0.75  # a file with less than this share of the target size is small
TARGET_BYTES = 100 * 2**20  # the target size of delta-rs, for tables without delta.targetFileSize


@dataclass(frozen=True)
class DeltaStreams:
    """`TableStreams` of a Delta table. The root of `store` is the table's folder."""

    head: DeltaTableHead
    store: Any
    problems: tuple[type[Exception], ...] = (codec.UnreadableLedger, ledger_store.LedgerTakenAway)

    @classmethod
    def at(cls, storage: DeltaStorage, location: str) -> DeltaStreams | None:
        """Open a table. Returns None if the table does not exist."""
        head = storage.open(location)
        return None if head is None else cls(head, storage.store(location))

    def groups(self) -> tuple[str, ...]:
        """Return the groups with a ledger."""
        return ledger_store.groups(self.head)

    def ledger(self, consumer_group: str) -> Ledger:
        """Return a group's ledger. Raises UnreadableLedger, LedgerTakenAway."""
        ledger_store.check_not_taken_away(self.head, consumer_group, self.store)
        return ledger_store.read_ledger(self.head, consumer_group)

    def history(self, consumer_group: str, topic: str = "", since_ms: int | None = None) -> BranchHistory:
        """Return a group's landings, of a topic or all; see `look_back`. Raises UnreadableLedger."""
        history = look_back(self.head, self.store, consumer_group, since_ms, topic)
        compacted_at = next((record.at_ms for record in history.since if record.is_compaction), None)
        return replace(history, files=replace(self.files, compacted_at=compacted_at))

    @property
    def files(self) -> FileUse:
        """The use of the table's files; the time of the last compaction is not looked for."""
        return file_use(self.head)

    def cursor(self) -> EventCursor:
        """Return the cursor after all landings."""
        return _cursor(self.head, self.head.version)

    def after(self, cursor: EventCursor, consumer_group: str | None = None) -> NewLandings:
        """Return the landings after a cursor. Raises UnreadableLedger."""
        return landings_after(self.head, self.store, cursor, consumer_group)


def file_use(head: DeltaTableHead) -> FileUse:
    """Return the use of a version's files from the log; no data file is opened.

    A single small file in a partition does not count: a compaction has nothing to merge it with.
    """
    assert head.delta is not None, "only an existing table is opened"
    files = pa.table(head.delta.get_add_actions(flatten=True))
    partitions = [name for name in files.column_names if name.startswith("partition.")]
    text = head.properties.get("delta.targetFileSize", "")
    target = int(text) if text.isdecimal() else TARGET_BYTES
    small = files.filter(pc.less(files["size_bytes"], SMALL_SHARE * target)).select(["size_bytes", *partitions])
    counts = small.group_by(partitions).aggregate([("size_bytes", "count")])["size_bytes_count"].to_pylist()
    deletes = pa.table(head.delta.deletion_vectors()).num_rows
    return FileUse(files=files.num_rows, delete_files=deletes, small=sum(count for count in counts if count > 1))


def look_back(
    head: DeltaTableHead, store: Any, consumer_group: str, since_ms: int | None = None, topic: str = ""
) -> BranchHistory:
    """Return the group's landings from the log, without replays. The field `snapshot_id` of a record is the version.

    The field `since` has only the versions of other writers that change files, among the newest MOST_SINCE versions.

    :param store: a store whose root is the table's folder.
    :param since_ms: return all landings from this time on, MOST_RECENT at most; None: only the last few.
    :param topic: only landings of this topic count; empty: of any topic.

    Raises UnreadableLedger.
    """
    newest = ledger_store.previous_version(head, consumer_group)
    recent: list[SnapshotRecord] = []
    for record in _landings(store, newest, consumer_group):
        if record.is_replay or (topic and topic not in record.topics):
            continue
        if len(recent) >= RECENT and (since_ms is None or record.at_ms < since_ms or len(recent) >= MOST_RECENT):
            break
        recent.append(record)
    # The versions above the group's newest landing, but at most the newest MOST_SINCE.
    begin = head.version - MOST_SINCE if newest is None else max(newest, head.version - MOST_SINCE)
    since: list[SnapshotRecord] = []
    rolled_back: list[SnapshotRecord] = []
    for version in range(head.version, max(begin, -1), -1):
        actions = read_commit(store, version)
        if actions is None:
            break
        record = _record_of(version, actions, consumer_group)
        if record.landing is not None:
            # A landing above the ledger's last landing: a RESTORE has taken this one back.
            if not topic or topic in record.topics:
                rolled_back.append(record)
        elif record.consumer_group is None and record.operation != "RESTORE" and _changes_files(actions):
            since.append(record)
    return BranchHistory(tuple(recent), tuple(since), tuple(rolled_back), expired=newest is not None and not recent)


def landings_after(
    head: DeltaTableHead, store: Any, cursor: EventCursor, consumer_group: str | None = None
) -> NewLandings:
    """Return the landings after a cursor, from the log: versions only grow, even by a RESTORE.

    A cursor's `sequence` is the version plus 1, since the first version is 0. If the log no longer has all versions
    after the cursor, the oldest event has `earlier_expired`. Raises UnreadableLedger.
    """
    begin = cursor.of(head.table_id).sequence
    events: list[LandingEvent] = []
    is_cut = False
    for version in range(head.version, begin - 1, -1):
        actions = read_commit(store, version)
        if actions is None:
            is_cut = True
            break
        info = info_of(actions)
        texts = {key: value for key, value in info.items() if isinstance(value, str)}
        group_and_landing = landing_of_summary(texts, f"version {version}")
        if group_and_landing is not None and consumer_group in (None, group_and_landing[0]):
            changes = json.loads(info.get(ledger_store.SCHEMA_CHANGES, "[]"))
            at_ms = int(info.get("timestamp", 0))
            event = event_of(
                _cursor(head, version), *group_and_landing, table=head.table, at_ms=at_ms, schema_changes=changes
            )
            events.append(event)
    if is_cut and events:
        events[-1] = replace(events[-1], event={**events[-1].event, "earlier_expired": True})
    return NewLandings(tuple(reversed(events)), _cursor(head, head.version))


def _cursor(head: DeltaTableHead, version: int) -> EventCursor:
    return EventCursor(version + 1, version, head.table_id)


def _landings(store: Any, version: int | None, consumer_group: str) -> Iterator[SnapshotRecord]:
    """Yield the group's landings from a version on, newest first, as far as the log goes back."""
    while version is not None and (actions := read_commit(store, version)) is not None:
        yield _record_of(version, actions, consumer_group)
        before = info_of(actions).get(ledger_store.PREVIOUS)
        version = int(before) if before else None


def _record_of(version: int, actions: Sequence[Action], consumer_group: str) -> SnapshotRecord:
    """Return a version of the log as a record; its `landing` is None unless the version is a landing of the group."""
    info = info_of(actions)
    texts = {key: value for key, value in info.items() if isinstance(value, str)}
    landing = codec.decode_summary(texts, consumer_group, f"version {version}")
    rows = landing.rows if landing is not None else sum(_rows(a["add"]) for a in actions if "add" in a)
    group, operation = texts.get(codec.SUMMARY_GROUP), texts.get("operation", "")
    compaction = landing is None and _changes_files(actions) and not any(_changes_data(a) for a in actions)
    return SnapshotRecord(version, int(info.get("timestamp", 0)), operation, rows, group, landing, compaction)


def _rows(add: Action) -> int:
    return int(json.loads(add.get("stats") or "{}").get("numRecords", 0))


def _changes_files(actions: Sequence[Action]) -> bool:
    return any("add" in action or "remove" in action for action in actions)


def _changes_data(action: Action) -> bool:
    return any(action.get(kind, {}).get("dataChange", False) for kind in ("add", "remove"))
