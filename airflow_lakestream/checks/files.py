"""A landing's files as a file system of DuckDB's: there are these files, to read, and nothing else.

So the rows are read with the table's own credentials, wherever they lie, a row group at a time.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fsspec import AbstractFileSystem

from airflow_lakestream.core.checks import Written

_SCHEME = "landing"


class LandingFiles(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The files, by number. What the first one raised that could not be read is in `failed`: DuckDB tells its text."""

    protocol = _SCHEME
    cachable = False

    def __init__(self, written: Written) -> None:
        super().__init__()
        self._written = written
        self._paths = list(written.files)
        self.names = [f"{_SCHEME}://{number}.parquet" for number in range(len(self._paths))]
        self.failed: BaseException | None = None

    def open(self, path: str, *_: Any, **__: Any) -> Any:
        """Open a file for reading."""
        try:
            return self._written.open(self._path(path))
        except BaseException as e:
            self.failed = self.failed or e
            raise

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return a file's size."""
        return {"name": path, "size": self._written.files[self._path(path)], "type": "file"}

    def glob(self, path: str, **_: Any) -> list[str]:
        """Return the file itself: there are no patterns."""
        return [path]

    def modified(self, path: str) -> datetime:
        """Return the same time always: data files never change."""
        return datetime(2000, 1, 1, tzinfo=UTC)

    def _path(self, name: str) -> str:
        return self._paths[int(self._strip_protocol(name).partition(".")[0])]
