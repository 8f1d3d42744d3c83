"""Orphans of a table: old files of its folder that no snapshot, statistics or metadata file refers to."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from airflow_lakestream.iceberg import fitness
from airflow_lakestream.iceberg.commit import retention
from airflow_lakestream.iceberg.listing import StoredFile, stored_files
from airflow_lakestream.iceberg.upkeep.expiry import statistics_of
from airflow_lakestream.iceberg.write.files import delete_files

# Parallel requests to a store.
AT_ONCE = 32
# File of catalogs that are folders, with the number of the newest metadata file.
_HINT = "version-hint.text"
_AUTHORITY = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?")


@dataclass(frozen=True)
class OrphanFiles:
    """Orphans found, and the number of files that could not be deleted."""

    files: tuple[StoredFile, ...] = ()
    left: int = 0

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.size for file in self.files)


def find_orphans(catalog: Catalog, name: str, age: float, now: float | None = None) -> OrphanFiles:
    """Return the files that `remove_orphans` would delete. Raises CannotList, and the store's errors.

    Spark's rules: a file without a known time is kept, and so is a file whose name, or whose folder's, begins with a
    dot or an underscore, except the folders of partitions.

    :param age: the least age of a file, in seconds.
    :param now: the time, in seconds since the epoch; default: the present.
    """
    table = fitness.load_table(catalog, name)
    if table.metadata.properties.get(retention.GC_ENABLED, "true").lower() == "false":
        return OrphanFiles()
    latest = (time.time() if now is None else now) - age
    folder = table.location().rstrip("/")
    fields = {field.name for spec in table.metadata.specs().values() for field in spec.fields}
    old = {
        _key(file.location): file
        for file in stored_files(table.io, folder)
        if file.modified is not None and file.modified < latest and not _is_hidden(file.location, folder, fields)
    }
    while old:
        # The table is loaded after the listing, so that a file that was committed meanwhile counts as needed.
        table = fitness.load_table(catalog, name)
        try:
            for location in _references(table):
                old.pop(_key(location), None)
            break
        except FileNotFoundError:
            # An expiry meanwhile has deleted manifests: the table is loaded again, if it has changed.
            if catalog.load_table(name).metadata_location == table.metadata_location:
                raise
    return OrphanFiles(tuple(sorted(old.values(), key=lambda file: file.location)))


def remove_orphans(catalog: Catalog, name: str, age: float) -> OrphanFiles:
    """Delete the orphans of a table, and return them. Raises the errors of `find_orphans`."""
    orphans = find_orphans(catalog, name, age)
    io = catalog.load_table(name).io
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="lakestream-orphans") as pool:
        undeleted = sum(map(len, pool.map(lambda file: delete_files(io, [file.location]), orphans.files)))
    return OrphanFiles(orphans.files, undeleted)


def _references(table: Table) -> Iterator[str]:
    """Yield the locations of all files that the table needs, some of them several times."""
    yield table.metadata_location
    yield from _of_metadata(table.metadata)
    manifests = iter(retention.listed(table.io, table.metadata.snapshots))
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="lakestream-manifests") as pool:
        # A few manifests at a time, since their entries take more memory than the paths.
        while some := list(itertools.islice(manifests, AT_ONCE)):
            yield from (manifest.manifest_path for manifest in some)
            for paths in pool.map(lambda manifest: _paths(table, manifest), some):
                yield from paths


def _of_metadata(metadata: TableMetadata) -> Iterator[str]:
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (snapshot.manifest_list for snapshot in metadata.snapshots)
    yield from statistics_of(metadata)


def _paths(table: Table, manifest: ManifestFile) -> Sequence[str]:
    return [entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)]


def _key(location: str) -> str:
    """Return a location's path without scheme and authority, since a store may have several of both.

    Files of two stores with the same path are then taken for the same: a file too many is kept, none is lost.
    """
    return re.sub("/+", "/", "/" + _AUTHORITY.sub("", location))


def _is_hidden(location: str, folder: str, fields: set[str]) -> bool:
    """Return whether a file is never an orphan, by its name or a folder's name; see `find_orphans`."""
    *folders, name = location.removeprefix(folder).strip("/").split("/")
    hidden = (part for part in folders if part.startswith(("_", ".")) and part.partition("=")[0] not in fields)
    return name == _HINT or name.startswith(("_", ".")) or any(hidden)
