"""Rows on their way into files: held until enough has come together, then written while reading goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from airflow_lakestream.delta.write.files import Add

# Of Arrow; processes that share a run take a part of it each.
FILE_BYTES = 64 * 2**20
SHARED_FILE_BYTES = FILE_BYTES // 4
# One piece is written while the next comes together; a third would only cost memory.
WRITES_AHEAD = 1


class RowBuffer:
    """Takes rows, gives files.

    :param write: writes one table of rows as files.
    :param shares: other processes write for the same landing, on the same machine.
    """

    def __init__(self, write: Callable[[pa.Table], list[Add]], *, shares: bool = False) -> None:
        self._write = write
        self._shares = shares
        self._rows: list[pa.Table] = []
        self._bytes = 0
        self._writes: list[Future[list[Add]]] = []
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="lakestream-write")
        self.files: list[Add] = []

    def take(self, rows: pa.Table) -> None:
        """Take rows; they may be written now, in the background."""
        self._rows.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= (SHARED_FILE_BYTES if self._shares else FILE_BYTES):
            self._write_out(0 if self._shares else WRITES_AHEAD)

    def flush(self) -> list[Add]:
        """Write out what is held, and return all files since the last `forget`."""
        self._write_out(0)
        self._collect(0)
        return self.files

    def drop(self) -> list[Add]:
        """Forget the rows held; return the files written, for whoever deletes them. Never raises."""
        self._rows, self._bytes = [], 0
        for write in self._writes:
            if write.exception() is None:
                self.files += write.result()
        self._writes = []
        return self.forget()

    def forget(self) -> list[Add]:
        """Return the files, and leave them to the caller."""
        files, self.files = self.files, []
        return files

    def _write_out(self, ahead: int) -> None:
        if not self._rows:
            return
        # Columns that came up later are null before.
        rows = pa.concat_tables(self._rows, promote_options="permissive")
        self._rows, self._bytes = [], 0
        if rows.num_rows:
            self._collect(ahead)
            self._writes.append(self._pool.submit(self._write, rows))

    def _collect(self, leave: int) -> None:
        while len(self._writes) > leave:
            self.files += self._writes.pop(0).result()
