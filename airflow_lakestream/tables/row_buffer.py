"""Buffer of rows before files: rows are collected up to the size of a file, and written while reading goes on.

Decoders reject values that are known to fail. `culprits` finds the remaining bad rows: if a library raises for a value,
only its record is rejected, and the run goes on. It tries all rows at once, then halves, down to single rows.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import pyarrow as pa
from pyarrow import types as arrow

from airflow_lakestream.core.ports import RowsNotWritable, Trial
from airflow_lakestream.exceptions import LakestreamError, Terminal

Write = Callable[[pa.Table], object]

# Errors of converting rows to files. An OSError among them comes from the storage, not from a row.
_OF_ROWS = (ValueError, TypeError, ArithmeticError, LookupError, RecursionError, pa.ArrowException)
# Characters of a library's error in a message or a reason.
_LONGEST = 300


class TableNotWritable(LakestreamError, Terminal):
    """Refusal of a table: no file can be made, independent of the records."""

    def __init__(self, table: str, cause: BaseException) -> None:
        super().__init__(
            f"{table}: no file can be made for this table, with any records "
            f"({type(cause).__name__}: {str(cause)[:_LONGEST]}). Nothing was read. Change what the error names: the "
            "table's columns, its partitions, the order of its rows or its properties; or land in another table."
        )


def prove(table: str, write: Callable[[], object]) -> None:
    """Try whether files can be made for a table, and refuse the table if not. Raises TableNotWritable.

    `write` makes a file on trial from a made-up row, without records, and keeps nothing. Any error of the trial is the
    table's fault and becomes a TableNotWritable, with two exceptions, which are raised as they are: errors of this
    package (LakestreamError), and signals to the process such as KeyboardInterrupt.

    :param table: the table's name, for the error.
    """
    try:
        write()
    except BaseException as error:
        # A panic of a Rust library, which `is_of_rows` recognizes, is a BaseException, but not an Exception: it is a
        # refusal, too. All further BaseExceptions are signals.
        if isinstance(error, LakestreamError) or not (isinstance(error, Exception) or is_of_rows(error)):
            raise
        raise TableNotWritable(table, error) from error


def is_of_rows(error: BaseException) -> bool:
    """Return whether a row may be the cause of a writer's error; False for errors of the store and for signals."""
    # A panic of a Rust library is a BaseException, but not an Exception. Its class can't be imported, so its name
    # counts.
    return (isinstance(error, _OF_ROWS) and not isinstance(error, OSError)) or type(error).__name__ == "PanicException"


def culprits(rows: pa.Table, write: Write) -> dict[int, str]:
    """Find unwritable rows by trial, and return the error of each row by the row's number.

    All rows are tried at once, then halves of failing parts, down to single rows. An error that no row causes is
    raised, also if `write` fails without rows.

    :param write: writes rows on trial, and keeps nothing.
    """
    # Fails if the table or a setting is wrong, not a row.
    write(rows.slice(0, 0))
    errors: dict[int, str] = {}
    _look(rows, 0, write, errors)
    return errors


def _look(rows: pa.Table, first: int, write: Write, errors: dict[int, str]) -> None:
    """Try to write rows, and add the errors of unwritable rows, by number; the first row has the number `first`."""
    try:
        write(rows)
    except BaseException as error:
        if not is_of_rows(error):
            raise
        if len(rows) == 1:
            text = f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace").decode()
            errors[first] = f"no file can hold it: {text[:_LONGEST]}"
            return
        # The bad rows are in one of the halves, or in both.
        middle = len(rows) // 2
        _look(rows.slice(0, middle), first, write, errors)
        _look(rows.slice(middle), first + middle, write, errors)


# Rows are buffered until they have this many bytes in Arrow.
FILE_BYTES = 64 * 2**20
# One file is written while the next is collected; a third would only take memory.
WRITES_AHEAD = 1

File = TypeVar("File")


class RowBuffer(Generic[File]):
    """Buffer of rows between decoding and files, with writes in the background; holds at most the rows of 1.5 files.

    :param table: the table's name, for errors.
    :param prepare: takes rows, and returns a function that writes these rows as files of the current table, and returns
        the files. The function is called in a thread of its own.
    :param trial: returns the trial that finds unwritable rows, or None without one.
    :param grows: rows may have more columns than the rows before.
    :param parts: number of buffers that share the memory of one: processes that write for the same landing.
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
        # Bytes of rows that become a file, and the number of writes that go on while rows are collected.
        self._most, self._ahead = FILE_BYTES // parts, WRITES_AHEAD if parts == 1 else 0
        self._rows: list[pa.Table] = []
        self._bytes = 0
        self._writes: list[Future[list[File]]] = []
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="lakestream-write")
        self.files: list[File] = []

    def holds(self, schema: pa.Schema) -> bool:
        """Return whether the last buffered rows have exactly these columns."""
        return bool(self._rows) and self._rows[-1].schema.equals(schema)

    def take(self, rows: pa.Table) -> None:
        """Buffer rows; writing may start in the background. Raises RowsNotWritable for rows buffered before."""
        self._rows.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= self._most:
            self.write_out()
        elif self._bytes >= self._most // 2:
            # Without this wait, two files' rows would be in memory: large records are read faster than they are
            # written.
            self._collect(0)

    def flush(self) -> list[File]:
        """Write all buffered rows, and return all files since the last `forget`. Raises RowsNotWritable."""
        self.write_out()
        self._collect(0)
        return self.files

    def drop(self) -> list[File]:
        """Forget the buffered rows, wait for writes, and return the written files, for deletion. Never raises."""
        self._rows, self._bytes = [], 0
        for write in self._writes:
            if write.exception() is None:
                self.files += write.result()
        self._writes = []
        return self.forget()

    def forget(self) -> list[File]:
        """Return the files written since the last `forget`, and remove all from the list."""
        files, self.files = self.files, []
        return files

    def write_out(self) -> None:
        """Start writing the buffered rows in the background. Raises RowsNotWritable for rows of earlier writes."""
        if not self._rows:
            return
        # Rows before a new column have NULL in it.
        rows = pa.concat_tables(self._rows, promote_options=self._promote)
        self._rows, self._bytes = [], 0
        # Even an empty table of rows defines the columns of a new table.
        write = self._prepare(rows)
        if rows.num_rows:
            self._collect(self._ahead)
            self._writes.append(self._pool.submit(write))

    def _collect(self, leave: int) -> None:
        """Wait until at most `leave` writes are under way, and keep the written files. Raises RowsNotWritable."""
        while len(self._writes) > leave:
            try:
                self.files += self._writes.pop(0).result()
            except BaseException as error:
                if not is_of_rows(error):
                    raise
                raise RowsNotWritable(self._table, f"{type(error).__name__}: {error}", self._trial()) from error


# Arrow's own functions fail for UUIDs inside of lists, structs and maps.
def no_rows(schema: pa.Schema) -> pa.Table:
    """Return an empty table with these columns, each of a single chunk."""
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def one_row(schema: pa.Schema) -> pa.Table:
    """Return a single made-up row, with a value in each column and in each nested field, for a trial of writing.

    Only a column of the null type has NULL.
    """
    return pa.Table.from_arrays([_one(field.type) for field in schema], schema=schema)


def _one(kind: pa.DataType) -> pa.Array:
    """Return an array of a single value of a type."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _one(kind.storage_type))
    if arrow.is_struct(kind):
        return pa.StructArray.from_arrays([_one(field.type) for field in kind], fields=list(kind))
    if arrow.is_map(kind):
        return pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), _one(kind.key_type), _one(kind.item_type), kind)
    if arrow.is_list(kind) or arrow.is_large_list(kind):
        make, offsets = (pa.ListArray, pa.int32()) if arrow.is_list(kind) else (pa.LargeListArray, pa.int64())
        return make.from_arrays(pa.array([0, 1], offsets), _one(kind.value_type), kind)
    value: Any = 0
    if arrow.is_null(kind):
        value = None
    elif arrow.is_boolean(kind):
        value = False
    elif arrow.is_string(kind) or arrow.is_large_string(kind):
        value = "a"
    elif arrow.is_fixed_size_binary(kind):
        value = bytes(kind.byte_width)
    elif arrow.is_binary(kind) or arrow.is_large_binary(kind):
        value = b"a"
    return pa.array([value], kind)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as a single array, even without a chunk (after a filter without hits)."""
    return column.combine_chunks() if column.num_chunks else pa.nulls(0, column.type)
