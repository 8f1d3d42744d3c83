"""Trigger that waits, without a worker slot, until a driver is done, must be restarted, or is given up."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import XCom
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_lakestream.driver.detached import stop_driver
from airflow_lakestream.driver.supervisor import (
    BackendState,
    DriverLook,
    DriverWatch,
    OnKill,
    SupervisionHistory,
    SupervisionLimits,
    SupervisorAction,
)
from airflow_lakestream.hooks.store import store_properties
from airflow_lakestream.metrics import measure_batches, tags_of
from airflow_lakestream.triggers.logs import log_in_thread

log = logging.getLogger(__name__)

# Arguments of each trigger that Airflow's database stores.
_ARGUMENTS = (
    *("checkpoint_location", "generation", "limits", "history", "poll_interval"),
    *("on_kill_action", "seen", "begun", "restarts", "storage_conn_id"),
)


class DriverTrigger(BaseTrigger):
    """Watches a driver by lease and progress, which are visible from any machine.

    Fires once, with {"action": "finish" | "restart" | "give up", "reason", ...}; with a restart only when it is due. A
    restarted triggerer loses nothing: the state is in the driver's folder. Each engine has a subclass with its name:
    Airflow's database stores the class's path.

    :param checkpoint_location: checkpoint of the stream.
    :param generation: the lowest lease generation of the task's driver.
    :param limits: fields of `SupervisionLimits`.
    :param history: fields of `SupervisionHistory`.
    :param poll_interval: seconds between two looks.
    :param on_kill_action: action on the driver when somebody clears the task or marks it failed.
    :param seen: number of the checkpoint's batches that were reported already; None: report only batches from now on.
    :param begun: the sums of the stream's progress from before the task began. Not used here: the event hands the sums
        on to the worker.
    :param restarts: restarts of the driver up to now, handed on in the same way.
    :param storage_conn_id: connection of the checkpoint's object store, if it is in an object store.
    :param links_afterwards: by XCom key, the addresses that the task's links to the driver get after a person has ended
        it.
    """

    engine: ClassVar[str]

    def __init__(
        self,
        checkpoint_location: str,
        generation: int,
        limits: Mapping[str, Any],
        history: Mapping[str, Any],
        poll_interval: float,
        on_kill_action: str,
        seen: int | None = None,
        begun: Mapping[str, Any] | None = None,
        restarts: int = 0,
        storage_conn_id: str | None = None,
        links_afterwards: Mapping[str, str] | None = None,
        **later: Any,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow has no types here
        self.checkpoint_location = checkpoint_location
        self.generation = generation
        self.limits = dict(limits)
        self.history = dict(history)
        self.poll_interval = poll_interval
        self.on_kill_action = on_kill_action
        self.seen = seen
        self.begun = dict(begun or {})
        self.restarts = restarts
        self.storage_conn_id = storage_conn_id
        self.links_afterwards = dict(links_afterwards or {})
        # Arguments of a newer version: a triggerer that was rolled back goes on without them.
        self._ignored = sorted(later)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class, and the arguments to rebuild this trigger, without secrets."""
        # The arguments of a task that waits since an earlier version stay as they were.
        names = (*_ARGUMENTS, "links_afterwards") if self.links_afterwards else _ARGUMENTS
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until a worker is needed, and fire once; log and measure the batches of each look.

        A restart is fired only after the pause that the supervision prescribes.
        """
        if self._ignored:
            await log_in_thread(
                log, logging.WARNING, "Ignored arguments of a newer version: %s", ", ".join(self._ignored)
            )
        watch = await asyncio.to_thread(self.open_watch)
        while True:
            look = await asyncio.to_thread(watch.look)
            for batch in look.batches:
                await log_in_thread(log, logging.INFO, "%s", batch)
            if look.batches:
                # In a thread: Airflow's metrics may resolve their server's name and read files.
                await asyncio.to_thread(measure_batches, look.batches, self.tags(look))
            if look.decision.action is not SupervisorAction.WAIT or self.wants_worker(look):
                break
            await asyncio.sleep(self.poll_interval)
        if look.decision.action is SupervisorAction.RESTART:
            await log_in_thread(log, logging.WARNING, "The driver %s. It is restarted.", look.decision.reason)
            await asyncio.sleep(max(0.0, look.decision.at - time.time()))
        yield TriggerEvent(self.event(look))  # type: ignore[no-untyped-call]  # Airflow has no types here

    async def on_kill(self) -> None:
        """Stop the driver: somebody cleared or marked the task. Airflow 3.3 and newer call this."""
        result = await asyncio.to_thread(self.stop)
        await log_in_thread(log, logging.INFO, "The task was cleared or marked: %s", result)
        await asyncio.to_thread(self._relink)

    def wants_worker(self, look: DriverLook) -> bool:
        """Return whether a worker has to do something although the driver goes on."""
        return False

    def job(self) -> BackendState:
        """Return the state of the driver's job in its backend; UNKNOWN where the triggerer can't ask the backend."""
        return BackendState.UNKNOWN

    def open_watch(self) -> DriverWatch:
        """Return the watch of the driver."""
        history = SupervisionHistory.parse(self.history)
        return DriverWatch(
            self.checkpoint_location,
            self.generation,
            self._limits(),
            history,
            self.job,
            reported=self.seen,
            properties=store_properties(self.storage_conn_id),
        )

    def _limits(self) -> SupervisionLimits:
        """Return the limits, without those that only a newer version knows."""
        names = asdict(SupervisionLimits())
        return SupervisionLimits(**{name: value for name, value in self.limits.items() if name in names})

    def stop(self) -> str:
        """Stop the driver; return the result in words."""
        properties = store_properties(self.storage_conn_id)
        timeout = self._limits().stop_timeout
        action = OnKill(self.on_kill_action)
        return stop_driver(self.checkpoint_location, action, "a person", within=timeout, properties=properties)

    def _relink(self) -> None:
        """Set the task's links to `links_afterwards`: the driver's own pages are gone after a kill."""
        # Airflow sets the trigger's task.
        ti = self.task_instance
        if ti is None or self.on_kill_action == OnKill.LEAVE:
            return
        for key, url in self.links_afterwards.items():
            XCom.set(key=key, value=url, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=ti.map_index)

    def tags(self, look: DriverLook) -> dict[str, str]:
        """Return the tags of the measurements of a look."""
        inputs = dict(look.lease.inputs) if look.lease is not None else {}
        stream = {**inputs, "consumer_group": inputs.get("group")}
        # Airflow sets the trigger's task.
        return tags_of(getattr(self, "task_instance", None), stream, engine=self.engine)

    def event(self, look: DriverLook) -> dict[str, Any]:
        """Return the values of the event to fire after a look."""
        decision = look.decision
        return {
            "action": decision.action.value,
            "reason": decision.reason,
            "terminal": decision.terminal,
            "history": decision.history.to_dict(),
            "begun": self.begun,
            "restarts": self.restarts,
        }
