"""Commit attempts through PyIceberg's transaction: append, rewrite of files, or creation of a table.

An attempt can be committed again after an unknown outcome: every request asserts the head that it was made for, so at
most one request is ever applied, and the guard recognizes the landing by its id in any case.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, read_manifest_list
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableUpdate, _apply_table_update, _TableMetadataUpdateContext
from pyiceberg.utils.properties import property_as_bool

from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.ports import StaleFiles
from airflow_lakestream.iceberg.commit.commit import RefusalCarrier, TableCommit
from airflow_lakestream.iceberg.commit.guard import CommitGuard
from airflow_lakestream.iceberg.commit.manifest_writers import ManifestWriters, Producer
from airflow_lakestream.iceberg.commit.new_table import NAMESPACE_GONE, NewTable
from airflow_lakestream.iceberg.commit.row_delta import RowDelta, is_data
from airflow_lakestream.iceberg.write.files import delete_files
from airflow_lakestream.tables.schema.change import SchemaChange


class LandingTransaction(Transaction):
    """Transaction with metadata computed once per change and shared, since metadata are never modified.

    PyIceberg's own class applies the staged updates again on each access, and deep-copies the result with all
    snapshots: some twenty times for a bare append. With a hundred snapshots, this takes most of a commit's time.

    :param change: a change of the schema to make first; later updates are staged on top of it.
    """

    _last_applied: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    def __init__(self, table: Table, change: SchemaChange | None = None) -> None:
        super().__init__(table)
        self.notes = {} if change is None else change.summary()
        if change is not None:
            # A private method of PyIceberg: its public `update_schema` would assign field ids of its own.
            self._stage(change.updates())

    @property
    def table_metadata(self) -> TableMetadata:
        """The table's metadata with the staged updates."""
        base, updates = self._table.metadata, self._updates
        # Both are replaced, never changed in place: by a retry, and by another update.
        if self._last_applied is None or self._last_applied[0] is not base or self._last_applied[1] is not updates:
            self._last_applied = (base, updates, _apply(base, updates))
        return self._last_applied[2]


def _apply(metadata: TableMetadata, updates: tuple[TableUpdate, ...]) -> TableMetadata:
    context = _TableMetadataUpdateContext()
    for update in updates:
        metadata = _apply_table_update(update, metadata, context)
    return metadata


log = logging.getLogger(__name__)


class CommitAttempt:
    """Attempts of a commit to a table, or to a new table.

    :param stage: stages the snapshot with the files, for the head of an attempt.
    :param new: the table to create with the first snapshot.
    """

    def __init__(
        self, catalog: Catalog, name: str, commit: TableCommit, stage: Stage | None = None, new: NewTable | None = None
    ) -> None:
        self._catalog, self.name, self.guard = catalog, name, CommitGuard(catalog, commit)
        self._stage, self._new = stage or append, new
        # The producers of the snapshots of all tries.
        self.producers: list[Producer] = []
        # Whether files may be in the table, now or later. Such files must not be deleted.
        self.may_be_applied = False
        self._io: FileIO | None = None

    @property
    def summary(self) -> dict[str, str]:
        """The entries of the snapshot's summary."""
        return self.guard.commit.whole_summary()

    @property
    def reached_catalog(self) -> bool:
        """Whether a request was ever sent; without a request, a failed commit certainly changed nothing."""
        return self.guard.asked

    def commit(self, files: Sequence[DataFile]) -> int:
        """Commit on the table's current head, or find an earlier commit of the landing; return the snapshot id.

        Raises RefusalCarrier if the landing is refused at this head.
        """
        if self._new is not None:
            return self._create(self._new, files)
        current = self._present_table()
        if self.producers and (landed := self.guard.landed_in(current)) is not None:
            return landed
        self.guard.commit.check_fit(current)
        table = Table(
            current.name(),
            current.metadata,
            current.metadata_location,
            current.io,
            self.guard.as_catalog(),
            current.config,
        )
        self._io = table.io
        transaction = LandingTransaction(table, self.guard.change_at(current))
        self._stage(self, transaction, table, files)
        transaction.commit_transaction()
        return self._landed(table)

    def _present_table(self) -> Table:
        """Return the table at its present head. Raises RefusalCarrier, or NoSuchTableError after a request was sent."""
        try:
            return self._catalog.load_table(self.name)
        except NoSuchTableError:
            # An unknown outcome of an earlier attempt is the more important error.
            if self.reached_catalog:
                raise
            raise RefusalCarrier(StaleFiles(self.name, "the table was dropped")) from None

    def _create(self, new: NewTable, files: Sequence[DataFile]) -> int:
        """Create the table with the first snapshot; the transaction keeps the updates for another try."""
        new.table.catalog = self.guard.as_catalog()
        if not self.producers:
            # A private method of PyIceberg, for columns that appeared after the table was staged.
            new.transaction._stage(self.guard.commit.change.updates())
            append_files(new.transaction, files, self.summary, self.producers)
        is_first_request = not self.reached_catalog
        try:
            new.transaction.commit_transaction()
        except NoSuchNamespaceError:
            # An earlier request without an answer may be applied once the namespace is there again.
            if not is_first_request:
                raise
            raise RefusalCarrier(StaleFiles(self.name, NAMESPACE_GONE)) from None
        return self._landed(new.table)

    def look(self) -> int | None:
        """Return the snapshot of the landing in the table's present history, or None."""
        return self.guard.landed_in(self._catalog.load_table(self.name))

    def _landed(self, table: Table) -> int:
        """Return the id of the snapshot that was just committed."""
        snapshot_id = self.guard.landed_in(table)
        if snapshot_id is None:
            raise AssertionError(f"{table.name()}: the commit succeeded, but its landing is not in the table's history")
        return snapshot_id

    def clean_up(self, keep: int | None) -> None:
        """Delete the manifests and files of failed tries: all except the last ones of snapshot `keep`.

        :param keep: the committed snapshot, or None if no try was committed.
        """
        _clean(self.producers, keep)
        if self._io is not None and isinstance(self._stage, RewriteStage):
            for path in delete_files(self._io, self._stage.unneeded(keep)):
                log.warning("An uncommitted data file could not be deleted: %s", path)


# Stages a snapshot of an attempt for a table; may refuse the head by a RefusalCarrier.
Stage: TypeAlias = Callable[[CommitAttempt, LandingTransaction, Table, Sequence[DataFile]], None]


def append(attempt: CommitAttempt, transaction: LandingTransaction, _: Table, files: Sequence[DataFile]) -> None:
    """Stage new files."""
    append_files(transaction, files, attempt.summary | transaction.notes, attempt.producers)


def append_files(
    transaction: Transaction, files: Sequence[DataFile], summary: Mapping[str, str], producers: list[Producer]
) -> None:
    """Stage a snapshot with new files, and note the producer; `producers`: gets the producer, for a later clean-up."""
    update = transaction.update_snapshot(snapshot_properties=dict(summary))
    merge = property_as_bool(transaction.table_metadata.properties, "commit.manifest-merge.enabled", False)
    producer: Producer = update.merge_append() if merge else update.fast_append()
    note(producer, producers)
    with producer:
        for file in files:
            producer.append_data_file(file)


def note(producer: Producer, producers: list[Producer]) -> None:
    """Note a producer before the first use, for the clean-up: writing manifests may fail halfway."""
    ManifestWriters(producer)
    producers.append(producer)


@contextmanager
def overwriting(transaction: Transaction, summary: Mapping[str, str], producers: list[Producer]) -> Iterator[Producer]:
    """Yield the producer of a snapshot with removed and new files, written at the end of the context.

    :param producers: gets the producer, for a later clean-up.
    """
    producer: Producer = RowDelta(transaction, dict(summary))
    note(producer, producers)
    with producer:
        yield producer


def _clean(producers: Sequence[Producer], keep: int | None) -> None:
    """Delete the manifests and manifest lists of all tries, except those that snapshot `keep` needs."""
    for producer in producers:
        # Private methods of PyIceberg, which itself calls them only if it knows the outcome.
        if producer.snapshot_id != keep:
            producer._clean_all_uncommitted()
        else:
            producer._cleanup_uncommitted()
            _delete_merged(producer)


def _delete_merged(producer: Producer) -> None:
    """Delete manifests written and then merged within a commit, since PyIceberg forgets these; never raises."""
    written = producer._written_manifests
    if len(written) < 2:
        return
    try:
        committed = read_manifest_list(producer._io.new_input(producer._written_manifest_lists[-1]))
        unused = set(written) - {manifest.manifest_path for manifest in committed}
    except Exception as e:  # noqa: BLE001  # the landing is done; a file left over harms nobody
        log.info("Merged manifests of snapshot %s were left in place: %r", producer.snapshot_id, e)
        return
    delete_files(producer._io, unused)


@dataclass(frozen=True)
class FileRewrite:
    """Removed files (`out`) and new files of a snapshot: data files and delete files.

    :param landing: the landing, completed for the head; None for the commit's own landing.
    :param rows_out: the number of removed rows, if they were counted.
    """

    out: Sequence[DataFile]
    new: Sequence[DataFile]
    landing: Landing | None = None
    rows_out: int = 0


class RewriteStage:
    """Stage of rewritten files.

    :param rewrite: returns the files to change for each new head, and writes the new files.
    :param written: all files that `rewrite` has written, for any head; it grows.
    """

    def __init__(self, rewrite: Callable[[Table], FileRewrite], written: Sequence[DataFile]) -> None:
        self._rewrite, self._written = rewrite, written
        # The rewrites of all tries, by snapshot.
        self.made: dict[int, FileRewrite] = {}

    def new_in(self, snapshot_id: int | None) -> set[str]:
        """Return the paths of files brought by a snapshot of this landing."""
        return {file.file_path for file in self.made[snapshot_id].new} if snapshot_id in self.made else set()

    def unneeded(self, keep: int | None) -> Sequence[str]:
        """Return the paths of written files that snapshot `keep` has not brought."""
        kept = self.new_in(keep)
        return [path for file in self._written if (path := file.file_path) not in kept]

    def __call__(
        self, attempt: CommitAttempt, transaction: LandingTransaction, table: Table, files: Sequence[DataFile]
    ) -> None:
        """Stage the rewrite for this head, with further files."""
        rewrite = self._rewrite(table)
        if rewrite.landing is not None:
            attempt.guard.expect(rewrite.landing)
        new, summary = [*rewrite.new, *files], attempt.summary | transaction.notes
        # Without removed files and new delete files, a plain append is enough, except for a replace.
        if not rewrite.out and rewrite.landing is None and all(map(is_data, new)):
            append_files(transaction, new, summary, attempt.producers)
            self.made[attempt.producers[-1].snapshot_id] = rewrite
            return
        with overwriting(transaction, summary, attempt.producers) as producer:
            self.made[producer.snapshot_id] = rewrite
            for file in rewrite.out:
                producer.delete_data_file(file)
            for file in new:
                producer.append_data_file(file)
