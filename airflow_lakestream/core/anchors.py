"""Ledger at snapshots without a parent, for rollbacks after an expiry.

After a rollback the ledger is found by walking from the new head to a snapshot at which it is known. Expiry cuts that
walk short. So the landing that expires snapshots notes the ledger at each snapshot that loses its parent: the table can
still be rolled back to every kept snapshot. A group that is new to the table, by its first landing or a rename, notes
the snapshots that lost their parents before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from airflow_lakestream.core import codec, lineage
from airflow_lakestream.core.ledger import Ledger
from airflow_lakestream.core.lineage import SnapshotFacts, TableFacts

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
    # The newest metadata file.
    facts = next(iter(history()))
    text = facts.properties.get(codec.anchors_key(consumer_group))
    known = {} if text is None else codec.decode_anchors(text, consumer_group)
    remaining = [s for s in facts.snapshots.values() if s.snapshot_id not in expiring]
    after: dict[int, Ledger] = {}
    for snapshot in sorted(remaining, key=lambda s: s.sequence_number, reverse=True):
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
