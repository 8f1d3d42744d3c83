"""Trigger that waits for a sensor's condition without a worker slot."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC
from functools import partial
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_lakestream.core.policies import MissingPolicy
from airflow_lakestream.exceptions import LakestreamError
from airflow_lakestream.metrics import measure_look, tags_of
from airflow_lakestream.triggers.logs import log_in_thread
from airflow_lakestream.triggers.shared_looks import next_look, shared_looks
from airflow_lakestream.watching.asking import (
    LookCheck,
    LookConnections,
    LookOutcome,
    Verdict,
    look_safely,
    make_check,
    verdict_of,
)

log = logging.getLogger(__name__)

# Seconds after the trigger's time-out at which Airflow ends the task itself, since the triggerer may be down.
GRACE = 60.0
# A sensor that keeps waiting for the same reason logs this reason again after this many looks.
_LOG_AGAIN = 10


class LookTrigger(BaseTrigger):
    """Looks until the sensor is done, has failed or has timed out, and fires once, with a `watching.asking.Verdict`.

    A restarted triggerer loses nothing: the trigger depends only on its arguments.

    :param check: name of a check of `watching.asking`.
    :param poll_interval: seconds between two looks.
    :param timeout: seconds that the sensor may wait.
    :param began: time when the task began, in seconds since the epoch; None: derived from Airflow's time-out.
    :param forgiving: whether to go on waiting after a failed look, unless a retry can't help; see `look_safely`.
    :param arguments: the check's arguments. If the task was started in the triggerer, they are templates until Airflow
        has rendered them.
    """

    def __init__(
        self,
        check: str,
        poll_interval: float,
        timeout: float,
        began: float | None = None,
        forgiving: bool = False,
        **arguments: Any,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow has no types here
        self.check = check
        self.poll_interval = poll_interval
        self.timeout = timeout
        self.began = began
        self.forgiving = forgiving
        self._names = tuple(arguments)
        for name, value in arguments.items():
            # Airflow renders the templates in a trigger's attributes.
            setattr(self, name, value)
        self._logged_causes = ""
        self._looks_since = 0

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class, and the arguments to rebuild this trigger, without secrets."""
        names = ("check", "poll_interval", "timeout", "began", "forgiving", *self._names)
        kwargs = {name: getattr(self, name) for name in names}
        return "airflow_lakestream.triggers.look.LookTrigger", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until the sensor is done, has failed, or has timed out."""
        verdict = await self._verdict()
        yield TriggerEvent(verdict.to_dict())  # type: ignore[no-untyped-call]  # Airflow has no types here

    async def _verdict(self) -> Verdict:
        """Look until the sensor need not wait any more, and return the last verdict."""
        looks = shared_looks()
        began = self._begin_time()
        try:
            # Imports PyIceberg and all modules that the check needs.
            check, connections = await looks.in_thread(self._check)
        except LakestreamError as e:
            return verdict_of(e, MissingPolicy.FAIL)
        while True:
            looking = look_safely(check, connections, time.time() - began, forgiving=self.forgiving)
            verdict = await looks.look(looking, self.poll_interval)
            # In a thread: Airflow's metrics may resolve their server's name and read files.
            await looks.in_thread(partial(measure_look, self.check, verdict.value, self._tags()))
            seconds_left = began + self.timeout - time.time()
            if verdict.outcome is not LookOutcome.WAITING:
                return verdict
            if seconds_left <= 0:
                return replace(verdict, outcome=LookOutcome.TIMED_OUT)
            await self._log_waiting(verdict)
            pause = next_look(time.time(), self.poll_interval, check.subject) - time.time()
            await asyncio.sleep(max(0.0, min(pause, seconds_left)))

    def _check(self) -> tuple[LookCheck, LookConnections]:
        """Return the check with its arguments, and the connections for its looks."""
        from airflow_lakestream.hooks.places import AirflowPlaces

        return make_check(self.check, {name: getattr(self, name) for name in self._names}), AirflowPlaces()

    def _begin_time(self) -> float:
        """Return the time at which the task began to wait, in seconds since the epoch."""
        if self.began is not None:
            return self.began
        # Set by the triggerer of Airflow 3.3, the only version that starts tasks in a trigger with templates.
        end = getattr(self, "timeout_after", None)
        if end is None:
            return time.time()
        end = end if end.tzinfo else end.replace(tzinfo=UTC)
        began: float = end.timestamp() - GRACE - self.timeout
        return began

    def _tags(self) -> dict[str, str]:
        """Return the tags of the measurements of a look."""
        # Airflow sets the trigger's task.
        return tags_of(getattr(self, "task_instance", None), vars(self))

    async def _log_waiting(self, verdict: Verdict) -> None:
        """Log why the sensor waits: new reasons at once, the same reasons once in _LOG_AGAIN looks."""
        causes = " ".join(reason.cause for reason in verdict.reasons)
        self._looks_since += 1
        if causes != self._logged_causes or self._looks_since >= _LOG_AGAIN:
            self._logged_causes, self._looks_since = causes, 0
            await log_in_thread(log, logging.INFO, "Waiting. %s", verdict.text)
