"""Who does the work on the files of a merge: threads of this process, or others, such as the executors of Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

FILES_AT_ONCE = 2


class Hands(Protocol):
    """Does the same work on each of several items. Work, items and results can be pickled."""

    def each(self, work: Callable[[Any], Any], items: Sequence[Any], size: int) -> Sequence[Any]:
        """Return the results, in the order of the items. Raises what the work raises.

        :param size: the bytes of the files that are worked on.
        """


class Threads:
    """`Hands` of this process."""

    def each(self, work: Callable[[Any], Any], items: Sequence[Any], size: int) -> Sequence[Any]:
        """Work on two items at a time."""
        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="lakestream-merge") as pool:
            return list(pool.map(work, items))
