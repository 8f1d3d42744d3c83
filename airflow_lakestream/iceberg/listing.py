"""Files in a folder of a table, with size and time, by any client of the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlparse

from pyarrow.fs import FileSelector, FileType
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from airflow_lakestream.iceberg.hdfs import HdfsFileIO

# Names of the time of the last change in fsspec's file systems: of local files, S3, Azure and Google Cloud Storage.
_TIMES = ("mtime", "LastModified", "last_modified", "updated")


class CannotList(Exception):
    """File system of a table without a way to list a folder."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """File in a store. `modified` is in seconds since the epoch, or None if the store does not give it."""

    location: str
    size: int
    modified: float | None


def stored_files(io: FileIO, folder: str) -> Iterator[StoredFile]:
    """Yield all files below a folder; empty if the folder is missing. Raises CannotList.

    File systems return paths without schemes: each location gets the form of `folder`, as in tables.
    """
    root = folder.rstrip("/")
    if isinstance(io, HdfsFileIO):
        yield from (StoredFile(location, size, ms / 1000) for location, size, ms in io.stored(folder))
    elif isinstance(io, PyArrowFileIO):
        scheme, netloc, path = io.parse_location(folder, io.properties)
        selector = FileSelector(path, allow_not_found=True, recursive=True)
        for info in io.fs_by_scheme(scheme, netloc).get_file_info(selector):
            if info.type is FileType.File:
                modified = None if info.mtime is None else info.mtime.timestamp()
                yield StoredFile(root + info.path.removeprefix(path.rstrip("/")), info.size or 0, modified)
    elif hasattr(io, "get_fs"):
        system = io.get_fs(urlparse(folder).scheme or "file")
        path = system._strip_protocol(folder)
        for name, about in system.find(path, detail=True).items():
            yield StoredFile(root + name.removeprefix(path.rstrip("/")), int(about.get("size") or 0), _modified(about))
    else:
        raise CannotList(f"{type(io).__name__} can't list {folder}")


def _modified(about: Mapping[str, Any]) -> float | None:
    """Return a file's time of the last change in seconds since the epoch, or None if the store does not give it."""
    value = next((about[name] for name in _TIMES if about.get(name) is not None), None)
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    return None if value is None else float(value)
