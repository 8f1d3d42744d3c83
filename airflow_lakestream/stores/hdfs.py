"""HDFS by hdfs-native, without Java: files appear as a whole, each created by a single process.

A file is written under another name, then renamed: the NameNode renames under one lock, and refuses an existing name.
The settings have the same places as for Hadoop's own clients: HADOOP_CONF_DIR for name services and Kerberos; for the
user, HADOOP_USER_NAME or the name of the process' user.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from airflow_lakestream.exceptions import LakestreamError, MissingExtra, Transient

Answer = TypeVar("Answer")

SCHEME = "hdfs"
# Seconds for an answer about a small file. The client itself waits without a limit while a connection is open.
PATIENCE = 60.0
# The attempts to reach a NameNode: for some twenty seconds, not for minutes as by default.
ATTEMPTS = 5
# A NameNode's port, if a location names no port.
_PORT = 8020
# The environment variables that a client depends on.
_SETTINGS = ("HADOOP_CONF_DIR", "HADOOP_HOME", "HADOOP_USER_NAME", "HADOOP_PROXY_USER")
# The clients by process (the threads of a client do not survive a fork), NameNode and environment: see `_key`.
_clients: dict[tuple[int, str, *tuple[str | None, ...]], Any] = {}


class HdfsFailed(LakestreamError, Transient):
    """HDFS did not answer, or refused."""

    def __init__(self, place: str, error: Exception) -> None:
        # Java's stack trace follows the first line.
        text = str(error).replace("\\n", "\n").partition("\n")[0]
        super().__init__(f"{place}: {text or type(error).__name__}")


def client_of(authority: str) -> Any:
    """Return this process' client of a NameNode or name service, which is created at its first use.

    Raises MissingExtra, HdfsFailed.

    :param authority: host, host and port, or name service; "" means Hadoop's default file system.
    """
    key = _key(authority)
    client = _clients.get(key)
    if client is None:
        with translate_errors(f"{SCHEME}://{authority}"):
            client = _clients.setdefault(key, _connect(authority))
    return client


def split(location: str) -> tuple[str, str]:
    """Return (authority, path) of a location; the authority "" means Hadoop's default file system."""
    rest = location.partition(":")[2]
    if not rest.startswith("//"):
        return "", rest
    authority, slash, path = rest[2:].partition("/")
    return authority, slash + path


@contextmanager
def translate_errors(place: str) -> Iterator[None]:
    """Raise the client's errors as HdfsFailed with the place; missing or existing files are raised unchanged."""
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except (OSError, RuntimeError) as e:
        raise HdfsFailed(place, e) from e


class HdfsFolder:
    """A folder of HDFS; see `stores.folders.FolderStore`."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._authority, path = split(location)
        self._path = path.rstrip("/")
        # Wrong settings fail here, not in a later method.
        client_of(self._authority)

    def names(self, folder: str = "") -> list[str]:
        """Return the sorted names of a folder's entries, an empty list for a missing folder."""
        place = self._path_of(folder).rstrip("/") or "/"
        with suppress(FileNotFoundError):
            paths = self._ask(lambda client: [entry.path for entry in client.list_status(place, False)])
            return sorted(path.rstrip("/").rpartition("/")[2] for path in paths)
        return []

    def read(self, path: str) -> bytes | None:
        """Return a file's content, or None for a missing file. Raises HdfsFailed."""
        with suppress(FileNotFoundError):
            return self._ask(lambda client: bytes(client.read(self._path_of(path)).read()))
        return None

    def modified(self, path: str) -> float | None:
        """Return a file's last change in seconds since 1970, or None for a missing file."""
        with suppress(FileNotFoundError):
            return self._ask(lambda client: float(client.get_file_info(self._path_of(path)).modification_time) / 1000)
        return None

    def write(self, path: str, content: bytes) -> None:
        """Write a file, replacing any earlier content: the file appears as a whole, by a rename."""
        self._rename(self._write_temporary(path, content), path, content, overwrite=True)

    def create(self, path: str, content: bytes) -> bool:
        """Create a file by a rename without overwriting; return False if a file with another content exists."""
        written = self._write_temporary(path, content)
        try:
            self._rename(written, path, content, overwrite=False)
        except FileExistsError:
            self.remove(written)
            return False
        return True

    def remove(self, path: str) -> None:
        """Delete a file, if present."""
        with suppress(FileNotFoundError):
            self._ask(lambda client: client.delete(self._path_of(path), False))

    def _ask(self, call: Callable[[Any], Answer]) -> Answer:
        """Return the result of a call of the client. Raises HdfsFailed, even if late; see `translate_errors`."""
        client = client_of(self._authority)
        with translate_errors(self._location):
            try:
                return _call_within(PATIENCE, lambda: call(client))
            except TimeoutError as e:
                # The next request gets a new client with a new connection.
                _clients.pop(_key(self._authority), None)
                raise TimeoutError(f"no answer within {PATIENCE:g} s") from e

    def _path_of(self, path: str) -> str:
        return f"{self._path}/{path}"

    def _write_temporary(self, path: str, content: bytes) -> str:
        """Write a file under a unique name in the same folder, and return the name."""
        folder, slash, _ = path.rpartition("/")
        written = f"{folder}{slash}.{uuid.uuid4().hex}.tmp"

        def write(client: Any) -> None:
            with client.create(self._path_of(written)) as stream:
                stream.write(content)

        self._ask(write)
        return written

    def _rename(self, written: str, path: str, content: bytes, *, overwrite: bool) -> None:
        """Rename the file `written`. Raises FileExistsError for a file with another content, unless `overwrite`."""
        try:
            self._ask(lambda client: client.rename(self._path_of(written), self._path_of(path), overwrite))
        except (FileNotFoundError, FileExistsError):
            # The client repeats a request whose answer was lost, and the first request may have renamed the file.
            if self.read(path) != content:
                raise


def _key(authority: str) -> tuple[int, str, *tuple[str | None, ...]]:
    return (os.getpid(), authority, *(os.environ.get(name) for name in _SETTINGS))


def _call_within(seconds: float, call: Callable[[], Answer]) -> Answer:
    """Return a call's result. Raises TimeoutError after `seconds`, without stopping the call."""
    answer = Future[Answer]()

    def work() -> None:
        try:
            answer.set_result(call())
        except BaseException as e:  # noqa: BLE001  # a panic of the client is not an Exception; the caller raises it
            answer.set_exception(e)

    threading.Thread(target=work, name="lakestream-hdfs", daemon=True).start()
    return answer.result(seconds)


def _connect(authority: str) -> Any:
    try:
        from hdfs_native import Client
    except ImportError as e:
        raise MissingExtra("hdfs", e.name) from e
    settings = {"dfs.client.failover.max.attempts": str(ATTEMPTS)}
    try:
        return Client(f"{SCHEME}://{authority}" if authority else None, settings)
    except RuntimeError as e:
        # For this client a host without a port is a name service; Hadoop's client also tries the default port.
        if not authority or ":" in authority or "No NameNode hosts" not in str(e):
            raise
        return Client(f"{SCHEME}://{authority}:{_PORT}", settings)
