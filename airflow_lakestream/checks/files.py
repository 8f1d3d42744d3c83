"""A landing's files as a file system for DuckDB: read-only, and without further files.

The task reads the files, with the table's own credentials; this side only knows their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from fsspec import AbstractFileSystem

from airflow_lakestream.stores.ranged_file import RangedFile

_SCHEME = "landing"
# Most bytes that the task hands over at once.
_MOST = 1 << 20

# Returns bytes of a file, given its number, the start and the size.
Reading = Callable[[int, int, int], bytes]


class LandingFiles(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The files of a landing, by number.

    :param sizes: of each.
    """

    protocol = _SCHEME
    cachable = False

    def __init__(self, sizes: Sequence[int], reading: Reading) -> None:
        super().__init__()
        self._sizes, self._reading = sizes, reading
        self.names = [f"{_SCHEME}://{number}.parquet" for number in range(len(sizes))]

    def open(self, path: str, *_: Any, **__: Any) -> Any:
        """Open a file for reading."""
        number = self._number(path)
        return _LandingFile(number, self._sizes[number], self._reading)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return a file's size."""
        return {"name": path, "size": self._sizes[self._number(path)], "type": "file"}

    def glob(self, path: str, **_: Any) -> list[str]:
        """Return the path itself: patterns are not supported."""
        return [path]

    def modified(self, path: str) -> datetime:
        """Return the same time always: data files never change."""
        return datetime(2000, 1, 1, tzinfo=UTC)

    def _number(self, name: str) -> int:
        return int(self._strip_protocol(name).partition(".")[0])


class _LandingFile(RangedFile):
    def __init__(self, number: int, size: int, reading: Reading) -> None:
        super().__init__(size)
        self._number, self._reading = number, reading

    def read(self, size: int = -1) -> bytes:
        most = max(0, self._size - self._at)
        left = most if size < 0 else min(size, most)
        parts = []
        while left:
            parts.append(self._reading(self._number, self._at, min(left, _MOST)))
            self._at += len(parts[-1])
            left -= len(parts[-1])
        return b"".join(parts)
