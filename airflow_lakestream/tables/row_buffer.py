"""Rows on their way into files: held until enough has come together, then written while reading goes on.

Decoders reject what is known to fail. `culprits` is the net below them: a library that raises on what a record holds
is to cost that record, not the run. It tries all rows at once, then halves, down to the rows that fail alone.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import pyarrow as pa

from airflow_lakestream.core.ports import RowsNotWritable, Trial
from airflow_lakestream.exceptions import LakestreamError, Terminal

Write = Callable[[pa.Table], object]

# What converting rows to files raises. An OSError among them is of the storage, not of a row.
_OF_ROWS = (ValueError, TypeError, ArithmeticError, LookupError, RecursionError, pa.ArrowException)
_LONGEST = 300


class TableNotWritable(LakestreamError, Terminal):
    """No file can be made for a table, whatever the records are."""

    def __init__(self, table: str, cause: BaseException) -> None:
        super().__init__(
            f"{table}: no file can be made for this table, whatever the records are "
            f"({type(cause).__name__}: {str(cause)[:_LONGEST]}). Nothing was read. Change what the error names: the "
            "table's columns, its partitions, the order of its rows or its properties; or land in another table."
        )


def prove(table: str, write: Callable[[], object]) -> None:
    """Refuse a table for which no file can be made: by `write`, which tries without one of its rows.

    Raises TableNotWritable, and what `write` raises of this package's errors.
    """
    try:
        write()
    except BaseException as error:
        if isinstance(error, LakestreamError) or not (isinstance(error, Exception) or is_of_rows(error)):
            raise
        raise TableNotWritable(table, error) from error


def is_of_rows(error: BaseException) -> bool:
    """Tell whether what a writer raised may be a row's fault."""
    # What goes wrong in libraries of Rust is no Exception.
    return (isinstance(error, _OF_ROWS) and not isinstance(error, OSError)) or type(error).__name__ == "PanicException"


def culprits(rows: pa.Table, write: Write) -> dict[int, str]:
    """Return the rows with which `write` fails, each alone, with what it raised. Raises what it raises for no rows."""
    # Fails where it is the table, or a setting, that is wrong.
    write(rows.slice(0, 0))
    found: dict[int, str] = {}
    _look(rows, 0, write, found)
    return found


def _look(rows: pa.Table, first: int, write: Write, found: dict[int, str]) -> None:
    try:
        write(rows)
    except BaseException as error:
        if not is_of_rows(error):
            raise
        if len(rows) == 1:
            text = f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace").decode()
            found[first] = f"no file can hold it: {text[:_LONGEST]}"
            return
        middle = len(rows) // 2
        _look(rows.slice(0, middle), first, write, found)
        _look(rows.slice(middle), first + middle, write, found)


# Rows are held until they have this many bytes in Arrow.
FILE_BYTES = 64 * 2**20
# One piece is written while the next comes together; a third would only cost memory.
WRITES_AHEAD = 1

File = TypeVar("File")


class RowBuffer(Generic[File]):
    """Takes rows, gives files; it holds no more than the rows of a file and a half.

    :param table: its name, for errors.
    :param prepare: returns what writes rows as files of the table as it is now; it is called in a thread of its own.
    :param trial: returns what finds the rows that can't be written; None where nobody can tell.
    :param grows: rows may come with more columns than those before.
    :param parts: how many buffers share the memory of one: processes that write for the same landing.
    """

    def __init__(
        self,
        table: str,
        prepare: Callable[[pa.Table], Callable[[], list[File]]],
        trial: Callable[[], Trial | None],
        *,
        grows: bool,
        parts: int = 1,
    ) -> None:
        self._table, self._prepare, self._trial = table, prepare, trial
        self._promote = "permissive" if grows else "none"
        self._most, self._ahead = FILE_BYTES // parts, WRITES_AHEAD if parts == 1 else 0
        self._rows: list[pa.Table] = []
        self._bytes = 0
        self._writes: list[Future[list[File]]] = []
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="lakestream-write")
        self.files: list[File] = []

    def holds(self, schema: pa.Schema) -> bool:
        """Tell whether the last rows taken, which are not written yet, have these columns."""
        return bool(self._rows) and self._rows[-1].schema.equals(schema)

    def take(self, rows: pa.Table) -> None:
        """Take rows; they may be written now, in the background."""
        self._rows.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= self._most:
            self.write_out()
        elif self._bytes >= self._most // 2:
            # Else there would be two files' rows in memory, which large records come to faster than they are written.
            self._collect(0)

    def flush(self) -> list[File]:
        """Write out what is held, and return all files since the last `forget`."""
        self.write_out()
        self._collect(0)
        return self.files

    def drop(self) -> list[File]:
        """Forget the rows held; return the files written, for whoever deletes them. Never raises."""
        self._rows, self._bytes = [], 0
        for write in self._writes:
            if write.exception() is None:
                self.files += write.result()
        self._writes = []
        return self.forget()

    def forget(self) -> list[File]:
        """Return the files, and leave them to the caller."""
        files, self.files = self.files, []
        return files

    def write_out(self) -> None:
        """Begin to write what is held."""
        if not self._rows:
            return
        # Columns that came up later are null before.
        rows = pa.concat_tables(self._rows, promote_options=self._promote)
        self._rows, self._bytes = [], 0
        # No rows at all still say what a new table's columns are.
        write = self._prepare(rows)
        if rows.num_rows:
            self._collect(self._ahead)
            self._writes.append(self._pool.submit(write))

    def _collect(self, leave: int) -> None:
        """Wait until no more than `leave` writes are under way."""
        while len(self._writes) > leave:
            try:
                self.files += self._writes.pop(0).result()
            except BaseException as error:
                if not is_of_rows(error):
                    raise
                raise RowsNotWritable(self._table, f"{type(error).__name__}: {error}", self._trial()) from error
