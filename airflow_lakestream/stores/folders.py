"""A checkpoint's folder in any store: files are read and written as a whole, and created by a single process.

Guarantees of the stores: on local disks and NFS a file appears as a whole, and only one process can create it (hard
link, rename). S3, Google Cloud Storage and Azure guarantee the same (a conditional PUT), and so does HDFS (rename).
fsspec, for all other stores, guarantees neither: files are read and written there, but `create` is refused.
"""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from airflow_lakestream.exceptions import InvalidArgument, install_command
from airflow_lakestream.stores import hdfs
from airflow_lakestream.stores.object_store import SCHEMES, open_location

# The only file system of fsspec with an exclusive `create`: its files belong to this process alone.
_CREATES_ONCE = ("memory",)


class FolderStore(Protocol):
    """Files of a folder, by relative path; "" is the folder itself."""

    def names(self, folder: str = "") -> list[str]:
        """Return the sorted names of a folder's entries, an empty list for a missing folder."""

    def read(self, path: str) -> bytes | None:
        """Return a file's content, or None for a missing file."""

    def modified(self, path: str) -> float | None:
        """Return a file's last change in seconds since 1970, or None if unknown."""

    def write(self, path: str, content: bytes) -> None:
        """Write a file, replacing any earlier content."""

    def create(self, path: str, content: bytes) -> bool:
        """Create a file; return False if another process created the file first.

        The content must be unique: by the content a store recognizes its own file after a repeated request.
        """

    def remove(self, path: str) -> None:
        """Delete a file, if present."""


def open_folder(location: str, properties: Mapping[str, str] | None = None) -> FolderStore:
    """Return the store of a folder; a folder on a disk need not exist.

    :param location: a path, or a URI as in Spark (`file:/...`, `s3a://...`, `hdfs://...`).
    :param properties: the catalog's properties, or storage options of delta-rs, for the access to an object store;
        default: the environment's settings.

    Raises InvalidArgument if a required package is missing or the options can't work, and HdfsFailed.
    """
    scheme, rest = _split(location)
    try:
        if scheme == "file":
            return LocalFolder(Path(rest))
        if scheme == hdfs.SCHEME:
            return hdfs.HdfsFolder(location)
        if scheme in SCHEMES:
            return _ObjectFolder(open_location(location, properties or {}))
        return _fsspec(location)
    except (ImportError, ValueError, TypeError) as e:
        raise InvalidArgument(
            "checkpoint_location",
            f"{location!r} can't be opened: {e}.",
            "S3, Google Cloud Storage and Azure need the package obstore, which the extra spark brings, HDFS "
            f"hdfs-native, by the extra hdfs ({install_command('hdfs')}); other stores need fsspec's.",
        ) from e


def is_object_store(location: str) -> bool:
    """Return whether a location is in S3, Google Cloud Storage or Azure, and so needs a connection's settings."""
    return _split(location)[0] in SCHEMES


class LocalFolder:
    """A folder on a disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self, folder: str = "") -> list[str]:
        """Return the sorted names of a folder's entries, an empty list for a missing folder."""
        with suppress(FileNotFoundError):
            return sorted(path.name for path in (self._path / folder).iterdir())
        return []

    def read(self, path: str) -> bytes | None:
        """Return a file's content, or None for a missing file."""
        with suppress(FileNotFoundError):
            return (self._path / path).read_bytes()
        return None

    def modified(self, path: str) -> float | None:
        """Return a file's last change in seconds since 1970, or None for a missing file."""
        with suppress(FileNotFoundError):
            return (self._path / path).stat().st_mtime
        return None

    def write(self, path: str, content: bytes) -> None:
        """Write a file, replacing any earlier content: the file appears as a whole, by a rename."""
        self._write_temporary(path, content).replace(self._path / path)

    def create(self, path: str, content: bytes) -> bool:
        """Create a file; return False if the file exists.

        A hard link is made as a whole, and fails for an existing file.
        """
        written = self._write_temporary(path, content)
        try:
            os.link(written, self._path / path)
        except FileExistsError:
            return False
        finally:
            written.unlink()
        return True

    def remove(self, path: str) -> None:
        """Delete a file, if present."""
        (self._path / path).unlink(missing_ok=True)

    def _write_temporary(self, path: str, content: bytes) -> Path:
        folder = (self._path / path).parent
        folder.mkdir(parents=True, exist_ok=True)
        written = folder / f".{uuid.uuid4().hex}.tmp"
        written.write_bytes(content)
        return written


class _ObjectFolder:
    """The `FolderStore` of a prefix of a bucket; `store` is obstore's object for this prefix."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def names(self, folder: str = "") -> list[str]:
        listing = self._store.list_with_delimiter(prefix=folder or None)
        paths = [*(item["path"] for item in listing["objects"]), *listing["common_prefixes"]]
        # Hadoop marks a folder by an empty object of the folder's name.
        return _last_parts(path for path in paths if path.strip("/") != folder)

    def read(self, path: str) -> bytes | None:
        with suppress(FileNotFoundError):
            return bytes(self._store.get(path).bytes())
        return None

    def modified(self, path: str) -> float | None:
        with suppress(FileNotFoundError):
            return float(self._store.head(path)["last_modified"].timestamp())
        return None

    def write(self, path: str, content: bytes) -> None:
        self._store.put(path, content)

    def create(self, path: str, content: bytes) -> bool:
        """Create an object by a conditional PUT; return False if an object with another content exists."""
        from obstore.exceptions import AlreadyExistsError

        try:
            self._store.put(path, content, mode="create")
        except AlreadyExistsError:
            # obstore repeats a request whose answer was lost, and may find the object of its own first request.
            return self.read(path) == content
        return True

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._store.delete(path)


class _FsspecFolder:
    """The `FolderStore` of a file system of fsspec.

    :param scheme: of the location, such as "sftp".
    """

    def __init__(self, fs: Any, path: str, scheme: str) -> None:
        self._fs = fs
        self._path = path
        self._scheme = scheme

    def names(self, folder: str = "") -> list[str]:
        self._fs.invalidate_cache()
        with suppress(FileNotFoundError):
            return _last_parts(self._fs.ls(f"{self._path}/{folder}".rstrip("/"), detail=False))
        return []

    def read(self, path: str) -> bytes | None:
        with suppress(FileNotFoundError):
            return bytes(self._fs.cat_file(f"{self._path}/{path}"))
        return None

    def modified(self, path: str) -> float | None:
        # Some file systems of fsspec keep no times: the time is then unknown, as that of a missing file.
        with suppress(FileNotFoundError, NotImplementedError):
            return float(self._fs.modified(f"{self._path}/{path}").timestamp())
        return None

    def write(self, path: str, content: bytes) -> None:
        # Readers may see a part of the file meanwhile.
        self._fs.pipe_file(f"{self._path}/{path}", content)

    def create(self, path: str, content: bytes) -> bool:
        """Create a file; return False if the file exists.

        Raises InvalidArgument for a file system in which two processes could both create the file.
        """
        if self._scheme not in _CREATES_ONCE:
            raise InvalidArgument(
                "checkpoint_location",
                f"{self._scheme}:// can't create a file on condition that it is missing, so that two drivers could "
                "each hold the lease. Nothing was started.",
                "Take a disk, S3, Google Cloud Storage, Azure or hdfs://.",
            )
        try:
            self._fs.makedirs(self._path, exist_ok=True)
            self._fs.pipe_file(f"{self._path}/{path}", content, mode="create")
        except FileExistsError:
            return False
        return True

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.rm_file(f"{self._path}/{path}")


def _fsspec(location: str) -> _FsspecFolder:
    from fsspec.core import url_to_fs

    # The location includes the host, if the file system has one.
    fs, path = url_to_fs(location)
    return _FsspecFolder(fs, str(path).rstrip("/"), _split(location)[0])


def _split(location: str) -> tuple[str, str]:
    """Return (scheme, rest) of a location; a local path has the scheme "file", and the path as the rest."""
    scheme, _, rest = location.partition(":")
    if not rest or "/" in scheme:
        return "file", location
    return (scheme, "/" + rest.lstrip("/")) if scheme == "file" else (scheme, rest)


def _last_parts(paths: Iterable[Any]) -> list[str]:
    """Return the sorted last names of paths."""
    return sorted(name for path in paths if (name := str(path).rstrip("/").rsplit("/", 1)[-1]))


class RangedFile(io.RawIOBase):
    """A seekable file of `size` bytes. Subclasses implement `read`, from the position `_at` on, and move `_at`."""

    def __init__(self, size: int) -> None:
        self._size, self._at = size, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position, in bytes."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position; return the position in bytes from the beginning."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at
