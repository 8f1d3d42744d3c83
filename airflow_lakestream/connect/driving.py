"""Supervision of a task's connector: configured and started, followed, restarted, published, stopped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

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
from airflow_lakestream.connect.connector import ConnectorAtDamage, ConnectorSpec, OnKillConnector
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

if TYPE_CHECKING:
    from airflow_lakestream.connect.publishing import BranchPublisher

log = logging.getLogger(__name__)


# Settings that a connector keeps for its whole life: its ledger, branch and offsets depend on them.
_FIXED_SETTINGS = (
    "connector.class",
    "topics",
    "iceberg.tables",
    "iceberg.tables.default-commit-branch",
    "iceberg.control.topic",
    "iceberg.catalog",
)
# Seconds to wait for a change in Connect, and seconds between two looks meanwhile.
_CHANGE_TIMEOUT_S = 60.0
_LOOK_INTERVAL_S = 0.2


class DoesNotChange(LakestreamError, Transient):
    """Error of a connector that is not in the awaited state after a minute."""


class ConnectorSetup:
    """The steps by which a connector is created, changed, started and restarted.

    :param groups: Kafka's consumer groups, for setting offsets; None without a ledger.
    :param publisher: the publisher of the branch; None without a ledger.
    :param publish: publishes the sink's commits; the argument is whether the sink is stopped.
    :param wait: waits the given seconds; raises when the task is to end.
    """

    def __init__(
        self,
        spec: ConnectorSpec,
        client: ConnectClient,
        groups: KafkaGroups | None,
        publisher: BranchPublisher | None,
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
        case. The sink begins again at the ledger's end if the sink is new or stopped, if its tasks failed while the
        ledger was ahead of them, or if its branch has rows unfit for main. Raises ConfigRefused, and the errors of a
        publication.
        """
        existing = self._client.config(self._spec.name)
        if existing is None:
            self._check()
            return self._create()
        changed = changed_settings(self._spec.config, existing)
        self._refuse_fixed_settings(changed)
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
            # Also in the state STOPPED: a request to resume a moment ago may not show in the state yet.
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
        """Restart tasks, and wait at most 10 s until no task shows an old failure; the next look judges a later one.

        :param only_failed: whether tasks that run are left alone.
        """
        self._client.restart(self._spec.name, only_failed)
        deadline = time.monotonic() + _CHANGE_TIMEOUT_S / 6
        while self.status().failed and time.monotonic() < deadline:
            self._wait(_LOOK_INTERVAL_S)

    def status(self) -> ConnectorStatus:
        """Return the connector's status; wait up to a minute for the status of a new connector.

        Raises NoSuchConnector if the connector does not exist, or has no status after a minute.
        """
        deadline = time.monotonic() + _CHANGE_TIMEOUT_S
        while True:
            try:
                return self._client.status(self._spec.name)
            except NoSuchConnector:
                if time.monotonic() > deadline or self._client.config(self._spec.name) is None:
                    raise
                self._wait(_LOOK_INTERVAL_S)

    def await_state(self, *states: ConnectorState) -> None:
        """Wait until the connector is in any of these states. Raises DoesNotChange after a minute.

        For STOPPED, wait also until no task is left.
        """
        deadline = time.monotonic() + _CHANGE_TIMEOUT_S
        while (status := self.status()).state not in states or (ConnectorState.STOPPED in states and status.tasks):
            if time.monotonic() > deadline:
                wanted = " or ".join(states).lower()
                raise DoesNotChange(
                    f"Connector {self._spec.name} is not {wanted} after {_CHANGE_TIMEOUT_S:.0f} s: {status}."
                )
            self._wait(_LOOK_INTERVAL_S)

    def _check(self) -> None:
        """Check the configuration as far as possible without creating the connector. Raises ConfigRefused.

        The check covers the connector's class, the settings by Connect's own validation, and misspelt keys.
        """
        config = {"name": self._spec.name, **self._spec.config}
        connector_class, plugins = config.get("connector.class", ""), self._client.plugins()
        if connector_class not in plugins:
            names = ", ".join(sorted(plugin.rpartition(".")[2] for plugin in plugins))
            problem = f"connector.class {connector_class!r} is not installed on the workers."
            raise ConfigRefused(problem, f"They have {names}.")
        known_keys, errors = self._client.validate(config)
        check_errors(errors, config)
        check_keys(config, known_keys, HANDED_ON if self._spec.sink else ())

    def _is_ahead(self, sink: IcebergConnector) -> bool:
        """Return whether the ledger is ahead of the offsets that the tasks have committed.

        A receipt for lost offsets, or an extract of the same group, may have put the ledger ahead. A partition without
        a committed offset does not count. As a side effect, table and branch are prepared.
        """
        assert self._groups is not None, "a sink with a ledger has consumer groups"
        assert self._publisher is not None, "a sink with a ledger has a publisher"
        begins, committed = self._publisher.begin(), self._groups.committed(sink.group, sink.topic)
        return any(begin > committed.get(p, begin) for p, begin in begins.items())

    def _has_unfit_rows(self, *, is_stopped: bool) -> bool:
        """Publish the branch; return whether the branch has rows unfit for main, so that nothing was published.

        Unfit are rows with wrong values, rows that main already has, and rows of a record that our decoder rejects (the
        sink may have decoded this and later records wrongly): the sink has to read again from the ledger's end. Other
        errors are raised.
        """
        try:
            self._publish(is_stopped)
        except (RecordDoubted, RowsDiffer, RowsOnMain) as e:
            log.warning("The records are read again from the ledger's end. %s", e)
            return True
        return False

    def _refuse_fixed_settings(self, changed: list[str]) -> None:
        """Raise ConfigRefused if a setting has changed that a sink with a ledger keeps for its whole life."""
        if self._spec.sink is not None and (fixed := [name for name in _FIXED_SETTINGS if name in changed]):
            raise ConfigRefused(
                f"there is a connector {self._spec.name} with another {' and '.join(fixed)}.",
                "Give this connector another name; or stop the existing one, publish its commits, and delete it.",
            )

    def _create(self) -> str:
        """Create the connector; return the change in words."""
        name, sink = self._spec.name, self._spec.sink
        if sink is None:
            self._client.configure(name, self._spec.config)
            return "it was created"
        assert self._publisher is not None, "a sink with a ledger has a publisher"
        # Faults of the table are reported before the connector is created.
        self._publisher.begin()
        # Stopped: a task that runs before its offsets are set would read records that the ledger has.
        self._client.create_stopped(name, self._spec.config)
        return f"it was created; {self._start(sink)}"

    def _start(self, sink: IcebergConnector) -> str:
        """Start a stopped sink at the ledger's end; return the sink's first offsets in words.

        1. Make the control topic, and publish the commits on the branch. Then set the branch back to main's head: rows
           unfit for main are dropped, and their records are read again.
        2. Let the coordinator begin at the control topic's end. Without that offset, the events of a coordinator that
           is killed in its first round would never be read. Rows that no coordinator has committed are read again.
        3. Let the tasks begin at the first offset that the ledger lacks.

        Raises LandedAhead if the ledger has offsets above its first missing offset: the tasks would land these twice.
        The sink then stays stopped.
        """
        assert self._groups is not None, "a sink with a ledger has consumer groups"
        assert self._publisher is not None, "a sink with a ledger has a publisher"
        self.await_state(ConnectorState.STOPPED)
        self._groups.make_topic(sink.control_topic)
        self._has_unfit_rows(is_stopped=True)
        begins = self._publisher.begin_again()
        ends = {p: marks.end for p, marks in self._groups.watch.topic(sink.control_topic).marks.items()}
        self._groups.set_committed(sink.coordinator_group, sink.control_topic, ends)
        self._groups.await_empty(sink.group)
        self._client.set_offsets(self._spec.name, sink.topic, begins)
        self._resume()
        starts = ", ".join(f"{sink.topic}[{p}] {offset}" for p, offset in sorted(begins.items()))
        return f"it begins at {starts}"

    def _resume(self) -> None:
        """Resume the connector, and wait until it works or has failed: the watch judges a failure."""
        self._client.resume(self._spec.name)
        idle = (ConnectorState.STOPPED, ConnectorState.PAUSED)
        self.await_state(*(state for state in ConnectorState if state not in idle))


_NO_MEMORY: dict[str, Any] = {}


class ConnectorSupervision:
    """Supervision of a task's connector in a process; a `driver.supervisor.StreamSupervisor`.

    Two tasks with the same name supervise the same connector: Connect has one connector of a name.

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
        publisher: BranchPublisher | None,
        wait: Callable[[float], None],
        memory: Mapping[str, Any] = _NO_MEMORY,
    ) -> None:
        self.spec = spec
        self._client = client
        self._publisher = publisher
        self._wait = wait
        head = publisher.head if publisher else None
        self._observer = ConnectorObserver(spec, client, groups, head)
        self._setup = ConnectorSetup(spec, client, groups, publisher, self._publish, wait)
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
        """Return the sums already reported by earlier tries: zero, because each try counts from zero."""
        return self.before()

    def mark_reported(self, sums: Mapping[str, Any]) -> None:
        """Ignore the sums: the next try counts from zero."""

    def begin(self, history: SupervisionHistory | None = None) -> None:
        """Create, adopt or correct the connector; restart tasks after a failure or stall.

        Raises ConnectorAtDamage if the tasks fail or stall at a damaged batch.

        :param history: the history of a failed or stalled connector, whose tasks are restarted; None at the start of a
            supervision: then only failed tasks are restarted.
        """
        failing = self._observer.look() if history is not None else ConnectorLook()
        if history is not None and (at_damage := self.at_damage(failing)) is not None:
            raise at_damage
        log.info("Connector %s: %s.", self.spec.name, self._setup.apply())
        memory = self._watch.memory
        if history is not None:
            memory = memory.restarted(failing)
            status = failing.status
            has_failed = status is not None and (bool(status.failed) or status.state is ConnectorState.FAILED)
            # Without a failure the connector stalls: then all tasks are restarted.
            self._setup.restart(only_failed=has_failed)
        elif self._setup.status().failed:
            # The tasks may have failed days ago, for a reason that is gone by now.
            memory = memory.restarted(self._observer.look())
            self._setup.restart(only_failed=True)
        self._watch.history = history or SupervisionHistory(submitted_at=time.time())
        # Until all tasks run again, the connector counts as starting, and `start_timeout` applies.
        self._watch.memory = replace(memory, has_run=False)
        self._watch.last_look = ConnectorLook()

    def at_damage(self, look: ConnectorLook | None = None) -> ConnectorAtDamage | None:
        """Return the error if tasks fail or stall at a damaged batch; None without a damaged batch.

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
        """Look and publish regularly until an action is due; return the decision of the last look.

        The branch is published once `publish_interval` is over, and after the connector was stopped. Raises the errors
        of a publication.

        :param report: called with each look.
        :param until_started: whether to return already when the connector works.
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
        """Return the sums of this run."""
        return self.progress()

    def stop(self, action: Any) -> str:
        """Carry out `on_kill_action`; return the result in words."""
        return stop_connector(self._client, self.spec.name, action)

    def log_tail(self) -> list[str]:
        """Return the first 20 lines of each failed connector task's trace, in place of a log's last lines.

        Connect's REST API gives no log, and a Java trace begins with the error.
        """
        status = self._watch.last_look.status
        return [line for task in (status.failed if status else ()) for line in task.trace.splitlines()[:20]]

    def _publish(self, is_stopped: bool) -> None:
        """Publish the sink's commits, and keep the batch for the next report; do nothing without a ledger."""
        if self._publisher is None:
            return
        head = self._publisher.head()
        batch = self._publisher.publish(self._progress, is_stopped)
        self._watch.memory = replace(self._watch.memory, published=head, published_at=time.time())
        if batch is not None:
            self._progress = self._progress.plus(batch)
            self._batches.append(batch)


def stop_connector(client: ConnectClient, name: str, action: OnKillConnector) -> str:
    """Carry out `action` on a connector; return the result in words, also if the connector does not exist."""
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
