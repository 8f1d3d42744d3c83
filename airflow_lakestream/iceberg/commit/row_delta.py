"""Snapshot with removed and new files, delete files included; PyIceberg's own supports data files only."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat

from pyiceberg.exceptions import ValidationException
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import TableProperties, Transaction
from pyiceberg.table.snapshots import Operation, SnapshotSummaryCollector, Summary, update_snapshot_summaries

# Private in PyIceberg, which uses them by `update_snapshot()` only.
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT
from pyiceberg.utils.properties import property_as_bool, property_as_int

from airflow_lakestream.iceberg.commit.manifest_writers import name_types_uniquely, with_optional_values
from airflow_lakestream.iceberg.manifests import live_entries


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
        """Return the manifests of the new snapshot."""
        base = self._transaction.table_metadata.snapshot_by_name(self._target_branch)
        # Manifests without live files only list files removed by earlier snapshots: they would pile up and merge badly.
        with_files = [m for m in base.manifests(self._io) if has_files(m)] if base is not None else []
        data = [m for m in with_files if m.content == ManifestContent.DATA]
        deletes = [m for m in with_files if m.content == ManifestContent.DELETES]
        new_data, new_deletes = _by_spec(self._added_data_files), _by_spec(self._new_deletes)
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
        unchanged, missing = list[ManifestFile](), set(out)
        # Keys are the partition spec, and the place among the new manifests of this spec.
        changed = defaultdict[tuple[int, int], list[ManifestEntry]](list)
        sizes = Counter[int]()
        for spec, files in new.items():
            if files:
                changed[spec, 0] += map(self.manifest_entry, files)
        entries_by_manifest = live_entries(self._io, manifests) if out else repeat(())
        for manifest, entries in zip(manifests, entries_by_manifest, strict=False):
            removed_here = out.intersection(entry.data_file for entry in entries)
            if not removed_here:
                unchanged.append(manifest)
                continue
            missing -= removed_here
            spec = manifest.partition_spec_id
            changed[spec, sizes[spec] // self._target_bytes] += entries
            sizes[spec] += manifest.manifest_length
        if missing:
            paths = ", ".join(sorted(file.file_path for file in missing))
            raise ValidationException(f"Missing required files to delete: {paths}")
        written = [self._write(open_writer(self.spec(spec)), out, entries) for (spec, _), entries in changed.items()]
        return [*written, *unchanged]

    def manifest_entry(self, file: DataFile) -> ManifestEntry:
        """Return the manifest's entry of a new data file."""
        added = ManifestEntryStatus.ADDED
        return ManifestEntry.from_args(status=added, snapshot_id=self.snapshot_id, data_file=file)

    def _write(self, opened: ManifestWriter, out: set[DataFile], entries: Sequence[ManifestEntry]) -> ManifestFile:
        """Write a manifest with entries: those of removed files (`out`) as deleted, of new files as added."""
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
        """Return the manifests of data files, merged if the table's properties ask for merges."""
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


class FileExchange(RowDelta):
    """Snapshot with the rows of its parent, as another arrangement of files: Iceberg's operation `replace`.

    :param operation: another operation, for a snapshot that lacks some rows of its parent.
    :param sequences: the data sequence numbers of new files by path; default: that of the snapshot.
    """

    def __init__(
        self,
        transaction: Transaction,
        summary: dict[str, str],
        operation: Operation = Operation.REPLACE,
        sequences: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(transaction, summary)
        self._operation, self._sequences = operation, sequences or {}

    def manifest_entry(self, file: DataFile) -> ManifestEntry:
        """Return the manifest's entry of a new data file, with the file's data sequence number."""
        return ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED,
            snapshot_id=self.snapshot_id,
            sequence_number=self._sequences.get(file.file_path),
            data_file=file,
        )

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        # PyIceberg's own summary has no counts for a replace, and takes each new file for one of the current spec.
        metadata, counts = self._transaction.table_metadata, SnapshotSummaryCollector()
        schema, specs = metadata.schema(), metadata.specs()
        for file in (*self._added_data_files, *self._new_deletes):
            counts.add_file(file, schema, specs[file.spec_id])
        for file in (*self._deleted_data_files, *self._old_deletes):
            counts.remove_file(file, schema, specs[file.spec_id])
        parent = metadata.snapshot_by_id(self._parent_snapshot_id) if self._parent_snapshot_id is not None else None
        counted = Summary(Operation.OVERWRITE, **counts.build(), **snapshot_properties)
        total = update_snapshot_summaries(counted, None if parent is None else parent.summary)
        return Summary(self._operation, **total.additional_properties)


def exchange_of_files(
    out: Iterable[DataFile],
    new: Iterable[tuple[DataFile, int]],
    transaction: Transaction,
    summary: dict[str, str],
    operation: Operation = Operation.REPLACE,
) -> FileExchange:
    """Return the producer of a snapshot with new files for the rows, or some rows, of removed files.

    :param out: the removed files.
    :param new: the new files, each with its data sequence number, by which delete files apply to the new file.
    """
    added = list(new)
    exchange = FileExchange(transaction, summary, operation, {file.file_path: number for file, number in added})
    for file in out:
        exchange.delete_data_file(file)
    for file, _ in added:
        exchange.append_data_file(file)
    return exchange


def _by_spec(files: Iterable[DataFile]) -> Mapping[int, Sequence[DataFile]]:
    by_spec = defaultdict[int, list[DataFile]](list)
    for file in files:
        by_spec[file.spec_id].append(file)
    return by_spec


def has_files(manifest: ManifestFile) -> bool:
    """Return whether a manifest has live files."""
    return manifest.has_added_files() or manifest.has_existing_files()


def is_data(file: DataFile) -> bool:
    """Return whether a file is a data file and not a delete file."""
    return file.content == DataFileContent.DATA
