"""A folder of a checkpoint, wherever it lies: files read and written as a whole, and created by one process only.

What each place gives: on local disks (and NFS) a file appears whole and is created by one process only (hard link,
rename). S3 likewise (a PUT on the condition that there is none). On others, which fsspec opens, a file that is being
written may be seen in part, and of two that create it in the same moment both may believe that they did: there the
table's ledger alone decides.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.stores.object_store import open_store, options_of

_S3 = ("s3", "s3a", "s3n")
# PyIceberg opens these by a catalog's properties, as it does for tables.
_OF_CATALOGS = ("gs", "abfs", "abfss", "wasb", "wasbs")


class Store(Protocol):
    """The files of one folder, by their path in it; "" is the folder itself."""

    def names(self, folder: str = "") -> list[str]:
        """Return the names of what lies in a folder, sorted; none where it is missing."""

    def read(self, path: str) -> bytes | None:
        """Return what a file holds; None where it is missing."""

    def modified(self, path: str) -> float | None:
        """Return when a file was last written, in seconds since 1970; None where that can't be told."""

    def write(self, path: str, content: bytes) -> None:
        """Put a file in the place of what is there."""

    def create(self, path: str, content: bytes) -> bool:
        """Make a file, whose content nobody else writes; False where somebody else has made it."""

    def remove(self, path: str) -> None:
        """Delete a file, if it is there."""


def open_folder(location: str, properties: Mapping[str, str] | None = None) -> Store:
    """Return the store of a folder.

    :param location: a path, or a URI as Spark takes it (`file:/...`, `s3a://...`, `hdfs://...`).
    :param properties: of the catalog, or storage options of delta-rs: they say how to get at an object store. Without
        them the environment does.

    Raises InvalidArgument where what opens it is not installed.
    """
    scheme, rest = _split(location)
    try:
        if scheme == "file":
            return LocalFolder(Path(rest))
        if scheme in _S3:
            return ObjectFolder(open_store(f"s3://{rest.strip('/')}", options_of(properties or {})))
        return _fsspec(scheme, location, rest, properties)
    except (ImportError, ValueError) as e:
        raise InvalidArgument(
            "checkpoint_location",
            f"{location!r} can't be opened: {e}.",
            "S3 needs the package obstore (airflow-lakestream[spark]), another store what fsspec needs for it.",
        ) from e


def is_object_store(location: str) -> bool:
    """Whether a connection says how to get at a location."""
    return _split(location)[0] in (*_S3, *_OF_CATALOGS)


class LocalFolder:
    """A folder of a disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self, folder: str = "") -> list[str]:
        """See `Store`."""
        try:
            return sorted(path.name for path in (self._path / folder).iterdir())
        except FileNotFoundError:
            return []

    def read(self, path: str) -> bytes | None:
        """See `Store`."""
        try:
            return (self._path / path).read_bytes()
        except FileNotFoundError:
            return None

    def modified(self, path: str) -> float | None:
        """See `Store`."""
        try:
            return (self._path / path).stat().st_mtime
        except FileNotFoundError:
            return None

    def write(self, path: str, content: bytes) -> None:
        """See `Store`."""
        self._whole(path, content).replace(self._path / path)

    def create(self, path: str, content: bytes) -> bool:
        """See `Store`."""
        written = self._whole(path, content)
        try:
            os.link(written, self._path / path)
        except FileExistsError:
            return False
        finally:
            written.unlink()
        return True

    def remove(self, path: str) -> None:
        """See `Store`."""
        (self._path / path).unlink(missing_ok=True)

    def _whole(self, path: str, content: bytes) -> Path:
        folder = (self._path / path).parent
        folder.mkdir(parents=True, exist_ok=True)
        written = folder / f".{uuid.uuid4().hex}.tmp"
        written.write_bytes(content)
        return written


class ObjectFolder:
    """A prefix of a bucket; `store` is obstore's, whose root it is."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def names(self, folder: str = "") -> list[str]:
        """See `Store`."""
        import obstore

        found = obstore.list_with_delimiter(self._store, prefix=folder or None)
        paths = [*(one["path"] for one in found["objects"]), *found["common_prefixes"]]
        # Hadoop marks a folder by an empty object of its own name.
        return _last_parts(path for path in paths if path.strip("/") != folder)

    def read(self, path: str) -> bytes | None:
        """See `Store`."""
        import obstore

        try:
            return bytes(obstore.get(self._store, path).bytes())
        except FileNotFoundError:
            return None

    def modified(self, path: str) -> float | None:
        """See `Store`."""
        import obstore

        try:
            return float(obstore.head(self._store, path)["last_modified"].timestamp())
        except FileNotFoundError:
            return None

    def write(self, path: str, content: bytes) -> None:
        """See `Store`."""
        import obstore

        obstore.put(self._store, path, content)

    def create(self, path: str, content: bytes) -> bool:
        """See `Store`."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            obstore.put(self._store, path, content, mode="create")
        except AlreadyExistsError:
            # A request whose answer was lost is sent once more, and finds what it has itself written.
            return self.read(path) == content
        return True

    def remove(self, path: str) -> None:
        """See `Store`."""
        import obstore

        try:
            obstore.delete(self._store, path)
        except FileNotFoundError:
            return


class FsspecFolder:
    """A folder of any file system that fsspec knows."""

    def __init__(self, fs: Any, path: str) -> None:
        self._fs = fs
        self._path = path

    def names(self, folder: str = "") -> list[str]:
        """See `Store`."""
        self._fs.invalidate_cache()
        try:
            return _last_parts(self._fs.ls(f"{self._path}/{folder}".rstrip("/"), detail=False))
        except FileNotFoundError:
            return []

    def read(self, path: str) -> bytes | None:
        """See `Store`."""
        try:
            return bytes(self._fs.cat_file(f"{self._path}/{path}"))
        except FileNotFoundError:
            return None

    def modified(self, path: str) -> float | None:
        """See `Store`."""
        try:
            return float(self._fs.modified(f"{self._path}/{path}").timestamp())
        except (FileNotFoundError, NotImplementedError):
            return None

    def write(self, path: str, content: bytes) -> None:
        """See `Store`."""
        self._fs.pipe_file(f"{self._path}/{path}", content)

    def create(self, path: str, content: bytes) -> bool:
        """See `Store`."""
        try:
            self._fs.makedirs(self._path, exist_ok=True)
            self._fs.pipe_file(f"{self._path}/{path}", content, mode="create")
        except FileExistsError:
            return False
        return True

    def remove(self, path: str) -> None:
        """See `Store`."""
        try:
            self._fs.rm_file(f"{self._path}/{path}")
        except FileNotFoundError:
            return


def _fsspec(scheme: str, location: str, rest: str, properties: Mapping[str, str] | None) -> FsspecFolder:
    if scheme in _OF_CATALOGS and properties:
        from pyiceberg.io.fsspec import FsspecFileIO

        fs = FsspecFileIO(dict(properties)).get_fs(scheme, rest.lstrip("/").split("/")[0])
    else:
        import fsspec

        fs = fsspec.filesystem(scheme)
    return FsspecFolder(fs, str(fs._strip_protocol(location)).rstrip("/"))


def _split(location: str) -> tuple[str, str]:
    """Return (the scheme, what follows it); of a local one, the path."""
    scheme, _, rest = location.partition(":")
    if not rest or "/" in scheme:
        return "file", location
    return (scheme, "/" + rest.lstrip("/")) if scheme == "file" else (scheme, rest)


def _last_parts(paths: Iterable[Any]) -> list[str]:
    return sorted(name for path in paths if (name := str(path).rstrip("/").rsplit("/", 1)[-1]))
