"""Supervision of a task's connector: configured and started, followed, restarted, published, stopped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from airflow_lakestream.connect.client import ConnectClient, ConnectorState, ConnectorStatus, NoSuchConnector
from airflow_lakestream.connect.configuration import (
    HANDED_ON,
    ConfigRefused,
    IcebergConnector,
    changed_settings,
    check_errors,
    check_keys,
    session_of,
)
from airflow_lakestream.connect.connector import ConnectorAtDamage, ConnectorSpec, OnKillConnector, SinkPublisher
from airflow_lakestream.connect.judging import ConnectorLook, ConnectorMemory, ConnectorWatch
from airflow_lakestream.connect.observer import ConnectorObserver
from airflow_lakestream.core.publishing.refusals import RecordDoubted, RowsDiffer, RowsOnMain
from airflow_lakestream.driver.progress import BatchProgress, DriverProgress
from airflow_lakestream.driver.supervisor import (
    DriverLook,
    DriverState,
    SupervisionDecision,
    SupervisionHistory,
    SupervisorAction,
)
from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.kafka.groups import KafkaGroups

log = logging.getLogger(__name__)


# Settings that a connector keeps for its whole life: its ledger, branch and offsets depend on them.
_KEPT = (
    "connector.class",
    "topics",
    "iceberg.tables",
    "iceberg.tables.default-commit-branch",
    "iceberg.control.topic",
    "iceberg.catalog",
)
# Seconds to wait for a change in Connect, and seconds between two looks meanwhile.
_WITHIN_S = 60.0
_EVERY_S = 0.2


class DoesNotChange(LakestreamError, Transient):
    """Error of a connector without the awaited state after a minute."""


class ConnectorSetup:
    """Applies the configuration of a connector.

    :param groups: Kafka's consumer groups, for setting offsets; for a sink with a ledger.
    :param publisher: the publisher of the branch; for a sink with a ledger.
    :param publish: publishes the sink's commits, given whether the sink is stopped; for a sink with a ledger.
    :param wait: waits the given seconds; raises when the task is to end.
    """

    def __init__(
        self,
        spec: ConnectorSpec,
        client: ConnectClient,
        groups: KafkaGroups | None,
        publisher: SinkPublisher | None,
        publish: Callable[[bool], None],
        wait: Callable[[float], None],
    ) -> None:
        self._spec = spec
        self._client = client
        self._groups = groups
        self._publisher = publisher
        self._publish = publish
        self._wait = wait

    def apply(self) -> str:
        """Make the connector run as configured; return the change in words.

        An equal configuration is not sent again: that would restart all tasks. A sink with a ledger is published in any
        case. The sink begins again at the ledger's end if it is new or stopped, if its tasks failed while the ledger
        was ahead of them, or if its branch has rows unfit for main. Raises ConfigRefused, and the errors of a
        publication.
        """
        existing = self._client.config(self._spec.name)
        if existing is None:
            self._check()
            return self._create()
        changed = changed_settings(self._spec.config, existing)
        self._refuse_kept_settings(changed)
        if changed:
            self._check()
            log.info("The connector %s differs in %s.", self._spec.name, ", ".join(changed))
        status = self.status()
        state = status.state
        sink = self._spec.sink
        # A stopped sink begins at the ledger's end, too: an extract may have landed its records meanwhile.
        if sink is not None and (
            state is ConnectorState.STOPPED
            or (status.failed and self._is_ahead(sink))
            or self._has_unfit_rows(is_stopped=False)
        ):
            # Also if it seems stopped: a request to resume it a moment ago may not show in its state yet.
            self._client.stop(self._spec.name)
            if changed:
                self._client.configure(self._spec.name, self._spec.config)
            return self._start(sink)
        if changed:
            self._client.configure(self._spec.name, self._spec.config)
        if state in (ConnectorState.STOPPED, ConnectorState.PAUSED):
            self._resume()
            return f"it was {state.lower()}, and is resumed"
        return f"it was corrected: {', '.join(changed)}" if changed else "it is configured as required"

    def restart(self, only_failed: bool) -> None:
        """Restart tasks, and wait at most 10 s until no task shows an old failure.

        No error is raised if a failure still shows then: the next look judges that failure.

        :param only_failed: whether tasks that run are left alone.
        """
        self._client.restart(self._spec.name, only_failed)
        deadline = time.monotonic() + _WITHIN_S / 6
        while self.status().failed and time.monotonic() < deadline:
            self._wait(_EVERY_S)

    def status(self) -> ConnectorStatus:
        """Return the connector's status; wait up to a minute for the status of a new connector.

        Raises NoSuchConnector if the connector does not exist, or has no status after a minute.
        """
        deadline = time.monotonic() + _WITHIN_S
        while True:
            try:
                return self._client.status(self._spec.name)
            except NoSuchConnector:
                if time.monotonic() > deadline or self._client.config(self._spec.name) is None:
                    raise
                self._wait(_EVERY_S)

    def await_state(self, *states: ConnectorState) -> None:
        """Wait until the connector is in any of these states. Raises DoesNotChange after a minute.

        For STOPPED, wait also until no task is left.
        """
        deadline = time.monotonic() + _WITHIN_S
        while (status := self.status()).state not in states or (ConnectorState.STOPPED in states and status.tasks):
            if time.monotonic() > deadline:
                wanted = " or ".join(states).lower()
                raise DoesNotChange(f"Connector {self._spec.name} is not {wanted} after {_WITHIN_S:.0f} s: {status}.")
            self._wait(_EVERY_S)

    def _check(self) -> None:
        """Check the configuration as far as possible without creating the connector. Raises ConfigRefused.

        The check covers the connector's class, the settings by Connect's own validation, and misspelt keys.
        """
        config = {"name": self._spec.name, **self._spec.config}
        if (kind := config.get("connector.class", "")) not in (plugins := self._client.plugins()):
            known = ", ".join(sorted(one.rpartition(".")[2] for one in plugins))
            raise ConfigRefused(f"connector.class {kind!r} is not installed on the workers.", f"They have {known}.")
        known_keys, errors = self._client.validate(config)
        check_errors(errors, config)
        check_keys(config, known_keys, HANDED_ON if self._spec.sink else ())

    def _is_ahead(self, sink: IcebergConnector) -> bool:
        """Return whether the ledger goes further than the offsets committed by the tasks.

        A receipt for lost offsets, or an extract of the same group, may have put the ledger ahead. A partition without
        a committed offset does not count. As a side effect, table and branch are prepared.
        """
        assert self._groups is not None, "a sink with a ledger has them"
        assert self._publisher is not None, "likewise"
        begins, committed = self._publisher.begin(), self._groups.committed(sink.group, sink.topic)
        return any(begin > committed.get(p, begin) for p, begin in begins.items())

    def _has_unfit_rows(self, *, is_stopped: bool) -> bool:
        """Publish the branch. Return True if the publication was refused because the branch has rows unfit for main.

        Unfit are rows with wrong values, rows that main already has, and rows of a record that our decoder rejects (the
        sink may have decoded this and later records wrongly). After True the caller makes the sink read again from the
        ledger's end. Other errors are raised.
        """
        try:
            self._publish(is_stopped)
        except (RecordDoubted, RowsDiffer, RowsOnMain) as e:
            log.warning("The records are read again from the ledger's end. %s", e)
            return True
        return False

    def _refuse_kept_settings(self, changed: list[str]) -> None:
        if self._spec.sink is not None and (kept := [name for name in _KEPT if name in changed]):
            raise ConfigRefused(
                f"there is a connector {self._spec.name} with another {' and '.join(kept)}.",
                "Give this connector another name; or stop the existing one, publish its commits, and delete it.",
            )

    def _create(self) -> str:
        name, sink = self._spec.name, self._spec.sink
        if sink is None:
            self._client.configure(name, self._spec.config)
            return "it was created"
        assert self._publisher is not None, "a sink with a ledger has it"
        # Faults of the table are reported before the connector is created.
        self._publisher.begin()
        # Stopped: a task that runs before its offsets are set would read records that the ledger has.
        self._client.create_stopped(name, self._spec.config)
        return f"it was created; {self._start(sink)}"

    def _start(self, sink: IcebergConnector) -> str:
        """Start a stopped sink at the ledger's end; return the beginning in words.

        1. Make the control topic, and publish the commits on the branch. Then set the branch back to main's head: rows
           unfit for main are dropped, and their records are read again.
        2. Let the coordinator begin at the control topic's end. Without that offset, the events of a coordinator that
           is killed in its first round would never be read. Rows that no coordinator has committed are read again.
        3. Let the tasks begin at the first offset that the ledger lacks.

        Raises LandedAhead if the ledger has offsets above its first missing offset: the tasks would land these twice.
        The sink then stays stopped.
        """
        assert self._groups is not None, "a sink with a ledger has them"
        assert self._publisher is not None, "likewise"
        self.await_state(ConnectorState.STOPPED)
        self._groups.make_topic(sink.control_topic)
        self._has_unfit_rows(is_stopped=True)
        begins = self._publisher.begin_again()
        ends = {p: marks.end for p, marks in self._groups.watch.topic(sink.control_topic).marks.items()}
        self._groups.set_committed(sink.coordinator_group, sink.control_topic, ends)
        self._groups.await_empty(sink.group)
        self._client.set_offsets(self._spec.name, sink.topic, begins)
        self._resume()
        where = ", ".join(f"{sink.topic}[{p}] {offset}" for p, offset in sorted(begins.items()))
        return f"it begins at {where}"

    def _resume(self) -> None:
        self._client.resume(self._spec.name)
        # FAILED is among these states: the watch judges failures.
        self.await_state(
            *(state for state in ConnectorState if state not in (ConnectorState.STOPPED, ConnectorState.PAUSED))
        )


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
