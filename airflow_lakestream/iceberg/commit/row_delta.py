"""A snapshot that takes files out and puts others in, delete files included: PyIceberg's own knows data files only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pyiceberg.exceptions import ValidationException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import TableProperties, Transaction
from pyiceberg.table.snapshots import Operation, Summary

# Private in PyIceberg, which uses them by `update_snapshot()` only.
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT
from pyiceberg.utils.properties import property_as_bool, property_as_int

from airflow_lakestream.iceberg.commit.manifest_writers import with_optional_values


class DeleteManifestWriter(ManifestWriterV2):
    """PyIceberg's writer, for a manifest of delete files."""

    def content(self) -> ManifestContent:
        """Return what its files are."""
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class RowDelta(_OverwriteFiles):
    """PyIceberg's overwrite, also of delete files; as an append, it merges manifests where the table wants that."""

    def __init__(self, transaction: Transaction, summary: dict[str, str]) -> None:
        is_first = transaction.table_metadata.current_snapshot() is None
        operation = Operation.APPEND if is_first else Operation.OVERWRITE
        io = transaction._table.io
        super().__init__(operation=operation, transaction=transaction, io=io, snapshot_properties=summary)
        self._new_deletes: list[DataFile] = []
        self._old_deletes: set[DataFile] = set()

    def append_data_file(self, data_file: DataFile) -> RowDelta:
        """Put a data file, or a delete file, in."""
        (self._added_data_files if is_data(data_file) else self._new_deletes).append(data_file)
        return self

    def delete_data_file(self, data_file: DataFile) -> RowDelta:
        """Take a data file, or a delete file, out."""
        if is_data(data_file) and not self._deleted_data_files:
            self.delete_by_predicate(AlwaysTrue())
        (self._deleted_data_files if is_data(data_file) else self._old_deletes).add(data_file)
        return self

    def _build_delete_files_partition_predicate(self) -> None:
        """Let PyIceberg look for the files everywhere: by their partitions it fails for a partition of NaN."""

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        # Those of which nothing is left tell only what earlier snapshots took out: they would pile up, and merge badly.
        kept = [one for one in manifests if one.added_snapshot_id == self.snapshot_id or _has_files(one)]
        data = [one for one in kept if one.content == ManifestContent.DATA]
        deletes = [one for one in kept if one.content == ManifestContent.DELETES]
        return [*self._merged(data), *self._with_deletes(deletes)]

    def _merged(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        properties = self._transaction.table_metadata.properties
        if not manifests or not property_as_bool(properties, TableProperties.MANIFEST_MERGE_ENABLED, False):
            return manifests
        size = property_as_int(
            properties,
            TableProperties.MANIFEST_TARGET_SIZE_BYTES,
            TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT,
        )
        least = property_as_int(
            properties, TableProperties.MANIFEST_MIN_MERGE_COUNT, TableProperties.MANIFEST_MIN_MERGE_COUNT_DEFAULT
        )
        assert size is not None, "there is a default"
        assert least is not None, "there is a default"
        return _ManifestMergeManager(size, least, True, self).merge_manifests(manifests)

    def _with_deletes(self, manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
        """Return manifests of delete files; those that change become one for each partition spec."""
        left, missing = list[ManifestFile](), set(self._old_deletes)
        entries = defaultdict[int, list[ManifestEntry]](list)
        for manifest in manifests:
            held = self.fetch_manifest_entry(manifest) if self._old_deletes else []
            found = {entry.data_file for entry in held} & self._old_deletes
            if not found:
                left.append(manifest)
                continue
            missing -= found
            entries[manifest.partition_spec_id] += held
        if missing:
            paths = ", ".join(sorted(file.file_path for file in missing))
            raise ValidationException(f"Missing required files to delete: {paths}")
        added = defaultdict[int, list[DataFile]](list)
        for file in self._new_deletes:
            added[file.spec_id].append(file)
        return [*left, *(self._write_deletes(spec, entries[spec], added[spec]) for spec in {*entries, *added})]

    def _write_deletes(self, spec: int, held: Sequence[ManifestEntry], new: Sequence[DataFile]) -> ManifestFile:
        output, number = self.new_manifest_output(), self.snapshot_id
        shape = with_optional_values(self.spec(spec))
        with DeleteManifestWriter(shape, self.schema(), output, number, self._compression) as writer:
            for entry in held:
                (writer.delete if entry.data_file in self._old_deletes else writer.existing)(entry)
            for file in new:
                writer.add_entry(
                    ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=number, data_file=file)
                )
        return writer.to_manifest_file()

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        """Count the delete files, too."""
        data = self._added_data_files, self._deleted_data_files
        self._added_data_files, self._deleted_data_files = [*data[0], *self._new_deletes], data[1] | self._old_deletes
        try:
            return super()._summary(snapshot_properties)
        finally:
            self._added_data_files, self._deleted_data_files = data


def _has_files(manifest: ManifestFile) -> bool:
    return manifest.has_added_files() or manifest.has_existing_files()


def is_data(file: DataFile) -> bool:
    """Tell a data file from a delete file."""
    return file.content == DataFileContent.DATA
