"""How a connector comes to run as its task wants it: made, corrected, started where the ledger ends, or left alone."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from airflow_lakestream.connect.client import ConnectClient, NoSuchConnector
from airflow_lakestream.connect.configuration import ConfigRefused, check_errors, check_keys, difference
from airflow_lakestream.connect.connector import ConnectorSpec, Publisher
from airflow_lakestream.connect.iceberg_sink import HANDED_ON, IcebergSink
from airflow_lakestream.connect.status import ConnectorStatus, State
from airflow_lakestream.core.publishing.refusals import RecordDoubted, RowsDiffer, RowsOnMain
from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.kafka.groups import Groups

log = logging.getLogger(__name__)

# Settings that a connector keeps as long as it lives: its ledger, branch and offsets hang on them.
_KEPT = (
    "connector.class",
    "topics",
    "iceberg.tables",
    "iceberg.tables.default-commit-branch",
    "iceberg.control.topic",
    "iceberg.catalog",
)
_WITHIN_S = 60.0
_EVERY_S = 0.2


class DoesNotChange(LakestreamError, Transient):
    """Connect took a request, and nothing came of it."""


class Applying:
    """Applies one connector.

    :param groups: where offsets are set; for a sink with a ledger.
    :param publisher: for a sink with a ledger.
    :param publish: publishes what the sink has committed, given whether it is stopped; likewise.
    :param wait: waits the given seconds; raises when the task is to end.
    """

    def __init__(
        self,
        spec: ConnectorSpec,
        client: ConnectClient,
        groups: Groups | None,
        publisher: Publisher | None,
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
        """See to it that the connector is as it is wanted, and not stopped; return in words what was done.

        An equal configuration is not sent again: that would restart all tasks.
        """
        there = self._client.config(self._spec.name)
        if there is None:
            self._check()
            return self._make()
        changed = difference(self._spec.config, there)
        self._refuse_other(changed)
        if changed:
            self._check()
            log.info("The connector %s differs in %s.", self._spec.name, ", ".join(changed))
        status = self.status()
        state = status.state
        sink = self._spec.sink
        if sink is not None and (
            state is State.STOPPED or (status.failed and self._is_ahead(sink)) or self._is_refused(is_stopped=False)
        ):
            # One that is stopped somebody may have resumed a moment ago, which its state does not show yet.
            self._client.stop(self._spec.name)
            if changed:
                self._client.configure(self._spec.name, self._spec.config)
            return self._start(sink)
        if changed:
            self._client.configure(self._spec.name, self._spec.config)
        if state in (State.STOPPED, State.PAUSED):
            self._resume()
            return f"it was {state.lower()}, and goes on"
        return f"it was corrected: {', '.join(changed)}" if changed else "found it as it is wanted"

    def restart(self, only_failed: bool) -> None:
        """Restart tasks, and wait until those that had failed are on their way: what is seen then is news."""
        self._client.restart(self._spec.name, only_failed)
        deadline = time.monotonic() + _WITHIN_S / 6
        while self.status().failed and time.monotonic() < deadline:
            self._wait(_EVERY_S)

    def status(self) -> ConnectorStatus:
        """Return the status; of a connector that is just made there is none for a moment."""
        deadline = time.monotonic() + _WITHIN_S
        while True:
            try:
                return self._client.status(self._spec.name)
            except NoSuchConnector:
                if time.monotonic() > deadline or self._client.config(self._spec.name) is None:
                    raise
                self._wait(_EVERY_S)

    def await_state(self, *states: State) -> None:
        """Wait until the connector is in one of these states. Raises DoesNotChange."""
        deadline = time.monotonic() + _WITHIN_S
        while (found := self.status()).state not in states or (State.STOPPED in states and found.tasks):
            if time.monotonic() > deadline:
                what = " or ".join(states).lower()
                raise DoesNotChange(f"The connector {self._spec.name} is {found} {_WITHIN_S:.0f} s after {what}.")
            self._wait(_EVERY_S)

    def _check(self) -> None:
        """Check the configuration as far as that can be done without making the connector. Raises ConfigRefused."""
        config = {"name": self._spec.name, **self._spec.config}
        if (kind := config.get("connector.class", "")) not in (plugins := self._client.plugins()):
            known = ", ".join(sorted(one.rpartition(".")[2] for one in plugins))
            raise ConfigRefused(f"connector.class {kind!r} is on no worker.", f"There are {known}.")
        known_keys, errors = self._client.validate(config)
        check_errors(errors)
        check_keys(config, known_keys, HANDED_ON if self._spec.sink else ())

    def _is_ahead(self, sink: IcebergSink) -> bool:
        """Tell whether the ledger is ahead of the tasks: by a receipt for what they can't read, or by an extract."""
        assert self._groups is not None, "a sink with a ledger has them"
        assert self._publisher is not None, "likewise"
        begins, committed = self._publisher.begin(), self._groups.committed(sink.group, sink.topic)
        return any(begin > committed.get(p, begin) for p, begin in begins.items())

    def _is_refused(self, *, is_stopped: bool) -> bool:
        """Publish; tell whether the branch has what nobody may land, and a sink that begins anew reads again."""
        try:
            self._publish(is_stopped)
        except (RecordDoubted, RowsDiffer, RowsOnMain) as e:
            log.warning("The records are read anew, from where the ledger ends. %s", e)
            return True
        return False

    def _refuse_other(self, changed: list[str]) -> None:
        if self._spec.sink is not None and (kept := [name for name in _KEPT if name in changed]):
            raise ConfigRefused(
                f"there is a connector {self._spec.name} with another {' and '.join(kept)}.",
                "Give this one a name of its own; or stop it, publish what it wrote, and delete it.",
            )

    def _make(self) -> str:
        name, sink = self._spec.name, self._spec.sink
        if sink is None:
            self._client.configure(name, self._spec.config)
            return "made it"
        assert self._publisher is not None, "a sink with a ledger has it"
        # What is wrong with the table is told before anything is made.
        self._publisher.begin()
        # Stopped: a task that runs before its offsets are set would read what the ledger has.
        self._client.create_stopped(name, self._spec.config)
        return f"made it; {self._start(sink)}"

    def _start(self, sink: IcebergSink) -> str:
        """Start a stopped sink where the ledger ends.

        1. Make its control topic, and publish what it has committed to its branch, which then begins anew: what nobody
           may land of it is read again.
        2. Let its coordinator begin at that topic's end: else the first round of a coordinator
           that is killed would never be seen. What earlier tasks wrote and no coordinator committed is read again.
        3. Let its tasks begin at the first offset that the ledger lacks.

        Raises LandedAhead where the ledger has offsets above that: the sink stays stopped.
        """
        assert self._groups is not None, "a sink with a ledger has them"
        assert self._publisher is not None, "likewise"
        self.await_state(State.STOPPED)
        self._groups.make_topic(sink.control_topic)
        self._is_refused(is_stopped=True)
        begins = self._publisher.begin_anew()
        ends = {p: marks.end for p, marks in self._groups.watch.topic(sink.control_topic).marks.items()}
        self._groups.set_committed(sink.coordinator_group, sink.control_topic, ends)
        self._groups.await_empty(sink.group)
        self._client.set_offsets(self._spec.name, sink.topic, begins)
        self._resume()
        where = ", ".join(f"{sink.topic}[{p}] {offset}" for p, offset in sorted(begins.items()))
        return f"it begins at {where}"

    def _resume(self) -> None:
        self._client.resume(self._spec.name)
        self.await_state(*(state for state in State if state not in (State.STOPPED, State.PAUSED)))
