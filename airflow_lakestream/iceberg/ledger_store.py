"""Ledger of an Iceberg table, read from the metadata files through `core.lineage`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping

from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from airflow_lakestream.core import codec, lineage
from airflow_lakestream.core.ledger import Landing, Ledger
from airflow_lakestream.core.lineage import LedgerReading, SnapshotFacts, TableFacts
from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.tables.rejects.settlement import names_of

# Prefix of a table property, followed by a group's name: the times of its newest expired landings, by topic.
EXPIRED_PREFIX = "lakestream.expired."


class FormatVersionTooOld(LakestreamError, Terminal):
    """Table of format version 1: without sequence numbers, the history of a ledger can't be decided."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"{table} is an Iceberg table of format version 1, which keeps no sequence numbers: the ledger needs "
            'version 2. Upgrade it: ALTER TABLE ... SET TBLPROPERTIES ("format-version" = "2").'
        )


def read_ledger(table: Table, consumer_group: str) -> Ledger:
    """Return the ledger of `consumer_group` at the current snapshot of `table`.

    The ledger is empty for a group that never landed here. Raises UndecidedLedger if the metadata no longer decides it,
    UnreadableLedger for a text of a newer version, and FormatVersionTooOld.
    """
    return read(table, consumer_group).ledger


def read(table: Table, consumer_group: str) -> LedgerReading:
    """Return the ledger at the table's head, with the base and the landings of its derivation.

    Raises UndecidedLedger, UnreadableLedger and FormatVersionTooOld.
    """
    if table.metadata.format_version < 2:
        raise FormatVersionTooOld(name_of(table))
    return lineage.read(history(table), consumer_group)


def groups(table: Table) -> tuple[str, ...]:
    """Return the consumer groups with a ledger property on the table."""
    prefix = codec.PROPERTY_PREFIX
    return tuple(sorted(key.removeprefix(prefix) for key in table.metadata.properties if key.startswith(prefix)))


def ledgers(table: Table, consumer_group: str) -> dict[str, Ledger]:
    """Return the ledgers of all groups, and of this group in any case. Raises UndecidedLedger."""
    return {group: read_ledger(table, group) for group in {consumer_group: None, **dict.fromkeys(groups(table))}}


def other_ledgers(table: Table, consumer_group: str) -> dict[str, Ledger]:
    """Return the ledgers of all groups except this group. Raises UndecidedLedger."""
    return {group: read_ledger(table, group) for group in groups(table) if group != consumer_group}


def landings_of_run(
    table: Table, reading: LedgerReading, consumer_group: str, run_id: str
) -> list[tuple[int, Landing]]:
    """Return a run's landings in the head's history, oldest first, each after its snapshot's id.

    Landings older than the metadata and the journal are missing.
    """
    by_id = {entry.landing.landing_id: (entry.snapshot_id, entry.landing) for entry in reading.path if entry.landing}
    for snapshot in live_ancestors(table.metadata):
        # Only this run's landings are decoded: a long history has many landings of other runs.
        is_own = summary_of(snapshot).get(codec.SUMMARY_RUN_ID) == run_id
        if is_own and (landing := landing_of(snapshot, consumer_group)) is not None:
            # The summary is read, and not only the journal: the summary has the counts by partition, too.
            by_id[landing.landing_id] = (snapshot.snapshot_id, landing)
    sequence = {s.snapshot_id: s.sequence_number or 0 for s in table.metadata.snapshots}
    of_run = [item for item in by_id.values() if item[1].run_id == run_id]
    # Expired landings are older than all live landings; the journal has them in order.
    return sorted(of_run, key=lambda item: sequence.get(item[0], 0))


def live_snapshot_of(table: Table, landing_id: str) -> int | None:
    """Return the live snapshot of a landing, or of a change of a ledger, in the head's history, or None."""
    for snapshot in live_ancestors(table.metadata):
        if summary_of(snapshot).get(codec.SUMMARY_LANDING_ID) == landing_id:
            return snapshot.snapshot_id
    return None


def snapshot_of_landing(table: Table, consumer_group: str, landing_id: str) -> int | None:
    """Return the snapshot of a landing in the head's history, live or in the journal, or None if missing."""
    if (live := live_snapshot_of(table, landing_id)) is not None:
        return live
    for entry in read(table, consumer_group).path:
        if entry.landing is not None and entry.landing.landing_id == landing_id:
            return entry.snapshot_id
    return None


def landing_of(snapshot: Snapshot, consumer_group: str) -> Landing | None:
    """Return a group's landing in a snapshot, or None without a landing. Raises UnreadableLedger."""
    return codec.decode_summary(summary_of(snapshot), consumer_group, f"snapshot {snapshot.snapshot_id}")


def columns_of(table: Table, consumer_group: str) -> Ledger:
    """Return a ledger of only a group's filled columns and the source's types, without topics and offsets.

    The columns are known from the property, its journal and the live snapshots, even if the metadata no longer decides
    the offsets. Raises UnreadableLedger.
    """
    text, landings = table.metadata.properties.get(codec.property_key(consumer_group)), list[Landing | None]()
    ledger = Ledger(consumer_group)
    if text is not None:
        value = codec.decode_property(text, consumer_group)
        ledger, landings = value.base, [entry.landing for entry in value.journal]
    landings += [landing_of(snapshot, consumer_group) for snapshot in reversed([*live_ancestors(table.metadata)])]
    for landing in filter(None, landings):
        ledger = ledger.add(landing)
    return Ledger(consumer_group, filled=ledger.filled, types=ledger.types)


def live_ancestors(metadata: TableMetadata) -> Iterator[Snapshot]:
    """Yield main's head and the ancestors, newest first, up to an expired snapshot."""
    return ancestors(metadata, head_of(metadata))


def ancestors(metadata: TableMetadata, head: int | None) -> Iterator[Snapshot]:
    """Yield a snapshot and the ancestors, newest first, up to an expired snapshot."""
    snapshots, current_id = {s.snapshot_id: s for s in metadata.snapshots}, head
    while current_id is not None and current_id in snapshots:
        yield snapshots[current_id]
        current_id = snapshots[current_id].parent_snapshot_id


def rolled_back(metadata: TableMetadata) -> list[str]:
    """Return the ids of landings with live snapshots certainly outside of main's history."""
    history = {snapshot.snapshot_id: snapshot.sequence_number or 0 for snapshot in live_ancestors(metadata)}
    # Numbers fall along the parents: a snapshot below the last live ancestor may be an ancestor behind an expired one.
    lowest = min(history.values(), default=0)
    newer = (snapshot for snapshot in metadata.snapshots if (snapshot.sequence_number or 0) >= lowest)
    others = (summary_of(snapshot) for snapshot in newer if snapshot.snapshot_id not in history)
    return [summary[codec.SUMMARY_LANDING_ID] for summary in others if codec.SUMMARY_LANDING_ID in summary]


def summary_of(snapshot: Snapshot) -> Mapping[str, str]:
    """Return a snapshot's summary without the operation."""
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def history(table: Table) -> Iterator[TableFacts]:
    """Yield the facts of the table's metadata files, newest first, up to a missing file."""
    return map(facts_of, metadata_files(table))


def metadata_files(table: Table) -> Iterator[TableMetadata]:
    """Yield the table's metadata files, newest first, up to a missing file."""
    yield table.metadata
    for entry in reversed(table.metadata.metadata_log):
        try:
            yield FromInputFile.table_metadata(table.io.new_input(entry.metadata_file))
        except FileNotFoundError:
            return


def facts_of(metadata: TableMetadata) -> TableFacts:
    """Return the facts of a metadata file about snapshots and ledgers."""
    return TableFacts(head_of(metadata), _SnapshotMapping(metadata), metadata.properties)


def newest_sequence(metadata: TableMetadata) -> int:
    """Return the sequence number of the table's newest snapshot on any branch; 0 without snapshots."""
    return 0 if isinstance(metadata, TableMetadataV1) else metadata.last_sequence_number


def head_of(metadata: TableMetadata) -> int | None:
    """Return the snapshot of main's head, or None for a table without snapshots."""
    main = metadata.refs.get(MAIN_BRANCH)
    return main.snapshot_id if main is not None else metadata.current_snapshot_id


class _SnapshotMapping(Mapping[int, SnapshotFacts]):
    """Facts of a metadata file's snapshots, made on access: of a thousand snapshots the ledger needs few."""

    def __init__(self, metadata: TableMetadata) -> None:
        self._by_id = {s.snapshot_id: s for s in metadata.snapshots}

    def __getitem__(self, snapshot_id: int) -> SnapshotFacts:
        s = self._by_id[snapshot_id]
        return SnapshotFacts(s.snapshot_id, s.parent_snapshot_id, s.sequence_number or 0, summary_of(s))

    def __contains__(self, snapshot_id: object) -> bool:
        return snapshot_id in self._by_id

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)


def properties_after(
    table: Table, consumer_group: str, snapshot_id: int, landing: Landing, expiring: Collection[int] = ()
) -> dict[str, str]:
    """Return the ledger properties of all groups for a snapshot with `landing` on top of the table's head.

    Every landing re-anchors the other groups too: their own last landing may expire while this group goes on. A group
    whose ledger can't be decided keeps its property: that is its own error, at its own next run.

    :param snapshot_id: the id of the new snapshot.
    :param expiring: the snapshots that the same commit removes.
    """
    after = {codec.property_key(consumer_group): read(table, consumer_group).property_after(snapshot_id, landing)}
    for other in groups(table):
        if other != consumer_group:
            try:
                after[codec.property_key(other)] = read(table, other).property_after(snapshot_id, None)
            except (lineage.UndecidedLedger, codec.UnreadableLedger):
                continue
    properties = {key: codec.encode_property(value) for key, value in after.items()}
    properties |= newcomer_properties(table, consumer_group)
    for group in {consumer_group, *groups(table)} if expiring else ():
        properties |= properties_of_expiry(table, group, expiring)
    return properties


def properties_of_expiry(table: Table, consumer_group: str, expiring: Collection[int]) -> dict[str, str]:
    """Return the group's properties for a commit that removes snapshots: the anchors, and the times of landings.

    :param expiring: the ids of the snapshots that are removed.
    """
    anchors = lineage.anchors_after(lambda: history(table), consumer_group, expiring)
    times, names = expired_landings(table.metadata, consumer_group), names_of(table.metadata.properties, consumer_group)
    for snapshot in live_ancestors(table.metadata):
        if snapshot.snapshot_id in expiring and summary_of(snapshot).get(codec.SUMMARY_GROUP) in names:
            landing = landing_of(snapshot, summary_of(snapshot)[codec.SUMMARY_GROUP])
            for identity in landing.topics if landing is not None and not landing.is_replay else ():
                times[identity.topic] = max(snapshot.timestamp_ms, times.get(identity.topic, 0))
    properties = {codec.anchors_key(consumer_group): codec.encode_anchors(anchors)}
    return properties | ({EXPIRED_PREFIX + consumer_group: json.dumps(times)} if times else {})


def expired_landings(metadata: TableMetadata, consumer_group: str) -> dict[str, int]:
    """Return the times of the group's newest expired landings by topic, as far as an expiry has noted them.

    The times are in milliseconds since the epoch. Expiry by other programs notes nothing.
    """
    times: dict[str, int] = json.loads(metadata.properties.get(EXPIRED_PREFIX + consumer_group, "{}"))
    return times


def newcomer_properties(table: Table, consumer_group: str) -> dict[str, str]:
    """Return the anchors for the first landing of a group without a ledger property, for a later rollback."""
    if codec.property_key(consumer_group) in table.metadata.properties:
        return {}
    anchors = lineage.anchors_of_newcomer(lambda: history(table), consumer_group)
    return {codec.anchors_key(consumer_group): codec.encode_anchors(anchors)} if anchors else {}


def name_of(table: Table) -> str:
    """Return the table's name in the users' form."""
    return ".".join(table.name())
