"""Expiry of snapshots by maintenance, with a snapshot without rows to keep the ledger readable.

The snapshot takes the ledgers of all groups to main's head, and notes them at each snapshot that is going to lose its
parent. The same commit removes the snapshots, or another engine does later, which does not know the ledger.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from airflow_lakestream.core import codec
from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.iceberg import fitness, ledger_store
from airflow_lakestream.iceberg.commit import retention
from airflow_lakestream.iceberg.commit.attempt import CommitAttempt
from airflow_lakestream.iceberg.commit.commit import RequestPart, property_part
from airflow_lakestream.iceberg.upkeep import ledger_edit
from airflow_lakestream.iceberg.write.files import delete_files

log = logging.getLogger(__name__)

# Key in the summary of a preparing snapshot: the number of snapshots that were to expire.
SUMMARY_EXPIRING = "lakestream.expiring"


class AgesOfBranches(LakestreamError, Terminal):
    """Branch with a separate age limit, applied by Iceberg's expiry regardless of all arguments."""

    def __init__(self, table: str, branches: Collection[str]) -> None:
        super().__init__(
            f"{table}: no snapshot was removed, since branch {', '.join(sorted(branches))} has a maximal age of its "
            "snapshots of its own: Iceberg uses this age in any case, and would remove some without which the "
            "ledger can't be read. Set history.expire.max-snapshot-age-ms on the table instead (ALTER TABLE ... "
            "REPLACE BRANCH without RETAIN takes the branch's own away)."
        )


@dataclass(frozen=True)
class ExpiryRule:
    """Rule of expiry: snapshots older than `older_than` seconds may go, except the newest `retain_last` of main.

    The table's own `history.expire.*` properties count if they keep more.
    """

    older_than: float
    retain_last: int = 1

    def expiring(self, metadata: TableMetadata, now_ms: int | None = None) -> list[int]:
        """Return the snapshots to expire, oldest first; empty if the property gc.enabled is false.

        Snapshots of a branch or tag, and commits of branches other than main, never expire. A landing that was rolled
        back stays until main has a later one: the later landing notes which rejected records no longer count. The
        result is also empty if only preparing snapshots (see `prepare`) are left to expire.
        """
        now = int(time.time() * 1000) if now_ms is None else now_ms
        properties = metadata.properties
        if properties.get(retention.GC_ENABLED, "true").lower() == "false":
            return []
        age = max(self.older_than * 1000, _number(properties.get(TableProperties.MAX_SNAPSHOT_AGE_MS)))
        keep = max(self.retain_last, _number(properties.get(TableProperties.MIN_SNAPSHOTS_TO_KEEP)))
        main = metadata.refs.get(MAIN_BRANCH)
        keep = max(keep, (main and main.min_snapshots_to_keep) or 0)
        on_main = list(ledger_store.live_ancestors(metadata))
        kept = retention.protected(metadata) | {snapshot.snapshot_id for snapshot in on_main[:keep]}
        landings = (snapshot for snapshot in on_main if codec.SUMMARY_GROUP in ledger_store.summary_of(snapshot))
        last = max((snapshot.sequence_number or 0 for snapshot in landings), default=0)
        ancestors = {snapshot.snapshot_id for snapshot in on_main}

        def awaits_later_landing(snapshot: Snapshot) -> bool:
            """Return whether a snapshot is a landing that was rolled back, and is newer than main's last landing."""
            is_landing = codec.SUMMARY_GROUP in ledger_store.summary_of(snapshot)
            return is_landing and snapshot.snapshot_id not in ancestors and (snapshot.sequence_number or 0) > last

        old = [s for s in metadata.snapshots if s.snapshot_id not in kept and s.timestamp_ms < now - age]
        candidates = [snapshot for snapshot in old if not awaits_later_landing(snapshot)]
        if all(SUMMARY_EXPIRING in ledger_store.summary_of(snapshot) for snapshot in candidates):
            # Preparing snapshots have no files, and each removal would add another one.
            return []
        return [snapshot.snapshot_id for snapshot in sorted(candidates, key=lambda s: s.sequence_number or 0)]


def prepare(catalog: Catalog, name: str, rule: ExpiryRule) -> list[int]:
    """Prepare a table for the removal of snapshots, and return the snapshots to remove, oldest first.

    A table with ledgers gets a snapshot without files; without snapshots to remove, nothing is committed. Raises
    UndecidedLedger for a ledger that can't be read even now, AgesOfBranches, and EditNotDone.
    """
    table = fitness.load_table(catalog, name)
    expiring = rule.expiring(table.metadata)
    if not expiring or not ledger_store.groups(table):
        return expiring
    return _commit(catalog, table, rule, removes=False).expiring


@dataclass(frozen=True)
class ExpiredSnapshots:
    """Result of an expiry: the removed snapshots, oldest first, and the number of deleted files."""

    snapshots: tuple[int, ...] = ()
    files: int = 0


def expire(catalog: Catalog, name: str, rule: ExpiryRule) -> ExpiredSnapshots:
    """Remove snapshots in one commit, then delete the table's own files that no other snapshot has.

    Raises the errors of `prepare`; files that can't be deleted are orphans.
    """
    table = fitness.load_table(catalog, name)
    if not rule.expiring(table.metadata):
        return ExpiredSnapshots()
    edit = _commit(catalog, table, rule, removes=True)
    before, after = edit.before, catalog.load_table(name)
    kept_ids = {snapshot.snapshot_id for snapshot in after.metadata.snapshots}
    removed = [s for s in before.metadata.snapshots if s.snapshot_id in set(edit.expiring) - kept_ids]
    try:
        unneeded = needed_only_by(before, after.metadata, removed)
    except FileNotFoundError as e:
        # Once the snapshots are removed, a removal of orphans or another expiry may delete their files first.
        log.warning("%s: files of %s expired snapshots are left to the removal of orphans: %s", name, len(removed), e)
        unneeded = set()
    undeleted = delete_files(before.io, sorted(unneeded))
    return ExpiredSnapshots(tuple(edit.expiring), len(unneeded) - len(undeleted))


def needed_only_by(before: Table, after: TableMetadata, removed: Sequence[Snapshot]) -> set[str]:
    """Return the table's own files of removed snapshots that no snapshot has now: data, manifests and statistics.

    :param before: the table before the removal.
    :param after: the metadata now.
    """
    kept = {manifest.manifest_path: manifest for manifest in retention.listed(before.io, after.snapshots)}
    unneeded = [m for m in retention.listed(before.io, removed) if m.manifest_path not in kept]
    files = {manifest.manifest_path for manifest in unneeded} | {snapshot.manifest_list for snapshot in removed}
    files -= {snapshot.manifest_list for snapshot in after.snapshots}
    data = {entry.data_file.file_path for m in unneeded for entry in m.fetch_manifest_entry(before.io, False)}
    for manifest in kept.values() if data else ():
        data -= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(before.io)}
    files |= data | (statistics_of(before.metadata) - statistics_of(after))
    return {path for path in files if path.startswith(retention.own_folders(before.metadata))}


def statistics_of(metadata: TableMetadata) -> set[str]:
    """Return the paths of statistics files."""
    files = (*metadata.statistics, *metadata.partition_statistics)
    return {file.statistics_path for file in files}


def _commit(catalog: Catalog, table: Table, rule: ExpiryRule, *, removes: bool) -> _ExpiryEdit:
    """Commit the snapshot with the ledgers, with `removes` also the removal of snapshots; return the edit."""
    name = ledger_store.name_of(table)
    fitness.check(catalog, table)
    refs = table.metadata.refs.items()
    aged = [n for n, ref in refs if ref.snapshot_ref_type == SnapshotRefType.BRANCH and ref.max_snapshot_age_ms]
    if aged:
        raise AgesOfBranches(name, aged)
    edits = list[_ExpiryEdit]()

    def attempt() -> CommitAttempt:
        edits.append(edit := _ExpiryEdit(catalog, name, rule, removes))
        return ledger_edit.edit_attempt(catalog, edit.before, edit.part, {SUMMARY_EXPIRING: str(len(edit.expiring))})

    ledger_edit.drive(name, attempt)
    return edits[-1]


class _ExpiryEdit:
    """Snapshot with unchanged ledgers, noted at further snapshots; the table before, and the snapshots to expire.

    :param removes: whether the same commit removes the snapshots.
    """

    def __init__(self, catalog: Catalog, name: str, rule: ExpiryRule, removes: bool) -> None:
        self.before = before = catalog.load_table(name)
        self._catalog, self._rule, self._removes = catalog, rule, removes
        self.expiring = rule.expiring(before.metadata)
        for group in ledger_store.groups(before):
            # An undecided ledger ends the expiry.
            ledger_store.read_ledger(before, group)

    def part(self, head: Table | None, snapshot_id: int) -> RequestPart:
        """Return the ledgers, and the removals. The snapshots are chosen again: a tag may have come since."""
        assert head is not None, "the expiry was decided for a table"
        self.expiring, self.before = self._rule.expiring(head.metadata), head
        properties = {}
        for group in ledger_store.groups(head):
            value = ledger_store.read(head, group).property_after(snapshot_id, None)
            properties[codec.property_key(group)] = codec.encode_property(value)
            properties |= ledger_store.properties_of_expiry(head, group, self.expiring)
        notes = property_part(properties).updates
        if not self._removes:
            return RequestPart(updates=notes)
        required = retention.requirements(self._catalog, self.expiring)
        return RequestPart(required, (*notes, *retention.removals(self.expiring)))


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0
