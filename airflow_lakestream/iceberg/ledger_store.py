"""The ledger of a PyIceberg table: its metadata files, as `core.lineage` wants to see them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from airflow_lakestream.core import anchors, codec, lineage
from airflow_lakestream.core.ledger import Landing, Ledger
from airflow_lakestream.core.lineage import Reading, SnapshotFacts, TableFacts
from airflow_lakestream.exceptions import LakestreamError, Terminal


class FormatVersionTooOld(LakestreamError, Terminal):
    """The table has no sequence numbers, without which an ancestor can't be told from a stranger."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"{table} is an Iceberg table of format version 1, which keeps no sequence numbers: the ledger needs "
            'version 2. Upgrade it: ALTER TABLE ... SET TBLPROPERTIES ("format-version" = "2").'
        )


def read_ledger(table: Table, consumer_group: str) -> Ledger:
    """Return which Kafka offsets the current snapshot of `table` holds for `consumer_group`.

    Empty for a group that never landed here. Raises UndecidedLedger when the metadata no longer says.
    """
    return read(table, consumer_group).ledger


def read(table: Table, consumer_group: str) -> Reading:
    """Return the ledger at the table's head together with how it was found."""
    if table.metadata.format_version < 2:
        raise FormatVersionTooOld(name_of(table))
    return lineage.read(history(table), consumer_group)


def groups(table: Table) -> tuple[str, ...]:
    """Return the consumer groups that have a ledger property on the table."""
    prefix = codec.PROPERTY_PREFIX
    return tuple(sorted(key.removeprefix(prefix) for key in table.metadata.properties if key.startswith(prefix)))


def ledgers(table: Table, consumer_group: str) -> dict[str, Ledger]:
    """Return the ledgers of all groups, and of this one in any case. Raises UndecidedLedger."""
    return {group: read_ledger(table, group) for group in {consumer_group: None, **dict.fromkeys(groups(table))}}


def other_ledgers(table: Table, consumer_group: str) -> dict[str, Ledger]:
    """Return the ledgers of all other groups. Raises UndecidedLedger."""
    return {group: read_ledger(table, group) for group in groups(table) if group != consumer_group}


def landings_of_run(table: Table, reading: Reading, consumer_group: str, run_id: str) -> list[tuple[int, Landing]]:
    """Return the landings of one run in the head's history, oldest first, as far back as metadata shows them."""
    found = {entry.landing.landing_id: (entry.snapshot_id, entry.landing) for entry in reading.path if entry.landing}
    for snapshot in live_ancestors(table.metadata):
        # Only this run's landings are decoded: a long history has many of others.
        is_own = summary_of(snapshot).get(codec.SUMMARY_RUN_ID) == run_id
        if is_own and (landing := landing_of(snapshot, consumer_group)) is not None:
            # Rather than the journal's: the summary has the counts by partition, too.
            found[landing.landing_id] = (snapshot.snapshot_id, landing)
    sequence = {s.snapshot_id: s.sequence_number or 0 for s in table.metadata.snapshots}
    of_run = [item for item in found.values() if item[1].run_id == run_id]
    # Those that have expired are older than all that are alive; the journal has them in order.
    return sorted(of_run, key=lambda item: sequence.get(item[0], 0))


def snapshot_of_landing(table: Table, consumer_group: str, landing_id: str) -> int | None:
    """Return the snapshot that holds a landing in the head's history, alive or in the journal; None without one."""
    for snapshot in live_ancestors(table.metadata):
        if summary_of(snapshot).get(codec.SUMMARY_LANDING_ID) == landing_id:
            return snapshot.snapshot_id
    for entry in read(table, consumer_group).path:
        if entry.landing is not None and entry.landing.landing_id == landing_id:
            return entry.snapshot_id
    return None


def landing_of(snapshot: Snapshot, consumer_group: str) -> Landing | None:
    """Return a group's landing in a snapshot; None without one. Raises UnreadableLedger."""
    return codec.decode_summary(summary_of(snapshot), consumer_group, f"snapshot {snapshot.snapshot_id}")


def columns_told(table: Table, consumer_group: str) -> Ledger:
    """Return what the table says of a group's columns, also where nothing says its offsets: a ledger without topics.

    The property, its journal, and the snapshots that are alive tell it. Raises UnreadableLedger.
    """
    text, landings = table.metadata.properties.get(codec.property_key(consumer_group)), list[Landing | None]()
    ledger = Ledger(consumer_group)
    if text is not None:
        value = codec.decode_property(text, consumer_group)
        ledger, landings = value.base, [entry.landing for entry in value.journal]
    landings += [landing_of(one, consumer_group) for one in reversed([*live_ancestors(table.metadata)])]
    for landing in filter(None, landings):
        ledger = ledger.add(landing)
    return Ledger(consumer_group, filled=ledger.filled, types=ledger.types)


def live_ancestors(metadata: TableMetadata) -> Iterator[Snapshot]:
    """Yield main's head and its ancestors, newest first, as far as they are not expired."""
    return ancestors(metadata, head_of(metadata))


def ancestors(metadata: TableMetadata, head: int | None) -> Iterator[Snapshot]:
    """Yield a snapshot and its ancestors, newest first, as far as they are not expired."""
    snapshots, at = {s.snapshot_id: s for s in metadata.snapshots}, head
    while at is not None and at in snapshots:
        yield snapshots[at]
        at = snapshots[at].parent_snapshot_id


def rolled_back(metadata: TableMetadata) -> list[str]:
    """Return the ids of the landings whose snapshots are there, and certainly not in main's history."""
    history = {one.snapshot_id: one.sequence_number or 0 for one in live_ancestors(metadata)}
    # Numbers fall along the parents: what is below the last one met may be an ancestor behind one that has expired.
    lowest = min(history.values(), default=0)
    newer = (one for one in metadata.snapshots if (one.sequence_number or 0) >= lowest)
    others = (summary_of(one) for one in newer if one.snapshot_id not in history)
    return [summary[codec.SUMMARY_LANDING_ID] for summary in others if codec.SUMMARY_LANDING_ID in summary]


def summary_of(snapshot: Snapshot) -> Mapping[str, str]:
    """Return a snapshot's summary, beyond its operation."""
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def history(table: Table) -> Iterator[TableFacts]:
    """Yield what the table's metadata files say, newest first, as long as they are there."""
    return map(facts_of, metadata_files(table))


def metadata_files(table: Table) -> Iterator[TableMetadata]:
    """Yield the table's metadata files, newest first, as long as they are there."""
    yield table.metadata
    for entry in reversed(table.metadata.metadata_log):
        try:
            yield FromInputFile.table_metadata(table.io.new_input(entry.metadata_file))
        except FileNotFoundError:
            return


def facts_of(metadata: TableMetadata) -> TableFacts:
    """Return what one metadata file says of lineage and ledgers."""
    return TableFacts(head_of(metadata), _Snapshots(metadata), metadata.properties)


def newest_sequence(metadata: TableMetadata) -> int:
    """Return the sequence number of the table's newest snapshot, of whatever branch; 0 without any."""
    return 0 if isinstance(metadata, TableMetadataV1) else metadata.last_sequence_number


def head_of(metadata: TableMetadata) -> int | None:
    """Return the snapshot that main is at; None for a table without any."""
    main = metadata.refs.get(MAIN_BRANCH)
    return main.snapshot_id if main is not None else metadata.current_snapshot_id


class _Snapshots(Mapping[int, SnapshotFacts]):
    """A metadata file's snapshots as facts, made as they are asked for: of a thousand the ledger needs one or two."""

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
    """Return the ledger properties of all groups for a snapshot on top of the table's head that adds `landing`.

    Every landing re-anchors the other groups too: their own last landing may expire while this group goes on. A group
    whose ledger can't be decided keeps its property: that is its own error, at its own next run. `expiring` are the
    snapshots that go in the same commit.
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
        noted = anchors.anchors_after(lambda: history(table), group, expiring)
        properties[codec.anchors_key(group)] = codec.encode_anchors(noted)
    return properties


def newcomer_properties(table: Table, consumer_group: str) -> dict[str, str]:
    """Return what a group without a ledger property brings with its first, for a table that is rolled back then."""
    if codec.property_key(consumer_group) in table.metadata.properties:
        return {}
    noted = anchors.anchors_of_newcomer(lambda: history(table), consumer_group)
    return {codec.anchors_key(consumer_group): codec.encode_anchors(noted)} if noted else {}


def name_of(table: Table) -> str:
    """Return the table's name as users write it."""
    return ".".join(table.name())
