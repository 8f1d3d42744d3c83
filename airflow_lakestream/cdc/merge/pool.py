"""Pools for the work on files of a merge: threads of this process, or for example executors of Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

# Threads of `MergeThreads`.
FILES_AT_ONCE = 2


@dataclass(frozen=True)
class MergeWork:
    """A function to call for several items. Function, items and results can be pickled.

    :param size: the bytes of the files that are worked on.
    """

    do: Callable[[Any], Any]
    items: Sequence[Any]
    size: int


class MergePool(Protocol):
    """A pool for independent works at the same time."""

    def do(self, *works: MergeWork) -> Sequence[list[Any]]:
        """Return each work's results, in the order of the items. Raises the error of a work."""


class MergeThreads:
    """`MergePool` with threads of this process."""

    def do(self, *works: MergeWork) -> Sequence[list[Any]]:
        """Return each work's results; `FILES_AT_ONCE` items are worked on at the same time."""
        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="lakestream-merge") as pool:
            futures = [[pool.submit(work.do, item) for item in work.items] for work in works]
            return [[future.result() for future in of_work] for of_work in futures]
