"""Looks of a trigger for an asset watcher: an error is logged, and the next look comes."""

from __future__ import annotations

import logging
import time
from typing import Any

from airflow_lakestream.exceptions import LakestreamError
from airflow_lakestream.triggers.logs import log_in_thread
from airflow_lakestream.triggers.shared_looks import next_look, shared_looks

log = logging.getLogger(__name__)

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
