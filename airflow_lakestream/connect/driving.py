"""Supervision of a task's connector: applied, followed, restarted, published, stopped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from airflow_lakestream.connect.applying import ConnectorSetup
from airflow_lakestream.connect.client import ConnectClient, NoSuchConnector
from airflow_lakestream.connect.connector import ConnectorSpec, OnKillConnector, SinkPublisher
from airflow_lakestream.connect.failures import ConnectorAtDamage
from airflow_lakestream.connect.iceberg_sink import session_of
from airflow_lakestream.connect.judging import ConnectorLook, ConnectorMemory
from airflow_lakestream.connect.observer import ConnectorObserver
from airflow_lakestream.connect.status import ConnectorState
from airflow_lakestream.connect.watch import ConnectorWatch
from airflow_lakestream.driver.progress import BatchProgress, DriverProgress
from airflow_lakestream.driver.supervisor import (
    DriverLook,
    DriverState,
    SupervisionDecision,
    SupervisionHistory,
    SupervisorAction,
)
from airflow_lakestream.kafka.groups import KafkaGroups

log = logging.getLogger(__name__)

_NOTHING: dict[str, Any] = {}


class ConnectorSupervision:
    """Supervision of a task's connector in a process; a `driver.drives.StreamSupervisor`.

    Connect itself keeps one connector of a name: two tasks with the same name supervise the same connector.

    :param groups: Kafka's consumer groups, for lag and offsets; None for a source, or without a Kafka connection.
    :param publisher: the publisher of the branch; None for a connector without a ledger.
    :param memory: the result of `to_hand_on` in an earlier process of the task; empty for the first process.
    :param wait: waits the given seconds; raises when the task is to end.
    """

    # A connector has no lease: Connect itself runs at most one connector of a name.
    generation = 0

    def __init__(
        self,
        spec: ConnectorSpec,
        client: ConnectClient,
        groups: KafkaGroups | None,
        publisher: SinkPublisher | None,
        wait: Callable[[float], None],
        memory: Mapping[str, Any] = _NOTHING,
    ) -> None:
        self.spec = spec
        self._client = client
        self._publisher = publisher
        self._wait = wait
        head = publisher.head if publisher else None
        self._observer = ConnectorObserver(spec, client, groups, head)
        self._applying = ConnectorSetup(spec, client, groups, publisher, self._publish, wait)
        self._progress = DriverProgress.of_sums(memory.get("sums", {}))
        self._watch = ConnectorWatch(
            self._observer.look,
            spec.limits,
            SupervisionHistory(time.time()),
            ConnectorMemory.parse(memory.get("memory", {})),
            session_of(spec.config),
        )
        self._batches: list[BatchProgress] = []

    def to_hand_on(self) -> dict[str, Any]:
        """Return the state for the task's next process, JSON-ready and without secrets."""
        return {"memory": self._watch.memory.to_dict(), "sums": self._progress.sums()}

    def before(self) -> dict[str, Any]:
        """Return the sums before the run: zero, because the ledger has the landings of earlier runs."""
        return DriverProgress().sums()

    def progress(self) -> DriverProgress:
        """Return the current sums."""
        return self._progress

    def reported_sums(self) -> dict[str, Any]:
        """Return the sums already reported by earlier tries: zero, because each try counts afresh."""
        return self.before()

    def mark_reported(self, sums: Mapping[str, Any]) -> None:
        """Ignore the sums: the next try counts from zero."""

    def begin(self, history: SupervisionHistory | None = None) -> None:
        """Create, adopt or correct the connector; with a history of failures or a stall, restart the tasks.

        Without a history the tasks are restarted only if a task is found failed. Raises ConnectorAtDamage if the tasks
        fail or stall at a damaged batch.

        :param history: the history of a failed or stalled connector; None at the start of a supervision.
        """
        failing = self._observer.look() if history is not None else ConnectorLook()
        if history is not None and (at_damage := self.at_damage(failing)) is not None:
            raise at_damage
        log.info("Connector %s: %s.", self.spec.name, self._applying.apply())
        memory = self._watch.memory
        if history is not None:
            memory = memory.restarted(failing)
            is_failing = failing.status is not None and (
                failing.status.failed or failing.status.state is ConnectorState.FAILED
            )
            self._applying.restart(only_failed=bool(is_failing))
        elif self._applying.status().failed:
            # Found failed, perhaps for days, for a reason that may have passed.
            memory = memory.restarted(self._observer.look())
            self._applying.restart(only_failed=True)
        # Until all tasks run again, the connector counts as starting, and `start_timeout` applies.
        memory = replace(memory, has_run=False)
        self._watch = ConnectorWatch(
            self._observer.look,
            self.spec.limits,
            history or SupervisionHistory(submitted_at=time.time()),
            memory,
            session_of(self.spec.config),
        )

    def at_damage(self, look: ConnectorLook | None = None) -> ConnectorAtDamage | None:
        """Return the error of tasks failing or stalled at a damaged batch; None if not at damage.

        :param look: the look with the failure; None: look now.
        """
        damaged = self._observer.damaged_batch(look or self._observer.look())
        if damaged is None:
            return None
        return ConnectorAtDamage(self.spec.name, damaged, has_ledger=self.spec.sink is not None)

    def resume(self, history: SupervisionHistory) -> None:
        """Continue the supervision of another process with the history."""
        self._watch.history = history

    def follow(self, report: Callable[[DriverLook], None], until_started: bool = False) -> SupervisionDecision:
        """Look, report and publish until an action is due or, with `until_started`, until the connector works.

        Each look waits `poll_interval` after the look before. The branch is published once `publish_interval` is over,
        and when the connector was stopped. Raises the errors of a publication.

        :param report: called with each look.
        """
        while True:
            look = self._watch.look()
            decision = look.decision
            is_over = decision.action is SupervisorAction.FINISH
            # A connector may fail because the catalog fails: then the publication waits.
            if is_over or (decision.action is SupervisorAction.WAIT and self._watch.is_due(self.spec.publish_interval)):
                self._publish(is_stopped=is_over)
            batches, self._batches = tuple(self._batches), []
            progress = replace(self._progress, doing=look.sight.doing)
            report(replace(look, progress=progress, batches=batches))
            if decision.action is not SupervisorAction.WAIT:
                return decision
            if until_started and look.sight.driver is not DriverState.STARTING:
                return decision
            self._wait(self.spec.poll_interval)

    def pause(self, until: float) -> None:
        """Wait until the given time, in seconds since 1970."""
        self._wait(max(0.0, until - time.time()))

    def clear_away(self) -> None:
        """Do nothing: failed tasks stay until `begin` restarts them in place."""

    def finish(self) -> DriverProgress:
        """Return the sums of this run; nothing else has to be ended."""
        return self.progress()

    def stop(self, action: Any) -> str:
        """Carry out `on_kill_action`; return the result in words."""
        return stop_connector(self._client, self.spec.name, action)

    def log_tail(self) -> list[str]:
        """Return the traces of the failed tasks."""
        status = self._watch.last_look.status
        return [line for task in (status.failed if status else ()) for line in task.trace.splitlines()[:20]]

    def _publish(self, is_stopped: bool) -> None:
        if self._publisher is None:
            return
        head = self._publisher.head()
        done = self._publisher.publish(self._progress, is_stopped)
        self._watch.memory = replace(self._watch.memory, published=head, published_at=time.time())
        if done is not None:
            self._progress = self._progress.plus(done)
            self._batches.append(done)


def stop_connector(client: ConnectClient, name: str, action: OnKillConnector) -> str:
    """Stop or pause a connector as `action` demands; return the result in words.

    No error is raised if the connector does not exist; with LEAVE nothing is done.
    """
    try:
        if action is OnKillConnector.STOP:
            client.stop(name)
            return f"the connector {name} was stopped; its commits are published by the next run"
        if action is OnKillConnector.PAUSE:
            client.pause(name)
            return f"the connector {name} was paused"
    except NoSuchConnector:
        return f"there is no connector {name}"
    return f"on_kill_action is {action.value!r}: the connector {name} goes on"
