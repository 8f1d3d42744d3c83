"""Rows that a writer fails on, found by trying: all at once, then halves, down to the rows that fail alone.

Decoders reject what is known to fail. This is the net below them: a library that raises on what a record holds is to
cost that record, not the run.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

Write = Callable[[pa.Table], object]

# What converting rows to files raises. An OSError among them is of the storage, not of a row.
_OF_ROWS = (ValueError, TypeError, ArithmeticError, LookupError, RecursionError, pa.ArrowException)
_LONGEST = 300


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
