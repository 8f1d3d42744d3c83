"""Anchors: the ledger at the snapshots whose ancestors a landing lets expire.

A table that is rolled back has its ledger found by walking from the new head to a snapshot at which the ledger is
known. Expiry cuts that way short. So the landing that lets snapshots expire notes the ledger at each snapshot that
loses its parent by it: every snapshot that is kept can still be rolled back to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from airflow_lakestream.core import codec, lineage
from airflow_lakestream.core.ledger import Ledger
from airflow_lakestream.core.lineage import TableFacts

# One is needed for main; the others belong to tags and branches below it. Each is a whole ledger.
MAX_ANCHORS = 32


def anchors_after(
    history: Callable[[], Iterable[TableFacts]], consumer_group: str, expiring: Collection[int]
) -> dict[int, Ledger]:
    """Return the group's anchors for the time after `expiring` have gone: those still of use, and the new ones.

    `history` begins the table's metadata files anew, newest first. Where the ledger can't be decided, no anchor is set.
    """
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
        elif snapshot.parent_id in expiring:
            try:
                after[snapshot.snapshot_id] = lineage.read(history(), consumer_group, at=snapshot.snapshot_id).ledger
            except (lineage.UndecidedLedger, codec.UnreadableLedger):
                continue
    return after
