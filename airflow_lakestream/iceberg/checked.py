"""Branch for a landing's rows during the checks, with these rows alone and no older snapshot below.

A reader of the branch sees exactly the checked rows. The branch keeps no file of main from expiry, and main can't be
fast-forwarded to the branch past the ledger. The branch also makes publishing safe: the commit that puts the files on
main asserts the branch, and removes it. A dropped branch can't be published any more, so its files may be deleted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    TableRequirement,
    TableUpdate,
)

from airflow_lakestream.core.checks import ChecksFailed, RowChecker, StagedRows
from airflow_lakestream.core.ledger import Landing, union
from airflow_lakestream.core.ports import Conflict
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.iceberg import fitness, ledger_store
from airflow_lakestream.iceberg.commit import retention
from airflow_lakestream.iceberg.commit.attempt import LandingTransaction
from airflow_lakestream.iceberg.commit.commit import RefusalCarrier, RequestPart, TableCommit
from airflow_lakestream.iceberg.commit.manifest_writers import ManifestWriters, Producer
from airflow_lakestream.iceberg.replace.takeout import added_files
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.iceberg.write.files import delete_files, referenced
from airflow_lakestream.tables.examiner import LandingExaminer, beginning_of, brings_any
from airflow_lakestream.tables.schema.change import SchemaChange
from airflow_lakestream.tables.schema.types import arrow_schema
from airflow_lakestream.tables.tries import tries

log = logging.getLogger(__name__)

Done = TypeVar("Done")

PREFIX = "lakestream_checks_"
# Keys in the summary of a branch's snapshot. The ledger's keys are not used, since these rows have not landed.
GROUP, RUN_ID, RANGES, HANDED, REPLACES = (
    f"lakestream.checks.{name}" for name in ("group", "run-id", "ranges", "handed", "replaces")
)
# Tries to drop a branch, and the first pause between two tries in seconds.
DROP_TRIES, PAUSE = 5, 0.2


class BranchDropped(Conflict):
    """The branch with a landing's rows was dropped before the publication."""

    def __init__(self, table: str, branch: str) -> None:
        super().__init__(f"{table}: the branch {branch} was dropped before its rows were published.")


@dataclass(frozen=True)
class CheckBranch:
    """Branch with a landing's rows, and the snapshot of these rows."""

    name: str
    snapshot: Snapshot

    @property
    def group(self) -> str:
        """The consumer group of the landing."""
        return self._summary.get(GROUP, "")

    @property
    def ranges(self) -> RangeSet:
        """The offsets of the rows, and of records without a row."""
        return RangeSet(OffsetRange(*parts) for parts in json.loads(self._summary.get(RANGES, "[]")))

    @property
    def replaces(self) -> bool:
        """Whether the rows are to replace rows of landed offsets."""
        return REPLACES in self._summary

    @property
    def owns_files(self) -> bool:
        """Whether only this landing may commit the files. Files handed over by another task may be committed again."""
        return HANDED not in self._summary

    @property
    def _summary(self) -> Mapping[str, str]:
        return ledger_store.summary_of(self.snapshot)

    def is_in(self, metadata: TableMetadata) -> bool:
        """Return whether the branch exists, unchanged."""
        ref = metadata.refs.get(self.name)
        return ref is not None and ref.snapshot_id == self.snapshot.snapshot_id

    def requirement(self) -> TableRequirement:
        """Return the requirement for a commit to fail without the branch."""
        asserted = {"type": "assert-ref-snapshot-id", "ref": self.name, "snapshot-id": self.snapshot.snapshot_id}
        return AssertRefSnapshotId.model_validate(asserted)

    def removal(self, metadata: TableMetadata) -> tuple[TableUpdate, ...]:
        """Return the updates that remove the branch and its snapshot.

        Without a branch, the snapshot would be left to an engine's expiry, which might delete files that main has after
        the publication. A snapshot that a further branch or tag names stays.
        """
        ref = RemoveSnapshotRefUpdate.model_validate({"action": "remove-snapshot-ref", "ref-name": self.name})
        return (ref, *(retention.removals([self.snapshot.snapshot_id]) if self._is_named_once(metadata) else ()))

    def is_removed_by(self, removal: Sequence[TableUpdate]) -> bool:
        """Return whether updates of `removal` remove the snapshot, too."""
        return any(isinstance(update, RemoveSnapshotsUpdate) for update in removal)

    def metadata_files(self, io: FileIO) -> list[str]:
        """Return the paths of the snapshot's manifests and manifest list, for deletion after its removal."""
        return [*(manifest.manifest_path for manifest in self.snapshot.manifests(io)), self.snapshot.manifest_list]

    def _is_named_once(self, metadata: TableMetadata) -> bool:
        return sum(ref.snapshot_id == self.snapshot.snapshot_id for ref in metadata.refs.values()) == 1


class _ComparingCatalog:
    """Catalog with compare-and-set commits."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        return fitness.commit_table(self._catalog, table, requirements, updates)


def stage(
    catalog: Catalog, current: Table, group: str, landing: Landing, files: Sequence[DataFile], *, handed: bool
) -> CheckBranch:
    """Put a landing's files on a new branch, and return the branch.

    Raises the catalog's errors; the branch may exist after an error.

    :param current: the table at its head.
    :param handed: other tasks wrote some of the files.
    """
    name = PREFIX + landing.landing_id[:16]
    ranges = [[r.topic, r.partition, r.from_offset, r.until_offset] for r in landing.touched]
    summary = {GROUP: group, RUN_ID: landing.run_id, RANGES: json.dumps(ranges, separators=(",", ":"))}
    if handed:
        summary[HANDED] = "true"
    if any(entry.replaced for entry in landing.topics.values()):
        summary[REPLACES] = "true"
    location, io, config = current.metadata_location, current.io, current.config
    table = Table(current.name(), current.metadata, location, io, cast(Catalog, _ComparingCatalog(catalog)), config)
    transaction = LandingTransaction(table)
    # PyIceberg gives a snapshot on a branch that does not exist yet no parent.
    producer: Producer = transaction.update_snapshot(snapshot_properties=summary, branch=name).fast_append()
    ManifestWriters(producer)
    with producer:
        for file in files:
            producer.append_data_file(file)
    transaction.commit_transaction()
    snapshot = table.metadata.snapshot_by_id(table.metadata.refs[name].snapshot_id)
    assert snapshot is not None, "a branch is at a snapshot"
    return CheckBranch(name, snapshot)


def kept_branches(table: Table, group: str) -> Iterator[CheckBranch]:
    """Yield a group's branches with unpublished rows, except branches changed by another writer.

    The summary of another writer's snapshot does not name the group.
    """
    for name in sorted(table.metadata.refs):
        snapshot = table.metadata.snapshot_by_id(table.metadata.refs[name].snapshot_id)
        if name.startswith(PREFIX) and snapshot is not None and (branch := CheckBranch(name, snapshot)).group == group:
            yield branch


def drop(catalog: Catalog, name: str, branch: CheckBranch) -> None:
    """Remove a branch with the snapshot's manifests, without the data files; publishing is impossible then.

    A branch that is gone or was changed is left alone. Raises CommitFailedException if other writers commit first at
    each try, and the catalog's errors.
    """
    for number in tries(DROP_TRIES, PAUSE):
        table = catalog.load_table(name)
        if not branch.is_in(table.metadata):
            return
        metadata_files, removal = branch.metadata_files(table.io), branch.removal(table.metadata)
        try:
            fitness.commit_table(catalog, table, (branch.requirement(),), removal)
        except CommitFailedException:
            if number == DROP_TRIES - 1:
                raise
            continue
        if branch.is_removed_by(removal):
            delete_files(table.io, metadata_files)
        return


def drop_superseded(
    catalog: Catalog, name: str, group: str, keep: CheckBranch | None, ranges: RangeSet, loaded: Table | None
) -> None:
    """Drop a group's branches with offsets landed by now, and delete the rows; never raises.

    A branch of a replace is dropped only if it has offsets of `ranges`, since its offsets were landed before. A branch
    without offsets is dropped, too.

    :param keep: the branch to keep, or None.
    :param ranges: offsets that count as landed, such as the offsets of the landing just decided.
    :param loaded: the table, if it was loaded just now.
    """
    try:
        table = loaded or catalog.load_table(name)
        branches = [branch for branch in kept_branches(table, group) if keep is None or branch.name != keep.name]
        if not branches:
            return
        landed = union([ranges, *(entry.held for entry in ledger_store.read_ledger(table, group).topics.values())])
        for branch in branches:
            # A branch without offsets has rows of windows that a watermark closed.
            if branch.ranges & (ranges if branch.replaces else landed) or not branch.ranges:
                _drop_with_rows(catalog, name, branch)
    except Exception as e:  # noqa: BLE001  # the landing is decided; a branch left over harms nobody
        log.warning("%s: branches of earlier checks were left in place: %r", name, e)


def _drop_with_rows(catalog: Catalog, name: str, branch: CheckBranch) -> None:
    """Drop a branch, and delete the data files that only this branch may have."""
    table = catalog.load_table(name)
    paths = {file.file_path for file in added_files(table, branch.snapshot)} if branch.owns_files else set[str]()
    drop(catalog, name, branch)
    # The files may have been put on main by hand.
    after = catalog.load_table(name)
    # Only snapshots from the branch's snapshot on can refer to its files.
    unneeded = paths - referenced(after, paths, since=(branch.snapshot.sequence_number or 0) - 1)
    undeleted = delete_files(table.io, sorted(unneeded))
    log.info("%s: dropped the branch %s of earlier checks, and %s of its files.", name, branch.name, len(unneeded))
    for path in undeleted:
        log.warning("A file of a dropped branch could not be deleted: %s", path)


class IcebergExaminer(LandingExaminer):
    """`LandingExaminer` of a group's landings in an Iceberg table."""

    def __init__(self, auditor: RowChecker, catalog: Catalog, table: str, consumer_group: str) -> None:
        super().__init__(auditor, table)
        self._catalog = catalog
        self._group = consumer_group

    def written(self, landing: Landing, schema: Schema, io: FileIO, files: Sequence[DataFile]) -> StagedRows:
        """Return the landing's rows and files for the checks; `schema`: the table's schema after the commit."""
        return StagedRows(
            arrow_schema(schema) if files else pa.schema([]),
            {file.file_path: file.file_size_in_bytes for file in files},
            lambda path: io.new_input(path).open(),
            landing.rows,
            self.usual_rows(landing, self._history),
        )

    def _history(self) -> Iterator[tuple[int, Landing]]:
        """Yield the group's live landings, newest first, each after its time in milliseconds since the epoch."""
        try:
            table = self._catalog.load_table(self._name)
        except NoSuchTableError:
            return
        for snapshot in ledger_store.live_ancestors(table.metadata):
            if (landing := ledger_store.landing_of(snapshot, self._group)) is not None:
                yield snapshot.timestamp_ms, landing


def publishing(commit: TableCommit, branch: CheckBranch, metadata_files: Sequence[str]) -> TableCommit:
    """Return the commit as the publication of a branch: it brings rows and ledger to main, and removes the branch.

    Rows of a missing branch are refused: the files may be gone, too. The manifests of the branch's snapshot are deleted
    afterwards: expiry within the commit reads the manifests of the earlier snapshots.

    :param metadata_files: the paths of the manifests and the manifest list of the branch's snapshot.
    """

    def is_there(_: TableCommit, head: Table) -> None:
        if not branch.is_in(head.metadata):
            raise RefusalCarrier(BranchDropped(ledger_store.name_of(head), branch.name))

    def removal(head: Table | None, _: int) -> RequestPart:
        assert head is not None, "a branch is on a table"
        return RequestPart((branch.requirement(),), branch.removal(head.metadata))

    def clean_up(before: Table, after: TableMetadata) -> None:
        if after.snapshot_by_id(branch.snapshot.snapshot_id) is None:
            delete_files(before.io, metadata_files)

    return replace(
        commit,
        checks=(*commit.checks, is_there),
        additions=(*commit.additions, removal),
        after=(*commit.after, clean_up),
    )


class BranchChecks(IcebergExaminer):
    """`tables.sink.CommitChecks` of an Iceberg table: rows are checked on a branch, and then published."""

    def __init__(self, auditor: RowChecker, sink: IcebergSink, catalog: Catalog, table: str, group: str) -> None:
        super().__init__(auditor, catalog, table, group)
        self._sink = sink

    def commit(self, landing: Landing, publish: Callable[[], Done], *, is_replace: bool) -> Done:
        """Write the rows on a branch, check the branch, and publish rows and landing; see `core.ports.Sink`.

        A landing that read no records and has no rows is not checked, except a replace: main would lose the old rows.
        Raises ChecksFailed: then the branch stays for people, and the ledger is unchanged.
        """
        if not is_replace:
            if not brings_any(landing):
                return publish()
            if self._sink.files:
                self._begin(landing)
        return self._checked(landing, publish)

    def _checked(self, landing: Landing, publish: Callable[[], Done]) -> Done:
        """Put the rows, if any, on a branch, check the rows there, and let `publish` bring them to main."""
        sink, files = self._sink, self._sink.files
        branch = self._staged_on_branch(landing, files) if files else None
        try:
            self._audit(landing, files, branch)
            if branch is not None:
                sink.builders = [partial(publishing, branch=branch, metadata_files=branch.metadata_files(sink.io))]
            done = publish()
        except BaseException as e:
            if branch is None:
                raise
            if isinstance(e, ChecksFailed):
                # The branch has the files now.
                sink.leave_in_place()
                self._drop_superseded(landing, branch)
                raise
            self._withdraw(branch)
            if isinstance(e, FileNotFoundError):
                # Another run has landed these offsets, or checked them, and dropped the branch with its files.
                raise BranchDropped(self._name, branch.name) from e
            raise
        finally:
            sink.builders = ()
        self._drop_superseded(landing, None)
        return done

    def _audit(self, landing: Landing, files: Sequence[DataFile], branch: CheckBranch | None) -> None:
        """Check a landing's rows. Raises ChecksFailed."""
        written = self.written(landing, self._sink.schema, self._sink.io, files)
        self.examine(landing, written, None if branch is None else branch.name)

    def _begin(self, landing: Landing) -> None:
        """Commit the group's first offsets in a snapshot without rows; creates a missing table.

        A branch needs a table with a snapshot. And a first landing that fails must not leave the group's first offsets
        open: "latest" would be other offsets in the next run, and the records up to these would never land.
        """
        first, table = beginning_of(landing), self._sink.loaded
        if table is not None and table.metadata.snapshots and not any(entry.origin for entry in first.topics.values()):
            return
        commit = self._sink.commit_of(first)
        if table is not None:
            # New columns of the records, and notes on the rows, wait for the checks.
            commit = replace(commit, change=SchemaChange.none(table.metadata), notes={})
        self._sink.commit_alone(commit)

    def _staged_on_branch(self, landing: Landing, files: Sequence[DataFile]) -> CheckBranch:
        """Put the files on a new branch, unless they do not fit the table. Raises the refusal, and catalog errors."""
        current = self._catalog.load_table(self._name)
        try:
            self._sink.commit_of(landing).check_fit(current)
        except RefusalCarrier as refused:
            raise refused.error from None
        try:
            handed = self._sink.has_adopted_files
            return stage(self._catalog, current, self._group, landing, files, handed=handed)
        except BaseException:
            # It may have been applied. The next landing of these offsets drops the branch, and its files with it.
            self._sink.leave_in_place()
            raise

    def _withdraw(self, branch: CheckBranch) -> None:
        """Drop a branch after a failure before publication; `discard` deletes the files."""
        try:
            drop(self._catalog, self._name, branch)
        except Exception as e:  # noqa: BLE001  # the error that led here is the one to raise
            log.warning("%s: the branch %s was left in place: %r", self._name, branch.name, e)
            self._sink.leave_in_place()

    def _drop_superseded(self, landing: Landing, own: CheckBranch | None) -> None:
        """Drop the branches that this landing makes needless, except `own`; `own` is None after the publication."""
        # The publication has just loaded the table again.
        loaded = self._sink.loaded if own is None else None
        drop_superseded(self._catalog, self._name, self._group, own, landing.touched, loaded)
