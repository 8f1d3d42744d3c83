"""Expiry of snapshots by landings, for small metadata of a table with many landings.

Every commit of every engine reads and writes the list of all snapshots. With `lakestream.snapshots.keep` on the table
(a table that the package creates has it) a landing removes the oldest snapshots in its own commit. Afterwards it
deletes the manifests that only these needed, and the data and delete files that they removed: a mirror's merges remove
many. Files left by a rolled back landing, or by a killed run, are for the catalog's own removal of orphan files.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import cast

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import RemoveSnapshotsUpdate, TableRequirement, ValidatableTableRequirement
from pyiceberg.utils.concurrent import ExecutorFactory

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.commit.hive import NotTaken

log = logging.getLogger(__name__)

KEEP = "lakestream.snapshots.keep"
GC_ENABLED = "gc.enabled"
# Files removed from the table within this time, in milliseconds, are not deleted yet: a read may still open them.
YOUNGEST_MS = 3_600_000
# Properties with the folders of the table's files, if not below the table's location.
_FOLDERS = (TableProperties.WRITE_DATA_PATH, TableProperties.WRITE_METADATA_PATH)


def limit(properties: Mapping[str, str]) -> int | None:
    """Return the number of snapshots to keep, or None for all. Raises InvalidArgument."""
    text = properties.get(KEEP, "").strip()
    if text in ("", "all"):
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InvalidArgument(
            "table_properties",
            f"{KEEP} is {text!r}.",
            'Give the number of snapshots to keep, 1 or more, or "all" to let none expire.',
        )
    return int(text)


def expiring(metadata: TableMetadata, now_ms: int | None = None) -> list[int]:
    """Return the ids of snapshots for removal by the next landing, oldest first.

    Empty until the surplus is more than a tenth of the limit. Snapshots of branches and tags, and commits of branches
    other than main are never removed, nor is main's head: without this parent, the landing's own snapshot would look
    like the first snapshot of a new table.
    """
    keep = limit(metadata.properties)
    if keep is None or metadata.properties.get(GC_ENABLED, "true").lower() == "false":
        return []
    main = metadata.refs.get(MAIN_BRANCH)
    keep = max(
        keep, _number(metadata, TableProperties.MIN_SNAPSHOTS_TO_KEEP), (main and main.min_snapshots_to_keep) or 0
    )
    age = max(_number(metadata, TableProperties.MAX_SNAPSHOT_AGE_MS), (main and main.max_snapshot_age_ms) or 0)
    named = protected(metadata)
    candidates = sorted((s for s in metadata.snapshots if s.snapshot_id not in named), key=_sequence)
    # The landing's own snapshot and the present head of main count, too.
    over = len(candidates) + 2 - keep
    if over <= max(1, keep // 10):
        return []
    # The oldest snapshots without gaps: `delete_unneeded_files` relies on it.
    youngest = (int(time.time() * 1000) if now_ms is None else now_ms) - age
    expired = []
    for snapshot in candidates[:over]:
        if snapshot.timestamp_ms > youngest:
            break
        expired.append(snapshot.snapshot_id)
    return expired


def removals(snapshot_ids: Iterable[int]) -> tuple[RemoveSnapshotsUpdate, ...]:
    """Return an update for the removal of each snapshot: REST catalogs before Iceberg 1.10 accept a single id."""
    return tuple(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": [s]}) for s in snapshot_ids)


class NoReferences(ValidatableTableRequirement):
    """Requirement that no tag and no branch needs the snapshots of a removal, checked on the metadata that is replaced.

    A catalog removes the tags of a snapshot together with the snapshot: also a tag that came after the last look.
    """

    type: str = "assert-no-references"
    snapshot_ids: list[int]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]  # PyIceberg's port
        """Raise NotTaken if a tag or branch needs one of the snapshots: the removal is chosen again."""
        if base_metadata is not None and protected(base_metadata).intersection(self.snapshot_ids):
            raise NotTaken("a tag or branch of an expiring snapshot was made since the commit was prepared")


def requirements(catalog: Catalog, snapshot_ids: Collection[int]) -> tuple[TableRequirement, ...]:
    """Return the requirement of a removal; empty for a REST catalog, whose server knows only Iceberg's requirements."""
    replaces_metadata = hasattr(catalog, "_update_and_stage_table")
    if not snapshot_ids or not replaces_metadata:
        return ()
    return (cast(TableRequirement, NoReferences(snapshot_ids=list(snapshot_ids))),)


def delete_unneeded_files(before: Table, after: TableMetadata, expired: Collection[int]) -> None:
    """Delete the files needed only by snapshots removed in a commit; never raises.

    Called once the commit is known to be applied. A process that dies here leaves only files that are not needed.

    :param before: the table before the commit.
    :param expired: the ids of the removed snapshots.
    """
    kept_ids = {s.snapshot_id for s in after.snapshots}
    removed = [s for s in before.metadata.snapshots if s.snapshot_id in expired and s.snapshot_id not in kept_ids]
    if not removed:
        return
    try:
        needed_paths = _manifests_of(before.io, _keepers(before.metadata, after, {s.snapshot_id for s in removed}))
        needed_paths |= {s.manifest_list for s in after.snapshots}
        manifests = (_manifests_of(before.io, removed) | {s.manifest_list for s in removed}) - needed_paths
        data_paths = taken_out(before, after, removed)
        list(ExecutorFactory.get_or_create().map(lambda path: _delete(before.io, path), sorted(manifests | data_paths)))
    except Exception as e:  # noqa: BLE001  # the landing is done; what is left over harms nobody
        log.warning("The files of %s expired snapshots were left in place: %r", len(removed), e)
    else:
        log.info(
            "%s snapshots expired; %s manifests and manifest lists, and %s data and delete files that they had taken "
            "out, were deleted.",
            len(removed),
            len(manifests),
            len(data_paths),
        )


def taken_out(before: Table, after: TableMetadata, expired: Iterable[Snapshot], now_ms: int | None = None) -> set[str]:
    """Return the table's own files removed by expired snapshots of main, and absent from all snapshots.

    Files removed within the last hour are excluded: a read, or a merge, planned before may still open them.

    :param before: the table before the expiry.
    """
    main = {s.snapshot_id for s in ledger_store.live_ancestors(before.metadata)}
    latest = (int(time.time() * 1000) if now_ms is None else now_ms) - YOUNGEST_MS
    removers = {s.snapshot_id: s for s in expired if s.snapshot_id in main and s.timestamp_ms <= latest}
    removed = set[str]()
    for manifest in listed(before.io, removers.values()):
        if manifest.added_snapshot_id in removers and manifest.deleted_files_count != 0:
            removed |= _files_in(before.io, manifest, deleted=True)
    removed = {path for path in removed if path.startswith(own_folders(before.metadata))}
    if not removed:
        return removed
    # Main's later snapshots lack the removed files. Of main, only the head is read: a file may have been added again.
    main_after = {s.snapshot_id for s in ledger_store.live_ancestors(after)} - {ledger_store.head_of(after)}
    other_snapshots = [s for s in after.snapshots if s.snapshot_id not in main_after]
    for manifest in listed(before.io, other_snapshots):
        removed -= _files_in(before.io, manifest, deleted=False)
    return removed


def own_folders(metadata: TableMetadata) -> tuple[str, ...]:
    """Return the folders of the table's own files. Files elsewhere were added by somebody, and are never deleted."""
    folders = (metadata.location, *(metadata.properties.get(key) for key in _FOLDERS))
    return tuple(folder.rstrip("/") + "/" for folder in folders if folder)


def _keepers(before: TableMetadata, after: TableMetadata, removed: Collection[int]) -> list[Snapshot]:
    """Return kept snapshots with all manifests shared by any kept and any removed snapshot.

    A commit lists manifests of its parent and new ones. So a manifest of a kept and of a removed snapshot is also in
    the first kept snapshot above the removed one, or in the last kept one below. If expiry has cut the chain between
    these two, the kept snapshot below is a protected one: of all others, the oldest are removed first.
    """
    kept = {s.snapshot_id: s for s in (*before.snapshots, *after.snapshots) if s.snapshot_id not in removed}
    wanted = protected(before) | protected(after)
    wanted |= {s.snapshot_id for s in kept.values() if s.parent_snapshot_id not in kept}
    wanted |= {s.parent_snapshot_id for s in before.snapshots if s.snapshot_id in removed and s.parent_snapshot_id}
    # `before` has the true parents of snapshots whose parents this commit removed.
    wanted |= {s.snapshot_id for s in before.snapshots if s.parent_snapshot_id in removed}
    return [snapshot for snapshot_id, snapshot in kept.items() if snapshot_id in wanted]


def protected(metadata: TableMetadata) -> set[int]:
    """Return the ids of the snapshots that expiry must keep.

    These are the snapshots that branches and tags point to, and, of every branch except main, the ancestors that are
    not in main's history.
    """
    parents = {s.snapshot_id: s.parent_snapshot_id for s in metadata.snapshots}
    on_main = set(_ancestors(parents, metadata.current_snapshot_id))
    snapshot_ids = {ref.snapshot_id for ref in metadata.refs.values()}
    for name, ref in metadata.refs.items():
        if name != MAIN_BRANCH and ref.snapshot_ref_type == SnapshotRefType.BRANCH:
            snapshot_ids |= set(_ancestors(parents, ref.snapshot_id)) - on_main
    return snapshot_ids


def _ancestors(parents: Mapping[int, int | None], snapshot_id: int | None) -> Iterator[int]:
    """Yield a snapshot and its ancestors, newest first, up to a removed one."""
    while snapshot_id is not None and snapshot_id in parents:
        yield snapshot_id
        snapshot_id = parents[snapshot_id]


def _manifests_of(io: FileIO, snapshots: Iterable[Snapshot]) -> set[str]:
    return {manifest.manifest_path for manifest in listed(io, snapshots)}


def listed(io: FileIO, snapshots: Iterable[Snapshot]) -> Collection[ManifestFile]:
    """Return the manifests of snapshots, without duplicates."""
    lists = ExecutorFactory.get_or_create().map(lambda s: s.manifests(io), snapshots)
    return {manifest.manifest_path: manifest for manifests in lists for manifest in manifests}.values()


def _files_in(io: FileIO, manifest: ManifestFile, *, deleted: bool) -> set[str]:
    """Return the files removed in a manifest if `deleted`, else the live files."""
    entries = manifest.fetch_manifest_entry(io, discard_deleted=not deleted)
    return {e.data_file.file_path for e in entries if (e.status == ManifestEntryStatus.DELETED) is deleted}


def _delete(io: FileIO, path: str) -> None:
    try:
        io.delete(path)
    except FileNotFoundError:  # another tool that lets snapshots expire was quicker
        return


def _number(metadata: TableMetadata, name: str) -> int:
    """Return a table property as a number, or 0 if the property is missing or not a number."""
    text = metadata.properties.get(name, "")
    return int(text) if text.isdecimal() else 0


def _sequence(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0
