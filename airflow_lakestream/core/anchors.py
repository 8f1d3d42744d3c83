"""Anchors: the ledger at the snapshots whose ancestors a landing lets expire.

A table that is rolled back has its ledger found by walking from the new head to a snapshot at which the ledger is
known. Expiry cuts that way short. So the landing that lets snapshots expire notes the ledger at each snapshot that
loses its parent by it: every snapshot that is kept can still be rolled back to. A group that comes to a table, by its
first landing or by a renaming, was not there when earlier ones lost theirs: it notes them then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from airflow_lakestream.core import codec, lineage
from airflow_lakestream.core.ledger import Ledger
from airflow_lakestream.core.lineage import SnapshotFacts, TableFacts

# One is needed for main; the others belong to tags and branches below it. Each is a whole ledger.
MAX_ANCHORS = 32


def anchors_after(
    history: Callable[[], Iterable[TableFacts]], consumer_group: str, expiring: Collection[int]
) -> dict[int, Ledger]:
    """Return the group's anchors for the time after `expiring` have gone: those still of use, and the new ones.

    `history` begins the table's metadata files anew, newest first. Where the ledger can't be decided, no anchor is set.
    """
    return _noted(history, consumer_group, lambda snapshot, _: snapshot.parent_id in expiring, expiring)


def anchors_of_newcomer(history: Callable[[], Iterable[TableFacts]], consumer_group: str) -> dict[int, Ledger]:
    """Return the anchors with which a group comes to a table: at every snapshot that has lost its parent already.

    To be asked while the table has no ledger of the group: at each of them it is known then.
    """
    return _noted(history, consumer_group, lambda snapshot, facts: snapshot.parent_id not in facts.snapshots)


def _noted(
    history: Callable[[], Iterable[TableFacts]],
    consumer_group: str,
    is_cut: Callable[[SnapshotFacts, TableFacts], bool],
    expiring: Collection[int] = (),
) -> dict[int, Ledger]:
    facts = next(iter(history()))
    text = facts.properties.get(codec.anchors_key(consumer_group))
    known = {} if text is None else codec.decode_anchors(text, consumer_group)
    kept = [s for s in facts.snapshots.values() if s.snapshot_id not in expiring]
    after: dict[int, Ledger] = {}
    for snapshot in sorted(kept, key=lambda s: s.sequence_number, reverse=True):
        if len(after) == MAX_ANCHORS:
            break
        if snapshot.snapshot_id in known:
            after[snapshot.snapshot_id] = known[snapshot.snapshot_id]
        elif is_cut(snapshot, facts):
            try:
                after[snapshot.snapshot_id] = lineage.read(history(), consumer_group, at=snapshot.snapshot_id).ledger
            except (lineage.UndecidedLedger, codec.UnreadableLedger):
                continue
    return after
