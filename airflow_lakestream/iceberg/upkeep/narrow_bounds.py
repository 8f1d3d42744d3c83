"""Wrong bounds of a table: data files with values beyond the bounds in manifests, and the repair by a snapshot.

The snapshot has the files of its parent, and new manifests for the wrongly described files: without the bounds of such
columns. A rewrite of manifests by another engine copies bounds as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table

from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.commit.attempt import CommitAttempt, LandingTransaction
from airflow_lakestream.iceberg.commit.row_delta import FileExchange
from airflow_lakestream.iceberg.manifests import live_entries, live_entries_of
from airflow_lakestream.iceberg.upkeep import ledger_edit
from airflow_lakestream.iceberg.write.bounds import too_narrow, without_bounds

# Parallel requests to a store.
AT_ONCE = 32
# Key in the summary of a mending snapshot: the number of files with changed bounds.
SUMMARY_BOUNDS = "lakestream.bounds-mended"


@dataclass(frozen=True, slots=True)
class WrongBounds:
    """Live data file with values beyond the bounds in the manifest; `columns` are the present names."""

    path: str
    columns: tuple[str, ...]
    ids: frozenset[int]

    @property
    def text(self) -> str:
        """The finding as text."""
        return f"wrong bounds: {self.path} has values of {', '.join(self.columns)} beyond them: filters skip rows"


def _data_files(table: Table, snapshot_id: int | None) -> dict[str, DataFile]:
    """Return the data files of a snapshot, by path; empty without a snapshot."""
    snapshot = None if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    manifests = () if snapshot is None else snapshot.manifests(table.io)
    data = [manifest for manifest in manifests if manifest.content == ManifestContent.DATA]
    entries = chain.from_iterable(live_entries(table.io, data))
    return {entry.data_file.file_path: entry.data_file for entry in entries}


def wrong_bounds(table: Table, snapshot_id: int | None, without: Collection[str] = ()) -> list[WrongBounds]:
    """Return the data files of a snapshot with wrong bounds; files of several row groups are opened.

    :param without: paths of files to leave out.

    Raises the store's errors.
    """
    schema, names = table.schema(), table.name_mapping()
    files = [file for path, file in _data_files(table, snapshot_id).items() if path not in without]

    def look(file: DataFile) -> WrongBounds:
        ids = too_narrow(table.io, file, names)
        columns = (schema.find_column_name(field_id) or f"the dropped column {field_id}" for field_id in sorted(ids))
        return WrongBounds(file.file_path, tuple(columns), ids)

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="lakestream-bounds") as pool:
        return [finding for finding in pool.map(look, files) if finding.ids]


def mend(catalog: Catalog, name: str, findings: Sequence[WrongBounds]) -> int | None:
    """Remove wrong bounds from the manifests of a table's head; return the snapshot's id.

    Returns None, without a commit, if none of the files is in the head. Raises EditNotDone, and the errors of `fitness`
    for a table unfit for commits.

    :param findings: the files with wrong bounds; files no longer in the head are ignored.
    """
    if not findings:
        return None

    def attempt() -> CommitAttempt | None:
        table = ledger_edit.fit_table(catalog, name)
        present = _data_files(table, ledger_store.head_of(table.metadata))
        columns_by_path = {finding.path: finding.ids for finding in findings if finding.path in present}
        if not columns_by_path:
            return None
        summary = {SUMMARY_BOUNDS: str(len(columns_by_path))}
        return ledger_edit.attempt_at(catalog, table, summary, partial(_BoundsManifests, columns_by_path))

    return ledger_edit.drive(name, attempt)


class _BoundsManifests(FileExchange):
    """Snapshot with the files of the parent, and new manifests for files with wrong bounds."""

    def __init__(
        self, wrong: Mapping[str, frozenset[int]], transaction: LandingTransaction, summary: dict[str, str]
    ) -> None:
        super().__init__(transaction, summary)
        self._wrong = wrong

    def _manifests(self) -> list[ManifestFile]:
        base = self._transaction.table_metadata.snapshot_by_name(self._target_branch)
        return [self._mended(manifest) for manifest in (base.manifests(self._io) if base is not None else ())]

    def _mended(self, manifest: ManifestFile) -> ManifestFile:
        """Return a manifest with the entries of another, without wrong bounds; unchanged if no bound is wrong."""
        if manifest.content != ManifestContent.DATA:
            return manifest
        entries = live_entries_of(self._io, manifest)
        if not any(entry.data_file.file_path in self._wrong for entry in entries):
            return manifest
        with self.new_manifest_writer(self.spec(manifest.partition_spec_id)) as writer:
            for entry in entries:
                writer.existing(self._existing(entry))
        return writer.to_manifest_file()

    def _existing(self, entry: ManifestEntry) -> ManifestEntry:
        """Return an entry for an existing file, without its wrong bounds."""
        columns = self._wrong.get(entry.data_file.file_path)
        return ManifestEntry.from_args(
            status=ManifestEntryStatus.EXISTING,
            snapshot_id=entry.snapshot_id,
            sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number,
            data_file=entry.data_file if columns is None else without_bounds(entry.data_file, columns),
        )
