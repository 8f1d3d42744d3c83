"""Which snapshots a landing lets expire, so that a table's metadata stays small however often it is landed into.

Every commit of every engine reads and writes the list of all snapshots. With `lakestream.snapshots.keep` on the table
(a table that the package creates has it) a landing removes the oldest ones in its own commit. Afterwards it deletes the
manifests that only they needed, and the data and delete files that they took out: a mirror's merges take many out.
What a landing that was rolled back, or a killed run, left behind is for the catalog's own removal of orphan files.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import RemoveSnapshotsUpdate
from pyiceberg.utils.concurrent import ExecutorFactory

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg import ledger_store

log = logging.getLogger(__name__)

KEEP = "lakestream.snapshots.keep"
GC_ENABLED = "gc.enabled"
YOUNGEST_MS = 3_600_000


def limit(properties: Mapping[str, str]) -> int | None:
    """Return how many snapshots the table keeps; None for all. Raises InvalidArgument for what is no such number."""
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
    """Return the snapshots that the next landing removes, oldest first: none until it would be a tenth too many.

    Never one that a branch or tag names, nor a commit of another branch than main; so never main's head either, which
    the landing's own snapshot has for its parent: that would look like the first snapshot of a new table.
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
    # With the landing's own snapshot, and main's head until now.
    over = len(candidates) + 2 - keep
    if over <= max(1, keep // 10):
        return []
    # A run of the oldest, without gaps: `delete_unneeded_files` relies on it.
    youngest = (int(time.time() * 1000) if now_ms is None else now_ms) - age
    expired = []
    for snapshot in candidates[:over]:
        if snapshot.timestamp_ms > youngest:
            break
        expired.append(snapshot.snapshot_id)
    return expired


def removals(snapshot_ids: Iterable[int]) -> tuple[RemoveSnapshotsUpdate, ...]:
    """Return the updates that remove snapshots: one for each, since REST catalogs before Iceberg 1.10 take only one."""
    return tuple(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": [s]}) for s in snapshot_ids)


def delete_unneeded_files(before: Table, after: TableMetadata, expired: Collection[int]) -> None:
    """Delete the files that only snapshots needed which a commit has removed; never raises.

    Called once the commit is known to be applied. A process that dies here only leaves files that nothing needs.
    """
    there = {s.snapshot_id for s in after.snapshots}
    gone = [s for s in before.metadata.snapshots if s.snapshot_id in expired and s.snapshot_id not in there]
    if not gone:
        return
    try:
        needed = _manifests_of(before.io, _keepers(before.metadata, after, {s.snapshot_id for s in gone}))
        needed |= {s.manifest_list for s in after.snapshots}
        manifests = (_manifests_of(before.io, gone) | {s.manifest_list for s in gone}) - needed
        data = taken_out(before, after, gone)
        list(ExecutorFactory.get_or_create().map(lambda path: _delete(before.io, path), sorted(manifests | data)))
    except Exception as e:  # noqa: BLE001  # the landing is done; what is left over harms nobody
        log.warning("The files of %s expired snapshots were left in place: %r", len(gone), e)
    else:
        log.info(
            "%s snapshots expired; %s manifests and manifest lists, and %s data and delete files that they had taken "
            "out, were deleted.",
            len(gone),
            len(manifests),
            len(data),
        )


def taken_out(before: Table, after: TableMetadata, gone: Iterable[Snapshot], now_ms: int | None = None) -> set[str]:
    """Return the table's own files that expired snapshots of main have taken out, and no snapshot has any more.

    Not those of the last hour: whoever planned a read, or a merge, before that may still open them.
    """
    main = {s.snapshot_id for s in ledger_store.live_ancestors(before.metadata)}
    latest = (int(time.time() * 1000) if now_ms is None else now_ms) - YOUNGEST_MS
    removers = {s.snapshot_id: s for s in gone if s.snapshot_id in main and s.timestamp_ms <= latest}
    removed = set[str]()
    for manifest in _listed(before.io, removers.values()):
        if manifest.added_snapshot_id in removers and manifest.deleted_files_count != 0:
            removed |= _files_in(before.io, manifest, deleted=True)
    folders = {before.metadata.location, before.metadata.properties.get(TableProperties.WRITE_DATA_PATH)}
    roots = tuple(folder.rstrip("/") + "/" for folder in folders if folder)
    removed = {path for path in removed if path.startswith(roots)}
    if not removed:
        return removed
    # Main's snapshots since then can't have them. The head is asked all the same: a file may have been put in again.
    since = {s.snapshot_id for s in ledger_store.live_ancestors(after)} - {ledger_store.head_of(after)}
    others = [s for s in after.snapshots if s.snapshot_id not in since]
    for manifest in _listed(before.io, others):
        removed -= _files_in(before.io, manifest, deleted=False)
    return removed


def _keepers(before: TableMetadata, after: TableMetadata, gone: Collection[int]) -> list[Snapshot]:
    """Return kept snapshots that between them list every manifest which any kept one shares with those gone.

    A commit lists manifests of its parent and new ones. So what a kept snapshot shares with one gone is also in the
    first kept snapshot above the one gone, or in the last one below it; where expiry has cut the chain between them,
    the latter is a protected one, since the oldest of all others go first.
    """
    kept = {s.snapshot_id: s for s in (*before.snapshots, *after.snapshots) if s.snapshot_id not in gone}
    wanted = protected(before) | protected(after)
    wanted |= {s.snapshot_id for s in kept.values() if s.parent_snapshot_id not in kept}
    wanted |= {s.parent_snapshot_id for s in before.snapshots if s.snapshot_id in gone and s.parent_snapshot_id}
    # `before` tells the true parents of those whose parents this commit took away.
    wanted |= {s.snapshot_id for s in before.snapshots if s.parent_snapshot_id in gone}
    return [snapshot for snapshot_id, snapshot in kept.items() if snapshot_id in wanted]


def protected(metadata: TableMetadata) -> set[int]:
    """Return the snapshots that branches and tags name, and all that other branches than main have of their own."""
    parents = {s.snapshot_id: s.parent_snapshot_id for s in metadata.snapshots}
    on_main = set(_ancestors(parents, metadata.current_snapshot_id))
    found = {ref.snapshot_id for ref in metadata.refs.values()}
    for name, ref in metadata.refs.items():
        if name != MAIN_BRANCH and ref.snapshot_ref_type == SnapshotRefType.BRANCH:
            found |= set(_ancestors(parents, ref.snapshot_id)) - on_main
    return found


def _ancestors(parents: Mapping[int, int | None], snapshot_id: int | None) -> Iterator[int]:
    while snapshot_id is not None and snapshot_id in parents:
        yield snapshot_id
        snapshot_id = parents[snapshot_id]


def _manifests_of(io: FileIO, snapshots: Iterable[Snapshot]) -> set[str]:
    return {manifest.manifest_path for manifest in _listed(io, snapshots)}


def _listed(io: FileIO, snapshots: Iterable[Snapshot]) -> Collection[ManifestFile]:
    """Return the manifests of snapshots, each once."""
    lists = ExecutorFactory.get_or_create().map(lambda s: s.manifests(io), snapshots)
    return {manifest.manifest_path: manifest for one in lists for manifest in one}.values()


def _files_in(io: FileIO, manifest: ManifestFile, *, deleted: bool) -> set[str]:
    """Return the files that a manifest says are taken out, or those that it says are there."""
    entries = manifest.fetch_manifest_entry(io, discard_deleted=not deleted)
    return {e.data_file.file_path for e in entries if (e.status == ManifestEntryStatus.DELETED) is deleted}


def _delete(io: FileIO, path: str) -> None:
    try:
        io.delete(path)
    except FileNotFoundError:  # another tool that let snapshots expire was quicker
        return


def _number(metadata: TableMetadata, name: str) -> int:
    text = metadata.properties.get(name, "")
    return int(text) if text.isdecimal() else 0


def _sequence(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0
