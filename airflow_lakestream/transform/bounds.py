"""Bounds of a statement, for a batch at once and for a record alone. Standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_lakestream.exceptions import InvalidArgument

_SIZE = re.compile(r"([1-9]\d*(?:\.\d+)?) ?([KMGT])(i?)B", re.IGNORECASE)
# Bytes in addition to DuckDB's memory, for interpreter, imports, records, their rows, and a function's current value.
RESERVE = 512 * 2**20
# The part of the reserve for libraries that are mapped from files, which are no data: 75 to 95 MiB.
_LIBRARIES = 112 * 2**20
# Exit status of a process that finds itself above its memory bound.
TOO_LARGE = 3
# The size of a system thread's stack.
_STACK = 8 * 2**20


@dataclass(frozen=True)
class ProcessBounds:
    """Bounds of a process for a statement. Raises InvalidArgument.

    :param memory_limit: DuckDB's memory for data, such as "256MB". The process has `reserve` more.
    :param threads: threads that DuckDB uses for one batch.
    :param timeout: processor seconds that the statement may take for one record, and for a batch at once.
    :param reserve: bytes that the process may have in addition to DuckDB's.
    """

    memory_limit: str = "256MB"
    threads: int = 1
    timeout: float = 10.0
    reserve: int = RESERVE

    def __post_init__(self) -> None:
        size_of(self.memory_limit)
        if self.threads < 1:
            raise InvalidArgument("threads", f"{self.threads} is less than 1.")
        if not 0 < self.timeout <= 86_400:
            raise InvalidArgument("timeout", f"{self.timeout} is not a number of seconds above 0, up to a day.")

    @property
    def memory(self) -> int:
        """The most bytes of memory for the whole process."""
        return size_of(self.memory_limit) + self.reserve

    @property
    def data(self) -> int:
        """The most bytes of private memory (RLIMIT_DATA), without mapped libraries."""
        return self.memory - _LIBRARIES + (self.threads - 1) * _STACK

    @property
    def rows(self) -> int:
        """Bytes that the rows of any batch may have, even rows of small records."""
        return size_of(self.memory_limit) // 8


def size_of(text: str) -> int:
    """Return a size in DuckDB's notation as bytes. Raises InvalidArgument."""
    # DuckDB would also take a negative size or a percentage.
    if not (match := _SIZE.fullmatch(text)):
        raise InvalidArgument("memory_limit", f"{text!r} is not a size.", 'Give one such as "256MB" or "1GiB".')
    number, unit, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** ("KMGT".index(unit.upper()) + 1))
