"""Application of a connector's configuration: created, corrected, started at the ledger's end, or unchanged."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from airflow_lakestream.connect.client import ConnectClient, NoSuchConnector
from airflow_lakestream.connect.configuration import ConfigRefused, changed_settings, check_errors, check_keys
from airflow_lakestream.connect.connector import ConnectorSpec, SinkPublisher
from airflow_lakestream.connect.iceberg_sink import HANDED_ON, IcebergConnector
from airflow_lakestream.connect.status import ConnectorState, ConnectorStatus
from airflow_lakestream.core.publishing.refusals import RecordDoubted, RowsDiffer, RowsOnMain
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
