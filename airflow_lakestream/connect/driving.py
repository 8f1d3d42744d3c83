"""One task's connector: applied, followed, restarted, published, stopped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from airflow_lakestream.connect.applying import Applying
from airflow_lakestream.connect.client import ConnectClient, NoSuchConnector
from airflow_lakestream.connect.connector import ConnectorSpec, OnKillConnector, Publisher
from airflow_lakestream.connect.failures import ConnectorAtDamage
from airflow_lakestream.connect.iceberg_sink import session_of
from airflow_lakestream.connect.judging import Memory, Seen
from airflow_lakestream.connect.observer import Observer
from airflow_lakestream.connect.status import State
from airflow_lakestream.connect.watch import ConnectorWatch
from airflow_lakestream.driver.progress import BatchProgress, Progress
from airflow_lakestream.driver.supervisor import Action, Decision, DriverState, History
from airflow_lakestream.driver.watch import Look
from airflow_lakestream.kafka.groups import Groups

log = logging.getLogger(__name__)

_NOTHING: dict[str, Any] = {}


class ConnectDriving:
    """The connector of a task, while one process looks after it; it is a `driver.drives.Drives`.

    Connect itself keeps one connector of a name: two tasks for it look after the same one.

    :param groups: None where no lag is known.
    :param publisher: for a sink with a ledger.
    :param memory: what an earlier process of the task remembered, see `to_hand_on`.
    :param wait: waits the given seconds; raises when the task is to end.
    """

    generation = 0

    def __init__(
        self,
        spec: ConnectorSpec,
        client: ConnectClient,
        groups: Groups | None,
        publisher: Publisher | None,
        wait: Callable[[float], None],
        memory: Mapping[str, Any] = _NOTHING,
    ) -> None:
        self.spec = spec
        self._client = client
        self._publisher = publisher
        self._wait = wait
        head = publisher.head if publisher else None
        self._observer = Observer(spec, client, groups, head)
        self._applying = Applying(spec, client, groups, publisher, self._publish, wait)
        self._progress = Progress.of_sums(memory.get("sums", {}))
        self._watch = ConnectorWatch(
            self._observer.see,
            spec.limits,
            History(time.time()),
            Memory.parse(memory.get("memory", {})),
            session_of(spec.config),
        )
        self._batches: list[BatchProgress] = []

    def to_hand_on(self) -> dict[str, Any]:
        """Return what another process of the task goes on with, JSON-ready and without secrets."""
        return {"memory": self._watch.memory.to_dict(), "sums": self._progress.sums()}

    def before(self) -> dict[str, Any]:
        """Return the sums before the run: none. What earlier runs published is in the ledger."""
        return Progress().sums()

    def progress(self) -> Progress:
        """Return the sums as they are now."""
        return self._progress

    def told(self) -> dict[str, Any]:
        """Return the sums that earlier tries have told: none are counted, for each try counts what it published."""
        return self.before()

    def has_told(self, sums: Mapping[str, Any]) -> None:
        """Do nothing: the next try counts anew."""

    def begin(self, history: History | None = None) -> None:
        """Make, adopt or correct the connector; restart its tasks where a history says that they failed or stall.

        Raises ConnectorAtDamage where they do so at a damaged batch.
        """
        failing = self._observer.see() if history is not None else Seen()
        if history is not None and (at_damage := self.at_damage(failing)) is not None:
            raise at_damage
        log.info("Connector %s: %s.", self.spec.name, self._applying.apply())
        memory = self._watch.memory
        if history is not None:
            memory = memory.restarted(failing)
            is_failing = failing.status is not None and (failing.status.failed or failing.status.state is State.FAILED)
            self._applying.restart(only_failed=bool(is_failing))
        elif self._applying.status().failed:
            # Found so: perhaps for days, by what has passed since.
            memory = memory.restarted(self._observer.see())
            self._applying.restart(only_failed=True)
        memory = replace(memory, has_run=False)
        self._watch = ConnectorWatch(
            self._observer.see,
            self.spec.limits,
            history or History(submitted_at=time.time()),
            memory,
            session_of(self.spec.config),
        )

    def at_damage(self, seen: Seen | None = None) -> ConnectorAtDamage | None:
        """Return the error of tasks that fail or stand still at a damaged batch; None for any other reason."""
        damaged = self._observer.damaged(seen or self._observer.see())
        if damaged is None:
            return None
        return ConnectorAtDamage(self.spec.name, damaged, has_ledger=self.spec.sink is not None)

    def resume(self, history: History) -> None:
        """Take over from another process: all else that it knew was handed on."""
        self._watch.history = history

    def follow(self, tell: Callable[[Look], None], until_started: bool = False) -> Decision:
        """Look and report, and publish, until something is to be done or, with `until_started`, it works."""
        while True:
            look = self._watch.look()
            decision = look.decision
            is_over = decision.action is Action.FINISH
            # One that fails may fail since the catalog does: its branch waits for a better time.
            if is_over or (decision.action is Action.WAIT and self._watch.is_due(self.spec.publish_interval)):
                self._publish(is_stopped=is_over)
            batches, self._batches = tuple(self._batches), []
            progress = replace(self._progress, doing=look.sight.doing)
            tell(replace(look, progress=progress, batches=batches))
            if decision.action is not Action.WAIT:
                return decision
            if until_started and look.sight.driver is not DriverState.STARTING:
                return decision
            self._wait(self.spec.poll_interval)

    def pause(self, until: float) -> None:
        """Wait until the given time, in seconds since 1970."""
        self._wait(max(0.0, until - time.time()))

    def clear_away(self) -> None:
        """Do nothing: failed tasks are restarted where they are, and others go on."""

    def finish(self) -> Progress:
        """Return the sums."""
        return self.progress()

    def stop(self, action: Any) -> str:
        """Carry out `on_kill_action`; return in words what was done."""
        return stop_connector(self._client, self.spec.name, action)

    def log_tail(self) -> list[str]:
        """Return the traces of the tasks that have failed."""
        status = self._watch.seen.status
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
    """Do what `action` says to a connector; return in words what was done."""
    try:
        if action is OnKillConnector.STOP:
            client.stop(name)
            return f"the connector {name} was stopped; what it has committed is published by the next run"
        if action is OnKillConnector.PAUSE:
            client.pause(name)
            return f"the connector {name} was paused"
    except NoSuchConnector:
        return f"there is no connector {name}"
    return f"on_kill_action is {action.value!r}: the connector {name} goes on"
