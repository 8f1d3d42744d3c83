"""The folder beside a checkpoint, `<checkpoint_location>.lakestream/`, on any file system that fsspec knows.

Beside it, not in it: Spark owns the checkpoint, and who deletes the checkpoint keeps the lease.

What each file system gives: on local disks (and NFS) a file appears whole and is created by one process only (hard
link, rename). S3, by s3fs, likewise (conditional PUT). On others a file that is being written may be seen in part, and
of two that create it in the same moment both may believe that they did: there the table's ledger alone decides.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from airflow_lakestream.exceptions import InvalidArgument

_SUFFIX = ".lakestream"
# PyIceberg makes these from a catalog's properties (`s3.endpoint`, `s3.access-key-id`, ...), as it does for tables.
_OF_CATALOGS = ("s3", "s3a", "s3n", "gs", "abfs", "abfss", "wasb", "wasbs")


def file_system(location: str, properties: Mapping[str, str] | None = None) -> tuple[fsspec.AbstractFileSystem, str]:
    """Return (the file system of a location, the path on it).

    :param location: a path, or a URI as Spark takes it (`file:/...`, `s3a://...`, `hdfs://...`).
    :param properties: the catalog's properties, which say how to get at its object store.

    Raises InvalidArgument where the file system's package is not installed.
    """
    scheme, _, rest = location.partition(":")
    if not rest or "/" in scheme:
        scheme = "file"
    try:
        if scheme in _OF_CATALOGS and properties:
            from pyiceberg.io.fsspec import FsspecFileIO

            fs = FsspecFileIO(dict(properties)).get_fs(scheme, rest.lstrip("/").split("/")[0])
        else:
            fs = fsspec.filesystem(scheme)
    except (ImportError, ValueError) as e:
        raise InvalidArgument(
            "checkpoint_location",
            f"{location!r} can't be opened: {e}.",
            "Install what fsspec needs for it (s3fs, ...).",
        ) from e
    return fs, str(fs._strip_protocol(location)).rstrip("/")


def is_object_store(location: str) -> bool:
    """Whether a catalog's properties say how to get at a location."""
    return location.partition(":")[0] in _OF_CATALOGS and ":" in location


class Beside:
    """The folder of one checkpoint; JSON files, each written as a whole."""

    def __init__(self, checkpoint_location: str, properties: Mapping[str, str] | None = None) -> None:
        self._fs, path = file_system(checkpoint_location, properties)
        self.path = path + _SUFFIX
        self._is_local = isinstance(self._fs, LocalFileSystem)

    def names(self) -> list[str]:
        """Return the names of the files, sorted; none where the folder is missing."""
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(self.path, detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(name).rsplit("/", 1)[-1] for name in found)

    def read(self, name: str) -> dict[str, Any] | None:
        """Return what a file holds; None where it is missing, or written in part."""
        try:
            value = json.loads(self._fs.cat_file(f"{self.path}/{name}"))
        except (FileNotFoundError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def write(self, name: str, value: Mapping[str, Any]) -> None:
        """Put a file in the place of what is there."""
        if self._is_local:
            self._whole(value).replace(Path(self.path, name))
        else:
            self._fs.pipe_file(f"{self.path}/{name}", _encoded(value))

    def create(self, name: str, value: Mapping[str, Any]) -> bool:
        """Make a file; False where somebody else has made it."""
        try:
            if not self._is_local:
                self._fs.makedirs(self.path, exist_ok=True)
                self._fs.pipe_file(f"{self.path}/{name}", _encoded(value), mode="create")
                return True
            written = self._whole(value)
            try:
                os.link(written, Path(self.path, name))
            finally:
                written.unlink()
        except FileExistsError:
            return False
        return True

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        try:
            self._fs.rm_file(f"{self.path}/{name}")
        except FileNotFoundError:
            return

    def _whole(self, value: Mapping[str, Any]) -> Path:
        Path(self.path).mkdir(parents=True, exist_ok=True)
        written = Path(self.path, f".{uuid.uuid4().hex}.tmp")
        written.write_bytes(_encoded(value))
        return written


def _encoded(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode()
