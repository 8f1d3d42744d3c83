"""Files that no snapshot of a table has: which files lie below a folder, and which of them the table refers to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from urllib.parse import urlparse

from pyarrow.fs import FileSelector, FileType
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table

from airflow_lakestream.iceberg.write.files import delete_files


class CannotList(Exception):
    """The table's file system offers no way to list a folder."""


def list_files(io: FileIO, folder: str) -> Iterator[str]:
    """Yield the locations of all files below a folder; none where there is no such folder. Raises CannotList."""
    if isinstance(io, PyArrowFileIO):
        scheme, netloc, path = io.parse_location(folder, io.properties)
        found = io.fs_by_scheme(scheme, netloc).get_file_info(FileSelector(path, allow_not_found=True, recursive=True))
        paths = [info.path for info in found if info.type is FileType.File]
    elif hasattr(io, "get_fs"):
        system = io.get_fs(urlparse(folder).scheme or "file")
        path = system._strip_protocol(folder)
        paths = system.find(path)
    else:
        raise CannotList(f"{type(io).__name__} can't list {folder}")
    # The systems know no schemes: what is below the folder is named as the folder is, which is how tables name it.
    yield from (folder.rstrip("/") + found.removeprefix(path.rstrip("/")) for found in paths)


def referenced(table: Table, paths: Iterable[str]) -> set[str]:
    """Return those of the locations that any snapshot of the table has: it may be rolled back to each of them."""
    left, found = set(paths), set[str]()
    for manifest in _manifests(table):
        if not left:
            break
        here = {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
        found |= left & here
        left -= here
    return found


def delete_unreferenced(table: Table, folder: str) -> tuple[int, int]:
    """Delete the files below a folder that no snapshot of the table has.

    For folders that nobody writes into any more. Returns how many were deleted, and how many may be left.
    Raises CannotList, and what the file system raises.
    """
    there = set(list_files(table.io, folder))
    orphans = there - referenced(table, there)
    left = delete_files(table.io, sorted(orphans))
    return len(orphans) - len(left), len(left)


def _manifests(table: Table) -> Iterator[ManifestFile]:
    """Yield each manifest of the table once, those of the newest snapshots first."""
    seen = set[str]()
    for snapshot in sorted(table.snapshots(), key=lambda s: s.sequence_number or 0, reverse=True):
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield manifest
