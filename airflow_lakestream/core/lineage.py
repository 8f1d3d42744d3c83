"""Search for a group's ledger in the metadata of a table, and ledgers kept at snapshots without a parent."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from airflow_lakestream.core import codec
from airflow_lakestream.core.codec import (
    JournalEntry,
    LedgerProperty,
    UnreadableLedger,
    anchors_key,
    decode_anchors,
    decode_property,
    decode_summary,
    encode_property,
    property_key,
)
from airflow_lakestream.core.ledger import Landing, Ledger
from airflow_lakestream.exceptions import LakestreamError, Terminal

# A summary with the whole ledgers of groups, in place of the history before. Renaming, removing and rebuilding a ledger
# write one: the change is part of the table's history, and is found without the table property. A table rolled back to
# before such a snapshot has the old ledger again.
SUMMARY_RESTATED = "lakestream.anew"


def encode_restated(ledgers: Mapping[str, Ledger]) -> dict[str, str]:
    """Return the summary keys to restate groups' ledgers at a snapshot."""
    texts = {group: encode_property(LedgerProperty(None, ledger, ())) for group, ledger in ledgers.items()}
    return {SUMMARY_RESTATED: json.dumps(texts, separators=(",", ":"), ensure_ascii=False)}


def decode_restated(summary: Mapping[str, str], consumer_group: str, where: str) -> Ledger | None:
    """Return a group's restated ledger from a snapshot's summary. Raises UnreadableLedger.

    None if the snapshot restates no ledger, or only ledgers of other groups.

    :param where: name of the snapshot, for the error.
    """
    if (text := summary.get(SUMMARY_RESTATED)) is None:
        return None
    try:
        of_group = json.loads(text).get(consumer_group)
    except (ValueError, AttributeError) as e:
        raise UnreadableLedger(where, f"not restated ledgers in the form of this version ({e!r}).") from e
    return None if of_group is None else decode_property(of_group, consumer_group).base


# Limits of the journal in a table property. Every metadata file repeats the property, so a ledger of many partitions
# gets a shorter journal.
JOURNAL_LENGTH = 16
JOURNAL_CHARACTERS = 32_768
_SOURCE = "source-snapshot-id"
REPLACED = "it has rows but shares no history with any landing: the table was replaced, or is a copy of another"


class UndecidedLedger(LakestreamError, Terminal):
    """The table's metadata no longer decides the offsets of the current snapshot."""

    def __init__(self, consumer_group: str, head_id: int, reason: str) -> None:
        self.consumer_group = consumer_group
        self.head_id = head_id
        super().__init__(
            f"the ledger of consumer group {consumer_group!r} can't be decided at snapshot {head_id}: {reason}. "
            "Nothing was landed, since that could double or lose records. Roll the table back to a snapshot whose "
            "history is still there; or make the ledger from the rows: `lakestream ledger rebuild "
            f"--table <namespace.table> --group {consumer_group}` (with --kafka-conn and --iceberg-conn if they are "
            "not the defaults); or, only if the table holds no record of this group, start over: `lakestream ledger "
            "reset`, with the same arguments and --yes. To keep this from happening, keep "
            "write.metadata.previous-versions-max at 100 or more."
        )


class ReplacedTable(UndecidedLedger):
    """The table was replaced or cloned: the ledger property belongs to another history than the rows."""


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """Facts about a snapshot from a metadata file.

    :param parent_id: None for a snapshot without a parent, and after PyIceberg's expiry of the parent.
    """

    snapshot_id: int
    parent_id: int | None
    sequence_number: int
    summary: Mapping[str, str]

    @property
    def has_rows(self) -> bool:
        """Whether the table has rows at this snapshot, including deleted rows still in files.

        True if unknown. No total gives the number of deleted rows: some delete files are of files that are gone.
        """
        return self.summary.get("total-records") != "0"


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Facts about the table from a metadata file: main's head, the listed snapshots, the properties."""

    head_id: int | None
    snapshots: Mapping[int, SnapshotFacts]
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LedgerReading:
    """The ledger at a head, as a base and the landings since, oldest first.

    :param base_id: the snapshot of the base; None for an empty base before the first landing.
    :param path: the landings since the base, with their snapshots.
    """

    base_id: int | None
    base: Ledger
    path: tuple[JournalEntry, ...]

    @property
    def ledger(self) -> Ledger:
        """The ledger at the head: the base, and each landing since, once."""
        ledger, counted = self.base, set[str]()
        for landing in self.landings:
            # The same landing may be in two snapshots of the path, by a cherry-pick, and counts once.
            if landing.landing_id not in counted:
                counted.add(landing.landing_id)
                ledger = ledger.add(landing)
        return ledger

    @property
    def landings(self) -> tuple[Landing, ...]:
        """The landings since the base, oldest first."""
        return tuple(entry.landing for entry in self.path if entry.landing is not None)

    def property_after(self, snapshot_id: int, landing: Landing | None) -> LedgerProperty:
        """Return the table property for a new snapshot on this head.

        The journal stays short: its oldest landings become part of the base.

        :param landing: the snapshot's landing of this group; None for a commit of another writer.
        """
        path = list(self.path)
        # Of snapshots without a landing only the newest is kept: a later walk can end there.
        if path and path[-1].landing is None:
            path.pop()
        path.append(JournalEntry(snapshot_id, landing))
        base_id, base = self.base_id, self.base
        value = LedgerProperty(base_id, base, tuple(path))
        while len(path) > 1 and (len(path) > JOURNAL_LENGTH or len(encode_property(value)) > JOURNAL_CHARACTERS):
            oldest = path.pop(0)
            base_id = oldest.snapshot_id
            base = base.add(oldest.landing) if oldest.landing is not None else base
            value = LedgerProperty(base_id, base, tuple(path))
        return value


def read(history: Iterable[TableFacts], consumer_group: str, *, at: int | None = None) -> LedgerReading:
    """Return the ledger of `consumer_group` at the newest file's head, or at snapshot `at`.

    The ledger is empty for an empty table, and for a group that no metadata file mentions. Raises UndecidedLedger,
    ReplacedTable, and UnreadableLedger for a text of a newer version.

    :param history: the table's metadata files, newest first and complete; older files are only loaded if needed.
    :param at: the id of a snapshot in the newest file; None for the head.
    """
    chain = _SnapshotChain(consumer_group)
    empty = LedgerReading(None, Ledger(consumer_group), ())
    head: SnapshotFacts | None = None
    reason = "no metadata was given"
    for number, facts in enumerate(history):
        if number == 0:
            head_id = facts.head_id if at is None else at
            if head_id is None:
                return empty
            head = facts.snapshots[head_id]
            if (reading_at_hand := _reading_in_newest_file(facts, head, consumer_group)) is not None:
                return reading_at_hand
        chain.learn(facts)
        assert head is not None
        reading, reason = chain.walk(head)
        if reading is not None:
            return reading
    if not chain.group_seen or head is None:
        return empty
    error = ReplacedTable if reason == REPLACED else UndecidedLedger
    raise error(consumer_group, head.snapshot_id, reason)


def _reading_in_newest_file(facts: TableFacts, head: SnapshotFacts, consumer_group: str) -> LedgerReading | None:
    """Return the reading if the walk from the head meets an anchor in the newest file, or None.

    A shortcut for the usual case, a last landing at the head or a few snapshots below: the full search first learns
    every snapshot of the table. None means that the full search is needed: for an expired snapshot, or a cherry-pick.
    """
    anchors = _anchors_of(facts.properties, consumer_group)
    above: list[JournalEntry] = []
    current_id: int | None = head.snapshot_id if anchors else None
    while current_id is not None:
        if current_id in anchors:
            return anchors[current_id].reading(above)
        snapshot = facts.snapshots.get(current_id)
        if snapshot is None or _SOURCE in snapshot.summary:
            return None
        if (anchor := _restated(snapshot, consumer_group)) is not None:
            return anchor.reading(above)
        landing = decode_summary(snapshot.summary, consumer_group, f"snapshot {current_id}")
        if landing is not None:
            above.append(JournalEntry(current_id, landing))
        current_id = snapshot.parent_id
    return None


@dataclass(frozen=True, slots=True)
class _LedgerAnchor:
    """A snapshot with a known ledger: behind the first `count` entries of a journal."""

    value: LedgerProperty
    count: int

    def reading(self, above: Sequence[JournalEntry]) -> LedgerReading:
        """Return the ledger at a later snapshot; `above` are the landings between, newest first."""
        journal = self.value.journal[: self.count]
        return LedgerReading(self.value.base_id, self.value.base, (*journal, *reversed(above)))


def _anchors_of(properties: Mapping[str, str], consumer_group: str) -> dict[int, _LedgerAnchor]:
    """Return the snapshots at which a metadata file's properties show the ledger."""
    anchors: dict[int, _LedgerAnchor] = {}
    if (text := properties.get(property_key(consumer_group))) is not None:
        value = decode_property(text, consumer_group)
        anchors |= {
            entry.snapshot_id: _LedgerAnchor(value, count) for count, entry in enumerate(value.journal, start=1)
        }
        if value.base_id is not None:
            anchors.setdefault(value.base_id, _LedgerAnchor(value, 0))
    if (text := properties.get(anchors_key(consumer_group))) is not None:
        for snapshot_id, ledger in decode_anchors(text, consumer_group).items():
            anchors.setdefault(snapshot_id, _LedgerAnchor(LedgerProperty(snapshot_id, ledger, ()), 0))
    return anchors


def _restated(snapshot: SnapshotFacts, consumer_group: str) -> _LedgerAnchor | None:
    """Return the anchor at a snapshot that restates the group's ledger, or None for any other snapshot."""
    ledger = decode_restated(snapshot.summary, consumer_group, f"snapshot {snapshot.snapshot_id}")
    return None if ledger is None else _LedgerAnchor(LedgerProperty(snapshot.snapshot_id, ledger, ()), 0)


class _SnapshotChain:
    """Facts about parents, landings and anchors from all loaded metadata files."""

    def __init__(self, consumer_group: str) -> None:
        self.consumer_group = consumer_group
        # Whether any file mentions the group.
        self.group_seen = False
        self._parents: dict[int, int] = {}
        # The first snapshots of a table.
        self._roots: set[int] = set()
        self._landings: dict[int, Landing | None] = {}
        # The source of each cherry-picked snapshot.
        self._sources: dict[int, int] = {}
        self._anchors: dict[int, _LedgerAnchor] = {}
        # The snapshots that restate the group's ledger.
        self._restated: set[int] = set()
        # The snapshots of the file learned last, and the properties learned already.
        self._newer: Mapping[int, SnapshotFacts] = {}
        self._texts: set[tuple[str | None, ...]] = set()

    def learn(self, facts: TableFacts) -> None:
        """Add the facts of the next older metadata file.

        A snapshot is a root if it had no parent in the newer file and this file lacks it: expiry can't have erased its
        parent yet.
        """
        for snapshot in self._newer.values():
            # The snapshot first appears in the newer file, without a parent; expiry erased parents only later.
            if snapshot.snapshot_id not in facts.snapshots and snapshot.parent_id is None:
                self._roots.add(snapshot.snapshot_id)
        for snapshot in facts.snapshots.values():
            self._learn_snapshot(snapshot)
        self._learn_properties(facts.properties)
        self._newer = facts.snapshots

    def _learn_snapshot(self, snapshot: SnapshotFacts) -> None:
        """Keep a snapshot's parent, restated ledger and landing, and the source of a cherry-pick."""
        snapshot_id = snapshot.snapshot_id
        if snapshot.parent_id is not None:
            self._parents[snapshot_id] = snapshot.parent_id
        elif snapshot.sequence_number == 1:
            self._roots.add(snapshot_id)
        if (anchor := _restated(snapshot, self.consumer_group)) is not None:
            self.group_seen = True
            self._anchors.setdefault(snapshot_id, anchor)
            self._restated.add(snapshot_id)
        if snapshot_id in self._landings:
            return
        landing = decode_summary(snapshot.summary, self.consumer_group, f"snapshot {snapshot_id}")
        self._landings[snapshot_id] = landing
        self.group_seen |= landing is not None
        # A cherry-pick has its source's rows, but not its source's lakestream.* keys.
        if (source := snapshot.summary.get(_SOURCE)) is not None:
            self._sources[snapshot_id] = int(source)

    def _learn_properties(self, properties: Mapping[str, str]) -> None:
        """Keep the anchors of a metadata file's properties, and the landing of each anchor's snapshot."""
        texts = (properties.get(property_key(self.consumer_group)), properties.get(anchors_key(self.consumer_group)))
        if not any(texts) or texts in self._texts:
            return
        self._texts.add(texts)
        self.group_seen = True
        for snapshot_id, anchor in _anchors_of(properties, self.consumer_group).items():
            self._anchors.setdefault(snapshot_id, anchor)
            if anchor.count:
                self._landings.setdefault(snapshot_id, anchor.value.journal[anchor.count - 1].landing)

    def walk(self, head: SnapshotFacts) -> tuple[LedgerReading | None, str]:
        """Follow the parents from the head; return the reading and an empty text, or None and the reason.

        The reason specifies the snapshot at which the walk is stuck. REPLACED means: the walk reached a root, the table
        has rows, and no landing of the group descends from that root.
        """
        above: list[JournalEntry] = []
        current_id = head.snapshot_id
        while True:
            if current_id in self._anchors:
                return self._anchors[current_id].reading(above), ""
            if current_id not in self._landings:
                reason = f"snapshot {current_id} among its ancestors has expired, and no older metadata file shows it"
                return None, reason
            source = self._sources.get(current_id)
            if source is not None and source in self._restated:
                return None, f"snapshot {current_id} was cherry-picked from {source}, which restates the ledger"
            if source is not None and source not in self._landings:
                return None, f"snapshot {current_id} was cherry-picked from snapshot {source}, which has expired"
            landing = self._landings[current_id] or (self._landings[source] if source is not None else None)
            if landing is not None:
                above.append(JournalEntry(current_id, landing))
            if current_id in self._parents:
                current_id = self._parents[current_id]
            elif current_id in self._roots:
                break
            else:
                return None, f"expiry erased the parent of snapshot {current_id}, and no older metadata file shows it"
        # A table rolled back to before the first landing is empty; a table replaced by unknown rows is not.
        if not above and head.has_rows and self.group_seen and not self._root_has_landings(current_id):
            return None, REPLACED
        return LedgerReading(None, Ledger(self.consumer_group), tuple(reversed(above))), ""

    def _root_has_landings(self, root: int) -> bool:
        """Return whether a known landing of the group descends from `root`."""
        landing_ids = set(self._anchors) | {s for s, landing in self._landings.items() if landing is not None}
        return any(self._oldest_known_ancestor(snapshot_id) == root for snapshot_id in landing_ids)

    def _oldest_known_ancestor(self, snapshot_id: int) -> int:
        """Return the end of the walk from a snapshot along known parents."""
        while snapshot_id in self._parents:
            snapshot_id = self._parents[snapshot_id]
        return snapshot_id


# After a rollback the ledger is found by walking from the new head to a snapshot at which it is known. Expiry cuts that
# walk short. So the landing that expires snapshots notes the ledger at each snapshot that loses its parent: the table
# can still be rolled back to every kept snapshot. A new group, by its first landing or a rename, notes
# the snapshots that lost their parents before.
# main needs one anchor; the rest are for older tags and branches. Each anchor is a whole ledger.
MAX_ANCHORS = 32


def anchors_after(
    history: Callable[[], Iterable[TableFacts]], consumer_group: str, expiring: Collection[int]
) -> dict[int, Ledger]:
    """Return the group's anchors for the time after `expiring` have expired: known anchors, and new ones.

    A remaining snapshot whose parent expires gets a new anchor, unless its ledger can't be decided. At most
    MAX_ANCHORS are kept, the newest.

    :param history: yields the table's metadata files from the newest on, at each call.
    :param expiring: ids of the snapshots to expire. Their anchors are left out.
    """
    return _noted(history, consumer_group, lambda snapshot, _: snapshot.parent_id in expiring, expiring)


def anchors_of_newcomer(history: Callable[[], Iterable[TableFacts]], consumer_group: str) -> dict[int, Ledger]:
    """Return the anchors of a group new to the table, at each snapshot without a known parent.

    Call this function while the table has no ledger of the group: the ledger is then known at each snapshot. At
    most MAX_ANCHORS are returned, for the newest snapshots.

    :param history: as for `anchors_after`.
    """
    return _noted(history, consumer_group, lambda snapshot, facts: snapshot.parent_id not in facts.snapshots)


def _noted(
    history: Callable[[], Iterable[TableFacts]],
    consumer_group: str,
    is_cut: Callable[[SnapshotFacts, TableFacts], bool],
    expiring: Collection[int] = (),
) -> dict[int, Ledger]:
    """Return the group's anchors to keep, and new ones at snapshots for which `is_cut` returns True.

    :param is_cut: receives a snapshot, and the facts of the newest metadata file.
    """
    facts = next(iter(history()))
    text = facts.properties.get(codec.anchors_key(consumer_group))
    kept_anchors = {} if text is None else codec.decode_anchors(text, consumer_group)
    remaining = [s for s in facts.snapshots.values() if s.snapshot_id not in expiring]
    after: dict[int, Ledger] = {}
    for snapshot in sorted(remaining, key=lambda s: s.sequence_number, reverse=True):
        if len(after) == MAX_ANCHORS:
            break
        if snapshot.snapshot_id in kept_anchors:
            after[snapshot.snapshot_id] = kept_anchors[snapshot.snapshot_id]
        elif is_cut(snapshot, facts):
            try:
                after[snapshot.snapshot_id] = read(history(), consumer_group, at=snapshot.snapshot_id).ledger
            except (UndecidedLedger, codec.UnreadableLedger):
                continue
    return after
