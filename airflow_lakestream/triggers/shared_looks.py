"""Looks of all triggers of a process, in a bounded pool of threads: equal questions share an answer."""

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


# Threads of all looks. These mostly wait for brokers and catalogs: more threads would only open more connections.
THREADS = 8
# Seconds for which an answer is shared, counted from the beginning of its request.
SHARED_FOR = 5.0

T = TypeVar("T")


@dataclass
class _SharedAnswer:
    """An answer for several triggers, maybe still in progress.

    :param begun: time of the event loop, in seconds, at which the request began.
    """

    begun: float
    future: asyncio.Future[Any]


class SharedLooks:
    """The looks of all triggers of an event loop, with their pool of threads and their shared answers."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(THREADS, "lakestream-look")
        self._answers: dict[tuple[Any, ...], _SharedAnswer] = {}

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run a blocking function in a thread."""
        return await self._loop.run_in_executor(self._pool, work)

    async def look(self, looking: Looking, interval: float) -> Verdict:
        """Answer all questions of a sensor's look, and return the verdict.

        :param looking: the look, a generator: it yields questions, gets answers or errors, and returns a verdict.
        :param interval: seconds between two looks of the sensor: an answer is shared for at most half of them, unless
            the question has `share_seconds`.
        """
        questions: list[LookQuestion] = []
        default_seconds = min(SHARED_FOR, interval / 2)
        try:
            questions.append(next(looking))
            while True:
                try:
                    answer = await self._answer(questions[-1], default_seconds)
                except Exception as e:  # noqa: BLE001  # the look decides about the error
                    self._forget(questions)
                    # All triggers that wait get the same error object, and each would add its frames.
                    questions.append(looking.throw(e.with_traceback(None)))
                else:
                    questions.append(looking.send(answer))
        except StopIteration as end:
            verdict: Verdict = end.value
            return verdict

    async def _answer(self, question: LookQuestion, default_seconds: float) -> Any:
        """Return the shared answer to a question, or a new answer. Raises the question's error.

        :param default_seconds: seconds for which an answer is shared if the question has no `share_seconds`.
        """
        shared = self._answers.get(question.key)
        share_seconds = default_seconds if question.share_seconds is None else question.share_seconds
        # An answer in progress is awaited, however old: a hanging broker takes one thread per question, not more.
        if shared is None or (shared.future.done() and self._loop.time() - shared.begun > share_seconds):
            shared = self._ask(question, share_seconds)
        # A cancelled trigger must not cancel the answer for the other triggers.
        return await asyncio.shield(shared.future)

    def _ask(self, question: LookQuestion, share_seconds: float) -> _SharedAnswer:
        """Begin to answer a question in a thread. The answer is dropped `share_seconds` after its end."""
        shared = _SharedAnswer(self._loop.time(), self._loop.run_in_executor(self._pool, question.answer))
        self._answers[question.key] = shared

        def retrieve_error(future: asyncio.Future[Any]) -> None:
            if not future.cancelled():
                # Otherwise asyncio reports an error that nobody awaits any more.
                future.exception()
            self._loop.call_later(share_seconds, self._drop, question.key, shared)

        shared.future.add_done_callback(retrieve_error)
        return shared

    def _drop(self, key: tuple[Any, ...], answer: _SharedAnswer) -> None:
        """Forget an answer, unless a newer answer has replaced it."""
        if self._answers.get(key) is answer:
            del self._answers[key]

    def _forget(self, questions: list[LookQuestion]) -> None:
        """Forget a failed look's answers with own `share_seconds`, such as connections: the next look asks again."""
        for question in questions:
            shared = self._answers.get(question.key)
            if question.share_seconds is not None and shared is not None and shared.future.done():
                del self._answers[question.key]


_looks_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, SharedLooks] = WeakKeyDictionary()


def shared_looks() -> SharedLooks:
    """Return the looks of the running event loop."""
    loop = asyncio.get_running_loop()
    if (looks := _looks_by_loop.get(loop)) is None:
        looks = _looks_by_loop[loop] = SharedLooks()
    return looks


def next_look(now: float, interval: float, subject: str) -> float:
    """Return the time of a sensor's next look, in seconds since the epoch.

    Sensors of the same subject and interval look at the same moment and share the answer. Other sensors look at other
    moments.

    :param now: seconds since the epoch.
    :param interval: seconds between two looks.
    :param subject: text that is equal for sensors that look at the same table, topic or checkpoint.
    """
    # Between 0 and `interval`, and the same in each process.
    offset = zlib.crc32(subject.encode()) / 2**32 * interval
    return (math.floor((now - offset) / interval) + 1) * interval + offset


# An error with the same text is logged again after this many failed looks.
_LOG_AGAIN = 30


class WatcherLooks:
    """Looks of an AssetWatcher's trigger, which has no task to fail: errors are logged, and the next look comes.

    :param problem: the effect of an error in words, for the log.
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
        """Log a new error at once, the same error once in _LOG_AGAIN failed looks."""
        self._looks_since += 1
        if text != self._logged_error or self._looks_since >= _LOG_AGAIN:
            self._logged_error, self._looks_since = text, 0
            await log_in_thread(log, logging.WARNING, "%s: %s", self._problem, text)
