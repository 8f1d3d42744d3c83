"""Sink of an Iceberg table with checks: rows are written on a branch, checked, and published by a guarded commit."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from airflow_lakestream.core.checks import ChecksFailed, RowChecker
from airflow_lakestream.core.ledger import Landing, TopicEntry
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.checked import branch as branches
from airflow_lakestream.iceberg.checked.branch import BranchDropped, CheckBranch, IcebergExaminer
from airflow_lakestream.iceberg.commit.commit import RefusalCarrier, RequestPart, TableCommit
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.iceberg.write.files import delete_files
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.examiner import brings_any
from airflow_lakestream.tables.schema.change import SchemaChange

log = logging.getLogger(__name__)

Done = TypeVar("Done")


def publishing(commit: TableCommit, branch: CheckBranch, described: Sequence[str]) -> TableCommit:
    """Return the commit as the publication of a branch: it brings rows and ledger to main, and removes the branch.

    Rows of a missing branch are refused: the files may be gone, too. The manifests of the branch's snapshot are deleted
    afterwards: expiry within the commit reads the manifests of the earlier snapshots.

    :param described: the manifests and the manifest list of the branch's snapshot.
    """

    def is_there(_: TableCommit, head: Table) -> None:
        if not branch.is_in(head.metadata):
            raise RefusalCarrier(BranchDropped(ledger_store.name_of(head), branch.name))

    def removal(head: Table | None, _: int) -> RequestPart:
        assert head is not None, "a branch is on a table"
        return RequestPart((branch.requirement(),), branch.removal(head.metadata))

    def clean_up(before: Table, after: TableMetadata) -> None:
        if after.snapshot_by_id(branch.snapshot.snapshot_id) is None:
            delete_files(before.io, described)

    return replace(
        commit,
        checks=(*commit.checks, is_there),
        additions=(*commit.additions, removal),
        after=(*commit.after, clean_up),
    )


class BranchChecks(IcebergExaminer):
    """`tables.sink.LandingChecks` of an Iceberg table: rows are checked on a branch, and then published."""

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
        # The rows, if any, go on a branch, where they are checked. Then `publish` brings them to main.
        sink, files = self._sink, self._sink.files
        branch = self._staged_on_branch(landing, files) if files else None
        try:
            self._audit(landing, files, branch)
            if branch is not None:
                sink.builders = [partial(publishing, branch=branch, described=branch.described_by(sink.io))]
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
        topics = {one: TopicEntry(origin=entry.origin, epochs=entry.epochs) for one, entry in landing.topics.items()}
        table = self._sink.loaded
        if table is not None and table.metadata.snapshots and not any(entry.origin for entry in topics.values()):
            return
        first = Landing(uuid.uuid4().hex, f"{landing.run_id}/begin", topics, engine=landing.engine)
        commit = self._sink.commit_of(first)
        if table is not None:
            # New columns of the records, and notes on the rows, wait for the checks.
            commit = replace(commit, change=SchemaChange.none(table.metadata), notes={})
        self._sink.commit_alone(commit)

    def _staged_on_branch(self, landing: Landing, files: Sequence[DataFile]) -> CheckBranch:
        current = self._catalog.load_table(self._name)
        try:
            self._sink.commit_of(landing).check_fit(current)
        except RefusalCarrier as refused:
            raise refused.error from None
        try:
            handed = self._sink.has_adopted_files
            return branches.stage(self._catalog, current, self._group, landing, files, handed=handed)
        except BaseException:
            # It may have been applied. The next landing of these offsets drops the branch, and its files with it.
            self._sink.leave_in_place()
            raise

    def _withdraw(self, branch: CheckBranch) -> None:
        """Drop a branch after a failure before publication; `discard` deletes the files."""
        try:
            branches.drop(self._catalog, self._name, branch)
        except Exception as e:  # noqa: BLE001  # the error that led here is the one to raise
            log.warning("%s: the branch %s was left in place: %r", self._name, branch.name, e)
            self._sink.leave_in_place()

    def _drop_superseded(self, landing: Landing, own: CheckBranch | None) -> None:
        # The commit has just looked at the table again.
        loaded = self._sink.loaded if own is None else None
        branches.drop_superseded(self._catalog, self._name, self._group, own, landing.touched, loaded)


def checked_sink(
    auditor: RowChecker, catalog: Catalog, table: str, consumer_group: str, design: TableDesign, **options: Any
) -> IcebergSink:
    """Return an `IcebergSink` with checks of all rows before publication.

    :param options: options of `IcebergSink`.
    """
    sink = IcebergSink(catalog, table, consumer_group, design, **options)
    sink.checks = BranchChecks(auditor, sink, catalog, table, consumer_group)
    return sink
