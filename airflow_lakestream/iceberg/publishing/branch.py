"""Branch of an Iceberg table with appends of another engine: new files, found from the branch's head.

The files are in the head's manifests, so none is missed if a snapshot between has expired. New files are found by
their sequence numbers: these rise along a branch, even if snapshots expire.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, SetSnapshotRefUpdate

from airflow_lakestream.core.published import PublicationMarker
from airflow_lakestream.core.publishing.branch import (
    BranchFile,
    BranchSnapshot,
    BranchStep,
    EngineJobLine,
    EnginePositions,
    NewSnapshots,
)
from airflow_lakestream.core.publishing.refusals import BranchCut, BranchRewritten, MainHasBranch
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg import fitness, ledger_store

_EXPIRED = (
    "snapshots that the table got since the last publication have expired, and no metadata file that is left shows "
    "them, so they may have been the engine's"
)


def reason_incomplete(table: Table, branch: str, base: int, last: int | None, positions: EnginePositions) -> str:
    """Return the reason why the branch may lack snapshots of the engine; empty if the branch is complete.

    Metadata files are read, newest first, until the question is decided. Raises BranchCut if the branch certainly lacks
    a snapshot of the engine.

    :param base: the sequence number above which the engine's snapshots are.
    :param last: the snapshot that was published last, which must be an ancestor of the branch's head; None if unknown.
    """
    newest = ledger_store.newest_sequence(table.metadata)
    known = _KnownSnapshots(base, table.metadata.refs[branch].snapshot_id, last)
    for one in ledger_store.metadata_files(table):
        known.learn(one)
        if (lacking := known.lacking(positions)) is not None:
            raise BranchCut(ledger_store.name_of(table), branch, lacking)
        if known.is_decided and (ledger_store.newest_sequence(one) <= base or known.has_all(newest)):
            return ""
    return _EXPIRED


@dataclass
class _KnownSnapshots:
    """Snapshots above a sequence number, known from the metadata files read before.

    :param base: the sequence number.
    :param head: the id of the branch's head.
    :param last: the snapshot published last, or None if unknown.
    :param snapshots: snapshots above `base`, by id.
    :param below: ids of known snapshots not above `base`.
    :param parents: ids of the parents of `snapshots`.
    """

    base: int
    head: int
    last: int | None
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    below: set[int] = field(default_factory=set)
    parents: dict[int, int] = field(default_factory=dict)

    def learn(self, metadata: TableMetadata) -> None:
        """Add the next older file: expiry removes snapshots, and by PyIceberg the parent ids of the children."""
        for one in metadata.snapshots:
            if (one.sequence_number or 0) <= self.base:
                self.below.add(one.snapshot_id)
                continue
            self.snapshots.setdefault(one.snapshot_id, one)
            if one.parent_snapshot_id is not None:
                self.parents.setdefault(one.snapshot_id, one.parent_snapshot_id)

    def has_all(self, newest: int) -> bool:
        """Return whether each sequence number above `base` is known, up to the newest."""
        return len({one.sequence_number for one in self.snapshots.values()}) == newest - self.base

    @property
    def is_decided(self) -> bool:
        """Whether the head's ancestors are known down to the first ancestor not above `base`."""
        line, end = self._walk()
        return end == self.last if self.last is not None else end in self.below or self._lowest(line) == 1

    def lacking(self, positions: EnginePositions) -> int | None:
        """Return a snapshot of the engine certainly outside of the head's ancestors, or None."""
        line, end = self._walk()
        if self.last is not None and end != self.last and end in self.below:
            return self.last
        # Numbers fall along the parents: a snapshot below the last known ancestor may be an ancestor that has expired.
        lowest = 0 if self.is_decided else self._lowest(line)
        for one in self.snapshots.values():
            is_known = (one.sequence_number or 0) >= lowest and one.snapshot_id not in line
            if is_known and positions.is_of_line(ledger_store.summary_of(one)):
                return one.snapshot_id
        return None

    def _lowest(self, line: set[int]) -> int:
        return min((self.snapshots[one].sequence_number or 0 for one in line), default=0)

    def _walk(self) -> tuple[set[int], int | None]:
        """Return the head's ancestors above `base`, and the id of the next ancestor, or None if unknown."""
        line: set[int] = set()
        at: int | None = self.head
        while at is not None and at in self.snapshots:
            line.add(at)
            at = self.parents.get(at)
        return line, at


def new_snapshots(
    table: Table, branch: str, marker: PublicationMarker | None, positions: EnginePositions
) -> NewSnapshots | None:
    """Return the new snapshots and files of the branch since the marker, or None without a branch.

    Raises BranchRewritten if the branch has changes other than the engine's appends, BranchCut if some of the engine's
    snapshots have left the branch, and MainHasBranch if main has some of them already.

    :param marker: the last publication, or None before the first.
    """
    head = _head(table.metadata, branch)
    if head is None:
        return None
    line = positions.line
    base = max(0 if marker is None else marker.sequence, 0 if line is None else line.since)
    known = _own_since(table, branch, base, positions)
    unproven = "" if line is None else reason_incomplete(table, branch, base, _last_of(line, marker), positions)
    floor = _floor(table.metadata, head, known, base)
    steps = {s.snapshot_id: BranchStep(_branch_snapshot(s), []) for s in known}
    for snapshot_id, sequence, file in _files_above(table, branch, head, floor):
        step = steps.setdefault(snapshot_id, BranchStep(BranchSnapshot(snapshot_id, sequence), []))
        steps[snapshot_id] = BranchStep(step.snapshot, [*step.files, file])
    return NewSnapshots(sorted(steps.values(), key=lambda step: step.snapshot.sequence), unproven)


def _last_of(line: EngineJobLine, marker: PublicationMarker | None) -> int | None:
    """Return the last published snapshot of the line, or None if unknown."""
    return marker.snapshot_id or None if marker is not None and marker.sequence > line.since else None


def open_branch(catalog: Catalog, name: str, branch: str) -> None:
    """Make the branch at main's head, if missing; again if another landing came first.

    Raises InvalidArgument if the name is a tag's.
    """
    table = fitness.load_table(catalog, name)
    if _head(table.metadata, branch) is not None:
        return
    try:
        _set(catalog, table, branch, None)
    except CommitFailedException:
        # Another task has made it meanwhile, or another landing came first.
        if _head(fitness.load_table(catalog, name).metadata, branch) is None:
            open_branch(catalog, name, branch)


def renew_branch(catalog: Catalog, name: str, branch: str) -> None:
    """Set a branch to main's head, or make the branch. Raises CommitFailedException if the branch moves meanwhile."""
    table = fitness.load_table(catalog, name)
    at = _head(table.metadata, branch)
    if at is None:
        open_branch(catalog, name, branch)
    elif at.snapshot_id != ledger_store.head_of(table.metadata):
        _set(catalog, table, branch, at.snapshot_id)


def _set(catalog: Catalog, table: Table, branch: str, before: int | None) -> None:
    head = ledger_store.head_of(table.metadata)
    update = {"ref-name": branch, "type": SnapshotRefType.BRANCH, "snapshot-id": head}
    where = {"type": "assert-ref-snapshot-id", "ref": branch, "snapshot-id": before}
    requirements = (AssertRefSnapshotId.model_validate(where),)
    fitness.commit_table(catalog, table, requirements, (SetSnapshotRefUpdate.model_validate(update),))


def _head(metadata: TableMetadata, branch: str) -> Snapshot | None:
    ref = metadata.refs.get(branch)
    if ref is None:
        return None
    if ref.snapshot_ref_type is not SnapshotRefType.BRANCH:
        raise InvalidArgument("branch", f"{branch!r} is a tag.", "Name another one.")
    return metadata.snapshot_by_id(ref.snapshot_id)


def _own_since(table: Table, branch: str, base: int, positions: EnginePositions) -> list[Snapshot]:
    """Return the engine's snapshots above a sequence number, newest first, up to the branch's start on main.

    Raises BranchRewritten if a snapshot of the engine is not an append, or is of a job outside of the line, or if
    another writer's snapshot is between them; MainHasBranch if one is in main's own history.
    """
    metadata = table.metadata
    name, at = ledger_store.name_of(table), metadata.refs[branch].snapshot_id
    chain = [s for s in ledger_store.ancestors(metadata, at) if (s.sequence_number or 0) > base]
    main = {s.snapshot_id for s in ledger_store.live_ancestors(metadata)}
    own: list[Snapshot] = []
    strange: Snapshot | None = None
    for snapshot in chain:
        if not positions.is_own(ledger_store.summary_of(snapshot)):
            strange = strange or snapshot
            continue
        if snapshot.snapshot_id in main:
            raise MainHasBranch(name, branch, snapshot.snapshot_id)
        if positions.line is not None and not positions.is_of_line(ledger_store.summary_of(snapshot)):
            raise BranchRewritten(name, branch, snapshot.snapshot_id, "was made by another job of the engine")
        if strange is not None:
            raise BranchRewritten(name, branch, strange.snapshot_id, "was made by something else than the engine")
        if snapshot.summary is not None and snapshot.summary.operation is not Operation.APPEND:
            problem = f"is not an append, but of kind {snapshot.summary.operation.value!r}"
            raise BranchRewritten(name, branch, snapshot.snapshot_id, problem)
        own.append(snapshot)
    return own


def _floor(metadata: TableMetadata, head: Snapshot, own: Sequence[Snapshot], base: int) -> int:
    """Return the highest sequence number of files already on main, or older than the branch.

    :param own: the engine's snapshots on the branch.
    :param base: the least result.
    """
    mine = {s.snapshot_id for s in own}
    others = (s for s in ledger_store.ancestors(metadata, head.snapshot_id) if s.snapshot_id not in mine)
    return max([base, *(s.sequence_number or 0 for s in others)])


def _files_above(table: Table, branch: str, head: Snapshot, floor: int) -> Iterator[tuple[int, int, BranchFile]]:
    """Yield the head's data files above `floor`, each with snapshot id and sequence number.

    Raises BranchRewritten for delete files above `floor`.
    """
    for manifest in head.manifests(table.io):
        if (manifest.sequence_number or 0) <= floor:
            continue
        if manifest.content == ManifestContent.DELETES:
            problem = "has deleted rows"
            raise BranchRewritten(ledger_store.name_of(table), branch, manifest.added_snapshot_id or 0, problem)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            sequence = entry.sequence_number or 0
            if sequence > floor:
                file = entry.data_file
                yield entry.snapshot_id or 0, sequence, BranchFile(file.file_path, file.record_count, file)


def _branch_snapshot(snapshot: Snapshot) -> BranchSnapshot:
    return BranchSnapshot(snapshot.snapshot_id, snapshot.sequence_number or 0, ledger_store.summary_of(snapshot))
