"""Commit attempts of a landing through PyIceberg's transaction: append, rewrite of files, or creation of a table.

An attempt can be committed again after an unknown outcome: every request asserts the head that it was made for, so at
most one request is ever applied, and the guard recognizes the landing by its id in any case.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import Protocol

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ValidationException
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
    read_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import TableUpdate, _apply_table_update, _TableMetadataUpdateContext
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT
from pyiceberg.utils.properties import property_as_bool, property_as_int

from airflow_lakestream.iceberg.commit.guard import CommitGuard, HeadGuard
from airflow_lakestream.iceberg.commit.manifest_writers import (
    ManifestWriters,
    Producer,
    name_types_uniquely,
    with_optional_values,
)
from airflow_lakestream.iceberg.commit.new_table import NewTable
from airflow_lakestream.iceberg.manifests import live_entries
from airflow_lakestream.iceberg.write.files import delete_files
from airflow_lakestream.tables.schema.change import SchemaChange


class DeleteManifestWriter(ManifestWriterV2):
    """PyIceberg's writer, for a manifest of delete files."""

    def content(self) -> ManifestContent:
        """Return the content type of the manifest: deletes."""
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class RowDelta(_OverwriteFiles):
    """PyIceberg's overwrite, also of delete files; manifests are merged like in an append, if the table enables merges.

    PyIceberg itself reads each manifest of the base twice, and writes each changed manifest separately.
    """

    def __init__(self, transaction: Transaction, summary: dict[str, str]) -> None:
        is_first = transaction.table_metadata.current_snapshot() is None
        operation = Operation.APPEND if is_first else Operation.OVERWRITE
        io = transaction._table.io
        super().__init__(operation=operation, transaction=transaction, io=io, snapshot_properties=summary)
        self._new_deletes: list[DataFile] = []
        self._old_deletes: set[DataFile] = set()

    def append_data_file(self, data_file: DataFile) -> RowDelta:
        """Add a data file or a delete file."""
        (self._added_data_files if is_data(data_file) else self._new_deletes).append(data_file)
        return self

    def delete_data_file(self, data_file: DataFile) -> RowDelta:
        """Remove a data file or a delete file."""
        (self._deleted_data_files if is_data(data_file) else self._old_deletes).add(data_file)
        return self

    def _manifests(self) -> list[ManifestFile]:
        metadata = self._transaction.table_metadata
        base = metadata.snapshot_by_name(self._target_branch)
        # Manifests without live files only list files removed by earlier snapshots: they would pile up and merge badly.
        held = [one for one in base.manifests(self._io) if _has_files(one)] if base is not None else []
        data = [one for one in held if one.content == ManifestContent.DATA]
        deletes = [one for one in held if one.content == ManifestContent.DELETES]
        new_data = {metadata.default_spec_id: self._added_data_files}
        new_deletes = defaultdict[int, list[DataFile]](list)
        for file in self._new_deletes:
            new_deletes[file.spec_id].append(file)
        return [
            *self._merged(self._changed(data, self._deleted_data_files, new_data, self.new_manifest_writer)),
            *self._changed(deletes, self._old_deletes, new_deletes, self._new_delete_writer),
        ]

    def _changed(
        self,
        manifests: Sequence[ManifestFile],
        out: set[DataFile],
        new: Mapping[int, Sequence[DataFile]],
        open_writer: Callable[[PartitionSpec], ManifestWriter],
    ) -> list[ManifestFile]:
        """Return manifests without the removed files and with the new files; changed manifests are combined.

        Manifests without a removed file stay as they are. Raises ValidationException if a removed file is in no
        manifest.

        :param out: the removed files.
        :param new: the new files by the id of their partition spec.
        :param open_writer: opens a writer of manifests for a partition spec.
        """
        left, missing = list[ManifestFile](), set(out)
        # Keys are the partition spec, and the place among the new manifests of this spec.
        changed = defaultdict[tuple[int, int], list[ManifestEntry]](list)
        sizes = Counter[int]()
        for spec, files in new.items():
            if files:
                changed[spec, 0] += map(self._entry, files)
        held = live_entries(self._io, manifests) if out else repeat(())
        for manifest, entries in zip(manifests, held, strict=False):
            found = out.intersection(entry.data_file for entry in entries)
            if not found:
                left.append(manifest)
                continue
            missing -= found
            spec = manifest.partition_spec_id
            changed[spec, sizes[spec] // self._target_bytes] += entries
            sizes[spec] += manifest.manifest_length
        if missing:
            paths = ", ".join(sorted(file.file_path for file in missing))
            raise ValidationException(f"Missing required files to delete: {paths}")
        written = [self._write(open_writer(self.spec(spec)), out, entries) for (spec, _), entries in changed.items()]
        return [*written, *left]

    def _entry(self, file: DataFile) -> ManifestEntry:
        added = ManifestEntryStatus.ADDED
        return ManifestEntry.from_args(status=added, snapshot_id=self.snapshot_id, data_file=file)

    def _write(self, opened: ManifestWriter, out: set[DataFile], entries: Sequence[ManifestEntry]) -> ManifestFile:
        with opened as writer:
            for entry in entries:
                if entry.data_file in out:
                    writer.delete(entry)
                # The entries of new files were made with this snapshot's id.
                elif entry.snapshot_id == self.snapshot_id:
                    writer.add(entry)
                else:
                    writer.existing(entry)
        return writer.to_manifest_file()

    def _new_delete_writer(self, spec: PartitionSpec) -> ManifestWriter:
        output, shape = self.new_manifest_output(), with_optional_values(spec)
        writer = DeleteManifestWriter(shape, self.schema(), output, self.snapshot_id, self._compression)
        name_types_uniquely(writer)
        return writer

    def _merged(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        properties = self._transaction.table_metadata.properties
        if not manifests or not property_as_bool(properties, TableProperties.MANIFEST_MERGE_ENABLED, False):
            return manifests
        least = property_as_int(
            properties, TableProperties.MANIFEST_MIN_MERGE_COUNT, TableProperties.MANIFEST_MIN_MERGE_COUNT_DEFAULT
        )
        assert least is not None, "there is a default"
        # PyIceberg's own merge, as in its merge append.
        return _ManifestMergeManager(self._target_bytes, least, True, self).merge_manifests(manifests)

    @property
    def _target_bytes(self) -> int:
        size = property_as_int(
            self._transaction.table_metadata.properties,
            TableProperties.MANIFEST_TARGET_SIZE_BYTES,
            TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT,
        )
        assert size is not None, "there is a default"
        return max(1, size)

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        """Return the summary, with the delete files counted."""
        # PyIceberg counts the files in these two attributes only.
        data = self._added_data_files, self._deleted_data_files
        self._added_data_files, self._deleted_data_files = [*data[0], *self._new_deletes], data[1] | self._old_deletes
        try:
            return super()._summary(snapshot_properties)
        finally:
            self._added_data_files, self._deleted_data_files = data


def _has_files(manifest: ManifestFile) -> bool:
    return manifest.has_added_files() or manifest.has_existing_files()


def is_data(file: DataFile) -> bool:
    """Return whether a file is a data file and not a delete file."""
    return file.content == DataFileContent.DATA


class LandingTransaction(Transaction):
    """Transaction with metadata computed once per change and shared, since metadata are never modified.

    PyIceberg's own applies the staged updates again at each look, and deep-copies the result, every snapshot of the
    table included: some twenty times for a bare append, most of the time of a commit on a table of some hundred.

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


class CommitAttempt(Protocol):
    """Interface of the commit attempts of a landing."""

    @property
    def reached_catalog(self) -> bool:
        """Whether a commit was ever sent; before the first request a failure leaves no doubt."""

    def commit(self, files: Sequence[DataFile]) -> int:
        """Commit, or find an earlier commit of the landing; return the landing's snapshot id."""

    def clean_up(self, keep: int | None) -> None:
        """Delete the manifests of failed tries: all except the last manifests of snapshot `keep`.

        :param keep: the committed snapshot, or None if no try was committed.
        """


class AppendAttempt:
    """Commit of a landing to an existing table."""

    def __init__(self, catalog: Catalog, name: str, guard: CommitGuard, summary: Mapping[str, str]) -> None:
        self._catalog, self._name, self._guard, self._summary = catalog, name, guard, dict(summary)
        self._producers: list[Producer] = []

    @property
    def reached_catalog(self) -> bool:
        """Whether a commit was ever sent."""
        return self._guard.asked

    def commit(self, files: Sequence[DataFile]) -> int:
        """Append the files on the table's current head, or find an earlier commit; return the snapshot id.

        Raises RefusalCarrier if the landing is refused at this head.
        """
        current = self._catalog.load_table(self._name)
        if self._producers and (landed := self._guard.landed_in(current)) is not None:
            return landed
        self._guard.check_fit(current)
        table = Table(
            current.name(),
            current.metadata,
            current.metadata_location,
            current.io,
            self._guard.as_catalog(),
            current.config,
        )
        transaction = LandingTransaction(table, self._guard.change_at(current))
        self._stage(transaction, table, files)
        transaction.commit_transaction()
        return _landed(self._guard, table)

    def _stage(self, transaction: LandingTransaction, table: Table, files: Sequence[DataFile]) -> None:
        append_files(transaction, files, self._summary | transaction.notes, self._producers)

    def clean_up(self, keep: int | None) -> None:
        """Delete the manifests of failed tries."""
        _clean(self._producers, keep)


class CreateAttempt:
    """Commit of a landing together with the creation of the table."""

    def __init__(
        self, new: NewTable, guard: CommitGuard, summary: Mapping[str, str], change: SchemaChange | None = None
    ) -> None:
        self._new, self._guard, self._summary, self._change = new, guard, dict(summary), change
        self._producers: list[Producer] = []

    @property
    def reached_catalog(self) -> bool:
        """Whether a commit was ever sent."""
        return self._guard.asked

    def commit(self, files: Sequence[DataFile]) -> int:
        """Create the table with the first snapshot, and return the snapshot id.

        The transaction keeps the updates for another try.
        """
        self._new.table.catalog = self._guard.as_catalog()
        if not self._producers:
            if self._change is not None:
                # A private method of PyIceberg, for columns that appeared after the table was staged.
                self._new.transaction._stage(self._change.updates())
            append_files(self._new.transaction, files, self._summary, self._producers)
        self._new.transaction.commit_transaction()
        return _landed(self._guard, self._new.table)

    def clean_up(self, keep: int | None) -> None:
        """Delete the manifests if the table was not created: PyIceberg does not, for a create."""
        _clean(self._producers, keep)


def append_files(
    transaction: Transaction, files: Sequence[DataFile], summary: Mapping[str, str], producers: list[Producer]
) -> None:
    """Stage a snapshot with new files, and note the producer.

    :param producers: gets the producer, for a later clean-up.
    """
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


def _landed(guard: CommitGuard, table: Table) -> int:
    snapshot_id = guard.landed_in(table)
    if snapshot_id is None:
        raise AssertionError(f"{table.name()}: the commit succeeded, but its landing is not in the table's history")
    return snapshot_id


def _clean(producers: Sequence[Producer], keep: int | None) -> None:
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
    """Removed and new files of a snapshot: data files and delete files."""

    out: Sequence[DataFile]
    new: Sequence[DataFile]


class RewriteAttempt(AppendAttempt):
    """Commit of a landing with rewritten files to an existing table.

    :param rewrite: returns the files to change for each new head, and writes the new files.
    :param written: all files that `rewrite` has written, for any head; it grows.
    """

    def __init__(
        self,
        catalog: Catalog,
        name: str,
        guard: HeadGuard,
        summary: Mapping[str, str],
        rewrite: Callable[[Table], FileRewrite],
        written: Sequence[DataFile],
    ) -> None:
        super().__init__(catalog, name, guard, summary)
        self._rewrite, self._written = rewrite, written
        self._new: dict[int, Sequence[DataFile]] = {}
        self._io: FileIO | None = None

    def new_in(self, snapshot_id: int | None) -> set[str]:
        """Return the paths of files brought by a snapshot of this landing."""
        return {file.file_path for file in self._new.get(snapshot_id, ())} if snapshot_id is not None else set()

    def clean_up(self, keep: int | None) -> None:
        """Delete the manifests and files of failed tries.

        :param keep: the committed snapshot, with files that stay; None if no try was committed.
        """
        super().clean_up(keep)
        if self._io is None:
            return
        kept = self.new_in(keep)
        unneeded = [path for file in self._written if (path := file.file_path) not in kept]
        for path in delete_files(self._io, unneeded):
            log.warning("An uncommitted data file could not be deleted: %s", path)

    def _stage(self, transaction: LandingTransaction, table: Table, files: Sequence[DataFile]) -> None:
        self._io = table.io
        rewrite = self._rewrite(table)
        new, summary = [*rewrite.new, *files], self._summary | transaction.notes
        # Without removed files and new delete files, a plain append is enough.
        if not rewrite.out and all(map(is_data, new)):
            append_files(transaction, new, summary, self._producers)
            self._new[self._producers[-1].snapshot_id] = rewrite.new
            return
        with overwriting(transaction, summary, self._producers) as producer:
            self._new[producer.snapshot_id] = rewrite.new
            for file in rewrite.out:
                producer.delete_data_file(file)
            for file in new:
                producer.append_data_file(file)
