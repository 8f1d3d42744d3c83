"""Tags of an Iceberg table, and the snapshot with exactly some offsets of a topic."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType

from airflow_lakestream.core import lineage
from airflow_lakestream.core.landing.job import ConflictCount, Contention
from airflow_lakestream.core.landing.plan import first_hole, reach
from airflow_lakestream.core.ledger import TopicIdentity
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg import ledger_store

# The number of snapshots to search: a snapshot is tagged soon after its landing.
_MOST = 20


def snapshot_at(table: Table, group: str, identity: TopicIdentity, ends: Mapping[int, int]) -> int | None:
    """Return the newest snapshot of main whose ledger has exactly the offsets below `ends`, or None.

    :param ends: the offset after the last one, by partition.
    """
    for snapshot in islice(ledger_store.live_ancestors(table.metadata), _MOST):
        ledger = lineage.read(ledger_store.history(table), group, at=snapshot.snapshot_id).ledger
        entry = ledger.entry(identity)
        tops = reach(entry)
        # No offset below `end` is missing, and no offset from `end` on is in the ledger.
        if all(first_hole(entry, identity, p) == max(end, tops.get(p, 0)) == end for p, end in ends.items()):
            return snapshot.snapshot_id
    return None


def check_tag(table: Table, name: str, *, replaces: bool) -> None:
    """Refuse a tag's name if taken by a branch, or by a tag, unless `replaces`. Raises InvalidArgument."""
    ref = table.metadata.refs.get(name)
    if ref is not None and ref.snapshot_ref_type != SnapshotRefType.TAG:
        raise InvalidArgument("name", f"{ledger_store.name_of(table)} has a branch {name!r}.", "Choose another name.")
    if ref is not None and not replaces:
        problem = f"{ledger_store.name_of(table)} has a tag {name!r} already."
        raise InvalidArgument("name", problem, "Choose another name, or move the tag: --replace.")


def set_tag(catalog: Catalog, table: str, name: str, snapshot_id: int | None) -> None:
    """Let a new tag point to a snapshot; None removes the tag, if it exists.

    Raises InvalidArgument for a name that is taken, Contention, and errors of the catalog.
    """

    def once() -> None:
        loaded = catalog.load_table(table)
        check_tag(loaded, name, replaces=snapshot_id is None)
        if snapshot_id is not None:
            loaded.manage_snapshots().create_tag(snapshot_id, name).commit()
        elif name in loaded.metadata.refs:
            loaded.manage_snapshots().remove_tag(name).commit()

    ConflictCount(lambda error: Contention(table, error)).run(once, CommitFailedException)
