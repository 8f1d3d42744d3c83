"""Shared answers: equal questions of a process's triggers get the same answer, from a bounded pool of threads."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from airflow_lakestream.exceptions import LakestreamError
from airflow_lakestream.triggers.logs import log_in_thread
from airflow_lakestream.watching.asking import Looking, LookQuestion, Verdict

log = logging.getLogger(__name__)


# Looks mostly wait for brokers and catalogs. More threads would only open more connections at once.
THREADS = 8
# Seconds for which an answer is shared, from the beginning of the request; with short polls, half a poll.
SHARED_FOR = 5.0

T = TypeVar("T")


@dataclass
class _SharedAnswer:
    begun: float
    future: asyncio.Future[Any]


class SharedLooks:
    """The looks of an event loop, with a pool of threads and the shared answers."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(THREADS, "lakestream-look")
        self._answers: dict[tuple[Any, ...], _SharedAnswer] = {}

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run a blocking function in a thread."""
        return await self._loop.run_in_executor(self._pool, work)

    async def look(self, looking: Looking, interval: float) -> Verdict:
        """Run a look of a sensor, and return the verdict.

        :param interval: seconds between two looks of the sensor: an answer is shared for at most half of them, unless
            the question has `share_seconds`.
        """
        asked: list[LookQuestion] = []
        usual_seconds = min(SHARED_FOR, interval / 2)
        try:
            asked.append(next(looking))
            while True:
                try:
                    answer = await self._answer(asked[-1], usual_seconds)
                except Exception as e:  # noqa: BLE001  # the look decides about the error
                    self._forget(asked)
                    # All waiters get the same error object, and each would add its frames.
                    asked.append(looking.throw(e.with_traceback(None)))
                else:
                    asked.append(looking.send(answer))
        except StopIteration as end:
            verdict: Verdict = end.value
            return verdict

    async def _answer(self, ask: LookQuestion, usual_seconds: float) -> Any:
        known = self._answers.get(ask.key)
        share_seconds = usual_seconds if ask.share_seconds is None else ask.share_seconds
        # An answer in progress is awaited, however old: a hanging broker takes one thread per question, not more.
        if known is None or (known.future.done() and self._loop.time() - known.begun > share_seconds):
            known = self._ask(ask, share_seconds)
        # A cancelled trigger does not cancel the answer for the other triggers.
        return await asyncio.shield(known.future)

    def _ask(self, ask: LookQuestion, share_seconds: float) -> _SharedAnswer:
        begun = _SharedAnswer(self._loop.time(), self._loop.run_in_executor(self._pool, ask.answer))
        self._answers[ask.key] = begun

        def retrieve_error(future: asyncio.Future[Any]) -> None:
            if not future.cancelled():
                # Otherwise asyncio reports an error that nobody awaits any more.
                future.exception()
            self._loop.call_later(share_seconds, self._drop, ask.key, begun)

        begun.future.add_done_callback(retrieve_error)
        return begun

    def _drop(self, key: tuple[Any, ...], answer: _SharedAnswer) -> None:
        if self._answers.get(key) is answer:
            del self._answers[key]

    def _forget(self, asked: list[LookQuestion]) -> None:
        """Forget opened connections after an error: the next look opens new connections."""
        for ask in asked:
            known = self._answers.get(ask.key)
            if ask.share_seconds is not None and known is not None and known.future.done():
                del self._answers[ask.key]


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, SharedLooks] = WeakKeyDictionary()


def shared_looks() -> SharedLooks:
    """Return the looks of the running event loop."""
    loop = asyncio.get_running_loop()
    if (looks := _of_loops.get(loop)) is None:
        looks = _of_loops[loop] = SharedLooks()
    return looks


def next_look(now: float, interval: float, subject: str) -> float:
    """Return the time of a sensor's next look, in seconds since the epoch.

    Sensors of the same subject and interval look at the same moment and share the answer; others look at other moments.
    """
    offset = zlib.crc32(subject.encode()) / 2**32 * interval
    return (math.floor((now - offset) / interval) + 1) * interval + offset


# An error of the same text is logged again after this many looks.
_LOG_AGAIN = 30


class WatcherLooks:
    """Looks that go on after an error: a watcher has no task to fail.

    :param problem: meaning of an error, for the log.
    :param interval: seconds between two looks.
    """

    def __init__(self, problem: str, interval: float) -> None:
        self._problem = problem
        self._interval = interval
        self._logged_error = ""
        self._looks_since = 0

    async def look(self, looking: Any) -> Any:
        """Return the result of a look, or None after a logged error."""
        try:
            result = await shared_looks().look(looking, self._interval)
        except Exception as e:  # noqa: BLE001  # after any error of a catalog or a client the next look may succeed
            await self._log_error(str(e) if isinstance(e, LakestreamError) else f"{type(e).__name__}: {e}")
            return None
        if self._logged_error:
            self._logged_error = ""
            await log_in_thread(log, logging.INFO, "It works again, after: %s", self._problem)
        return result

    def pause(self, subject: str) -> float:
        """Return the seconds until the next look at a subject."""
        now = time.time()
        return max(0.0, next_look(now, self._interval, subject) - now)

    async def _log_error(self, text: str) -> None:
        self._looks_since += 1
        if text != self._logged_error or self._looks_since >= _LOG_AGAIN:
            self._logged_error, self._looks_since = text, 0
            await log_in_thread(log, logging.WARNING, "%s: %s", self._problem, text)
