"""Sink of an Iceberg table for the files written by another engine to a branch of the table.

With checks, the rows are checked in place: the engine's branch keeps rows that fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.manifest import DataFile, FileFormat, ManifestContent
from pyiceberg.schema import index_by_name, index_name_by_id
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, SetSnapshotRefUpdate

from airflow_lakestream.core.checks import RowChecker
from airflow_lakestream.core.ledger import Landing, PublicationMarker, TopicIdentity, union
from airflow_lakestream.core.publishing.branch import (
    BranchFile,
    BranchSnapshot,
    BranchStep,
    EngineJobLine,
    EnginePositions,
    FileRows,
    NewSnapshots,
)
from airflow_lakestream.core.publishing.refusals import (
    CHECKED_AGAIN,
    BranchCut,
    BranchFileGone,
    BranchRewritten,
    ColumnsMoved,
    MainHasBranch,
)
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg import fitness, ledger_store
from airflow_lakestream.iceberg.checked import IcebergExaminer, drop_superseded
from airflow_lakestream.iceberg.replace.takeout import read_rows
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.iceberg.write.bounds import too_narrow, without_bounds
from airflow_lakestream.tables.coordinates import COORDINATES, OFFSET, PARTITION, TOPIC, ranges_of
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.examiner import brings_any
from airflow_lakestream.tables.guards import check_columns

Done = TypeVar("Done")

# The files are in the head's manifests, so none is missed if a snapshot between has expired. New files are found by
# their sequence numbers: these rise along a branch, even if snapshots expire.
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
    for metadata in ledger_store.metadata_files(table):
        known.learn(metadata)
        if (lacking := known.lacking(positions)) is not None:
            raise BranchCut(ledger_store.name_of(table), branch, lacking)
        if known.is_decided and (ledger_store.newest_sequence(metadata) <= base or known.has_all(newest)):
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
        """Add the next older metadata file, which may show snapshots and parent ids removed by expiry since then."""
        for snapshot in metadata.snapshots:
            if (snapshot.sequence_number or 0) <= self.base:
                self.below.add(snapshot.snapshot_id)
                continue
            self.snapshots.setdefault(snapshot.snapshot_id, snapshot)
            if snapshot.parent_snapshot_id is not None:
                self.parents.setdefault(snapshot.snapshot_id, snapshot.parent_snapshot_id)

    def has_all(self, newest: int) -> bool:
        """Return whether each sequence number above `base` is known, up to the newest."""
        return len({snapshot.sequence_number for snapshot in self.snapshots.values()}) == newest - self.base

    @property
    def is_decided(self) -> bool:
        """Whether the head's ancestors are known down to the first ancestor not above `base`."""
        line, end = self._walk()
        if self.last is not None:
            return end == self.last
        return end in self.below or self._lowest(line) == 1

    def lacking(self, positions: EnginePositions) -> int | None:
        """Return a snapshot of the engine certainly outside of the head's ancestors, or None."""
        line, end = self._walk()
        if self.last is not None and end != self.last and end in self.below:
            return self.last
        # Numbers fall along the parents: a snapshot below the last known ancestor may be an ancestor that has expired.
        lowest = 0 if self.is_decided else self._lowest(line)
        for snapshot in self.snapshots.values():
            is_outside = (snapshot.sequence_number or 0) >= lowest and snapshot.snapshot_id not in line
            if is_outside and positions.is_of_line(ledger_store.summary_of(snapshot)):
                return snapshot.snapshot_id
        return None

    def _lowest(self, line: set[int]) -> int:
        return min((self.snapshots[snapshot_id].sequence_number or 0 for snapshot_id in line), default=0)

    def _walk(self) -> tuple[set[int], int | None]:
        """Return the head's ancestors above `base`, and the id of the next ancestor, or None if unknown."""
        line: set[int] = set()
        current_id: int | None = self.head
        while current_id is not None and current_id in self.snapshots:
            line.add(current_id)
            current_id = self.parents.get(current_id)
        return line, current_id


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
    own = _own_since(table, branch, base, positions)
    unproven = "" if line is None else reason_incomplete(table, branch, base, _last_of(line, marker), positions)
    floor = _floor(table.metadata, head, own, base)
    steps = {s.snapshot_id: BranchStep(_branch_snapshot(s), []) for s in own}
    for snapshot_id, sequence, file in _files_above(table, branch, head, floor):
        step = steps.setdefault(snapshot_id, BranchStep(BranchSnapshot(snapshot_id, sequence), []))
        steps[snapshot_id] = BranchStep(step.snapshot, [*step.files, file])
    return NewSnapshots(sorted(steps.values(), key=lambda step: step.snapshot.sequence), unproven)


def _last_of(line: EngineJobLine, marker: PublicationMarker | None) -> int | None:
    """Return the last published snapshot of the line, or None if unknown."""
    return marker.snapshot_id or None if marker is not None and marker.sequence > line.since else None


def open_branch(catalog: Catalog, name: str, branch: str) -> None:
    """Create a missing branch at main's head; try again if main has got another landing meanwhile.

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
    branch_head = _head(table.metadata, branch)
    if branch_head is None:
        open_branch(catalog, name, branch)
    elif branch_head.snapshot_id != ledger_store.head_of(table.metadata):
        _set(catalog, table, branch, branch_head.snapshot_id)


def _set(catalog: Catalog, table: Table, branch: str, before: int | None) -> None:
    """Set a branch to main's head, if the branch is still at the snapshot `before`; None: if the branch is missing."""
    head = ledger_store.head_of(table.metadata)
    update = {"ref-name": branch, "type": SnapshotRefType.BRANCH, "snapshot-id": head}
    where = {"type": "assert-ref-snapshot-id", "ref": branch, "snapshot-id": before}
    requirements = (AssertRefSnapshotId.model_validate(where),)
    fitness.commit_table(catalog, table, requirements, (SetSnapshotRefUpdate.model_validate(update),))


def _head(metadata: TableMetadata, branch: str) -> Snapshot | None:
    """Return the head of a branch, or None if the branch is missing. Raises InvalidArgument for a tag."""
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
    name, head_id = ledger_store.name_of(table), metadata.refs[branch].snapshot_id
    candidates = [s for s in ledger_store.ancestors(metadata, head_id) if (s.sequence_number or 0) > base]
    main_ids = {s.snapshot_id for s in ledger_store.live_ancestors(metadata)}
    own: list[Snapshot] = []
    strange: Snapshot | None = None
    for snapshot in candidates:
        if not positions.is_own(ledger_store.summary_of(snapshot)):
            strange = strange or snapshot
            continue
        if snapshot.snapshot_id in main_ids:
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
    own_ids = {s.snapshot_id for s in own}
    others = (s for s in ledger_store.ancestors(metadata, head.snapshot_id) if s.snapshot_id not in own_ids)
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


class PublishingSink(IcebergSink):
    """`core.publishing.branch.BranchSink` on an Iceberg table.

    :param auditor: checks the rows before they become visible; None: no checks.
    """

    # The branch of the last look.
    branch = ""

    def __init__(
        self, catalog: Catalog, table: str, consumer_group: str, design: TableDesign, auditor: RowChecker | None = None
    ) -> None:
        super().__init__(catalog, table, consumer_group, design)
        if auditor is not None:
            self.checks = PublicationChecks(auditor, self, catalog, table, consumer_group)

    def new_snapshots(
        self, branch: str, marker: PublicationMarker | None, positions: EnginePositions
    ) -> NewSnapshots | None:
        """Return the new snapshots and files of the branch since the marker, or None without a table or branch.

        The branch becomes the branch of later calls. Raises the errors of `publishing.branch.new_snapshots`.
        """
        self.branch = branch
        return None if self._table is None else new_snapshots(self._table, branch, marker, positions)

    def positions_of(self, file: BranchFile, identity: TopicIdentity) -> FileRows:
        """Return the positions of a file's rows. Raises BranchFileGone, ColumnsMoved.

        Rows of another topic, and rows with NULL in a position, are only counted.
        """
        parts: dict[int, list[np.ndarray[tuple[int], np.dtype[np.int64]]]] = {}
        strange = 0
        for rows in self.rows_of(file, COORDINATES):
            complete = rows.filter(pc.equal(rows[TOPIC], identity.topic)).drop_null()
            strange += rows.num_rows - complete.num_rows
            partitions, offsets = complete[PARTITION].to_numpy(), complete[OFFSET].to_numpy()
            for partition in np.unique(partitions).tolist():
                parts.setdefault(partition, []).append(offsets[partitions == partition])
        positions = union(ranges_of((identity.topic, p), np.concatenate(arrays)) for p, arrays in parts.items())
        count = sum(len(array) for arrays in parts.values() for array in arrays)
        return FileRows(positions, count - positions.width, strange)

    def take_files(self, files: Sequence[BranchFile], identity: TopicIdentity) -> None:
        """Add the branch's files to the next commit; files of another partitioning are rewritten.

        A commit adds files of a single partitioning, the table's own. Another schema of the table does no harm:
        rows are read by column ids, and `rows_of` refuses a file whose names belong to other columns now. Checks read
        columns by name: so with checks, files with other names are rewritten, too.
        """
        table = self._there()
        for branch_file in files:
            file: DataFile = branch_file.file
            fits = self.checks is None or self._has_names_of(table, branch_file)
            if fits and file.spec_id == table.metadata.default_spec_id:
                self._adopted.append(self._with_right_bounds(table, branch_file))
                continue
            for rows in self.rows_of(branch_file):
                self.write(rows, identity)

    def open_branch(self, branch: str) -> None:
        """Make the branch at main's head, if missing."""
        open_branch(self._catalog, self._name, branch)

    def renew_branch(self, branch: str) -> None:
        """Set the branch to main's head, or make the branch."""
        renew_branch(self._catalog, self._name, branch)

    def _there(self) -> Table:
        """Return the table at the last `load`. Raises CannotReplace for a table without positions."""
        assert self._table is not None, "without a table there is no branch"
        check_columns(self._table.schema().column_names, self._name)
        return self._table

    def rows_of(self, file: BranchFile, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Yield a file's rows in the table's columns, or in `columns`. Raises BranchFileGone, ColumnsMoved."""
        self._check_columns_of(file)
        table = self._there()
        try:
            yield from read_rows(table.metadata, table.io, FileScanTask(file.file), columns=columns)
        except FileNotFoundError as e:
            raise BranchFileGone(self._name, self.branch, file.path) from e

    def _with_right_bounds(self, table: Table, file: BranchFile) -> DataFile:
        """Return a file's entry for main, without bounds that are too narrow. Raises BranchFileGone."""
        # An engine may have taken the bounds from the files' footers alone, where long values have none.
        try:
            columns = too_narrow(table.io, file.file, table.name_mapping())
        except FileNotFoundError as e:
            raise BranchFileGone(self._name, self.branch, file.path) from e
        return without_bounds(file.file, columns) if columns else file.file

    def _check_columns_of(self, file: BranchFile) -> None:
        """Refuse a file with column names of different columns today. Raises ColumnsMoved."""
        ids = index_by_name(self._there().schema())
        moved = [name for number, name in self._columns_of(file).items() if ids.get(name, number) != number]
        if moved:
            raise ColumnsMoved(self._name, self.branch, file.path, moved)

    def _columns_of(self, file: BranchFile) -> dict[int, str]:
        """Return the columns of a file by id, nested columns included. Raises BranchFileGone."""
        table = self._there()
        form = ds.OrcFileFormat() if file.file.file_format is FileFormat.ORC else ds.ParquetFileFormat()
        try:
            with table.io.new_input(file.path).open() as stream:
                file_schema = form.make_fragment(stream).physical_schema
        except FileNotFoundError as e:
            raise BranchFileGone(self._name, self.branch, file.path) from e
        return index_name_by_id(pyarrow_to_schema(file_schema, table.name_mapping(), downcast_ns_timestamp_to_us=True))

    def _has_names_of(self, table: Table, file: BranchFile) -> bool:
        """Return whether a file has the table's columns under the present names, readable by DuckDB."""
        is_read = file.file.file_format is FileFormat.PARQUET
        return is_read and self._columns_of(file) == index_name_by_id(table.schema())


class PublicationChecks(IcebergExaminer):
    """`tables.sink.CommitChecks` of a branch's files: rows that fail stay on the branch."""

    def __init__(self, auditor: RowChecker, sink: PublishingSink, catalog: Catalog, table: str, group: str) -> None:
        super().__init__(auditor, catalog, table, group)
        self._sink = sink

    def commit(self, landing: Landing, publish: Callable[[], Done], *, is_replace: bool) -> Done:
        """Commit the branch's files and the landing, once the rows have passed the checks.

        Raises ChecksFailed, and BranchFileGone if a file to check is gone; the branch is unchanged then. After the
        commit, branches of earlier checks of the same offsets are dropped.
        """
        sink = self._sink
        if brings_any(landing):
            written = self.written(landing, sink.schema, sink.io, sink.files)
            try:
                self.examine(landing, written, sink.branch, CHECKED_AGAIN)
            except FileNotFoundError as e:
                raise BranchFileGone(self._name, sink.branch, str(e.filename or e)) from e
        done = publish()
        # The branches of an extract's checks, or of Spark's.
        drop_superseded(self._catalog, self._name, self._group, None, landing.touched, sink.loaded)
        return done
