"""Snapshots of a table's history not yet emitted as events: after a cursor, oldest first.

A cursor is the last emitted snapshot. Usually main's history leads back to it. After a rollback it does not: then the
fork of the two histories counts, so that returned snapshots are emitted again rather than not at all. If the cursor's
snapshot has expired, its sequence number decides: sequence numbers only grow.

Pure: the adapters turn a table's metadata into `core.lineage.TableFacts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_lakestream.core.codec import SUMMARY_GROUP, decode_summary
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.lineage import SnapshotFacts, TableFacts

_SOURCE = "source-snapshot-id"


@dataclass(frozen=True, slots=True)
class EventCursor:
    """The last emitted snapshot; `snapshot_id` is None before the first emission.

    `table_id` is the table's own: a table dropped and created again has another. Empty if there was no table yet.
    """

    sequence: int = 0
    snapshot_id: int | None = None
    table_id: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready values; the id as text, since browsers round 64-bit numbers."""
        snapshot = None if self.snapshot_id is None else str(self.snapshot_id)
        return {"sequence": self.sequence, "snapshot": snapshot, "table": self.table_id}

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> EventCursor:
        """Parse the values of `to_json`."""
        snapshot = value["snapshot"]
        return cls(int(value["sequence"]), None if snapshot is None else int(snapshot), str(value["table"]))

    def of(self, table_id: str) -> EventCursor:
        """Return the cursor of a table, reset if the table was created again."""
        return self if self.table_id == table_id else EventCursor(table_id=table_id)


@dataclass(frozen=True, slots=True)
class PendingSnapshots:
    """The snapshots after a cursor, oldest first.

    `is_cut`: earlier ones may have expired. `leads_on`: the history goes on from the cursor, which may move to
    the last snapshot; otherwise the table was rolled back, and may come back.
    """

    snapshots: tuple[SnapshotFacts, ...] = ()
    is_cut: bool = False
    leads_on: bool = True


def head_cursor(facts: TableFacts, table_id: str = "") -> EventCursor:
    """Return the cursor after all snapshots."""
    if facts.head_id is None:
        return EventCursor(table_id=table_id)
    return EventCursor(facts.snapshots[facts.head_id].sequence_number, facts.head_id, table_id)


def pending_snapshots(facts: TableFacts, cursor: EventCursor) -> PendingSnapshots:
    """Return the snapshots of main's history after the cursor, oldest first.

    If main was rolled back, these are the snapshots after the fork of main's and the cursor's histories. If the
    cursor's snapshot has expired, these are the snapshots with a higher sequence number.
    """
    walk: list[SnapshotFacts] = []
    stop_ids, floor = {cursor.snapshot_id}, cursor.sequence
    end_id = _walk_back(facts, facts.head_id, walk, floor, stop_ids)
    is_rolled_back = cursor.snapshot_id in facts.snapshots and end_id != cursor.snapshot_id
    if is_rolled_back:
        # The cursor's snapshot is not an ancestor of the head: go on to the fork of both histories.
        stop_ids, floor = _known_snapshots(facts, cursor.snapshot_id)
        end_id = _walk_back(facts, end_id, walk, floor, stop_ids)
    # The walk ended without a snapshot: at the table's first snapshot, or before an expired snapshot.
    ends_in_nothing = end_id is None or not (end_id in stop_ids or end_id in facts.snapshots)
    is_cut = bool(walk) and ends_in_nothing and walk[-1].sequence_number > floor + 1
    return PendingSnapshots(tuple(reversed(walk)), is_cut, leads_on=not is_rolled_back)


def landing_in(facts: TableFacts, snapshot: SnapshotFacts) -> tuple[str, Landing] | None:
    """Return (consumer group, landing) of a snapshot, or None for a commit without a landing.

    A cherry-pick has the landing of its source. Raises UnreadableLedger.
    """
    summary = snapshot.summary
    source = summary.get(_SOURCE)
    if SUMMARY_GROUP not in summary and source is not None and int(source) in facts.snapshots:
        # A cherry-pick has its source's rows, but not its source's lakestream.* keys.
        summary = facts.snapshots[int(source)].summary
    return landing_of_summary(summary, f"snapshot {snapshot.snapshot_id}")


def landing_of_summary(summary: Mapping[str, str], where: str) -> tuple[str, Landing] | None:
    """Return (consumer group, landing) of a summary, or None without a landing. Raises UnreadableLedger.

    None, too, for a ledger change that lands no record: see `_lands`.

    :param where: name of the snapshot, for the error.
    """
    if (group := summary.get(SUMMARY_GROUP)) is None:
        return None
    landing = decode_summary(summary, group, where)
    return (group, landing) if landing is not None and _lands(landing) else None


def _lands(landing: Landing) -> bool:
    """Return whether a ledger change lands records, or has a group's origin, losses or covered time.

    Deletions on purpose and takeovers of another tool's rows change the ledger as well, but land no record.
    """
    entries = landing.topics.values()
    return landing.adopted is None and any(
        entry.held or entry.replaced or entry.covered or entry.origin for entry in entries
    )


def _walk_back(
    facts: TableFacts, start: int | None, walk: list[SnapshotFacts], floor: int, stop: set[int | None]
) -> int | None:
    """Walk along the parents from `start`, and append the snapshots to `walk`; return the end of the walk.

    The walk ends at a snapshot of `stop`, at a sequence number of `floor` or below, at a snapshot without metadata,
    or at None behind the first snapshot.
    """
    current_id = start
    while current_id is not None and current_id not in stop and current_id in facts.snapshots:
        snapshot = facts.snapshots[current_id]
        if snapshot.sequence_number <= floor:
            break
        walk.append(snapshot)
        current_id = snapshot.parent_id
    return current_id


def _known_snapshots(facts: TableFacts, snapshot_id: int | None) -> tuple[set[int | None], int]:
    """Return a snapshot with all known ancestors, and the lowest sequence number of these.

    The number is 0 if the history is whole, down to the table's first snapshot.
    """
    chain: list[SnapshotFacts] = []
    end = _walk_back(facts, snapshot_id, chain, 0, set())
    is_whole = end is None and chain[-1].sequence_number == 1
    return {snapshot.snapshot_id for snapshot in chain}, 0 if is_whole else chain[-1].sequence_number
