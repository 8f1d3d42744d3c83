"""The operator of a driver of any engine: found or submitted once, and watched from Airflow."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import BaseOperator, BaseOperatorLink, conf

# No import of PyIceberg, Arrow or an engine at the top: Airflow parses DAG files again every half minute.
from airflow_lakestream.config.arguments import count_from_zero
from airflow_lakestream.config.literals import Check
from airflow_lakestream.core.policies import choose, is_given, seconds
from airflow_lakestream.driver.supervisor import (
    DriverFailed,
    GaveUp,
    OnKill,
    SupervisionDecision,
    SupervisionHistory,
    SupervisionLimits,
    SupervisorAction,
)
from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.operators.arguments import check_written_flags, documented, set_arguments, templated
from airflow_lakestream.operators.base import airflow_errors, emit_to_outlets, late_imports
from airflow_lakestream.operators.lineage import LineageKeeping, LineageReporting
from airflow_lakestream.operators.rendering import TextRendering

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_lakestream.driver.supervisor import StreamSupervisor
    from airflow_lakestream.operators.supervised.task_report import TaskReport
    from airflow_lakestream.triggers.driver import DriverTrigger

log = logging.getLogger(__name__)

# Greatest number of seconds until a signal is noticed.
_SIGNAL_CHECK_S = 0.2
# Airflow's deferral needs a time-out, and a stream has no time-out.
_FOREVER = timedelta(days=36_500)
# Seconds between two looks in the worker, and in the triggerer, which looks at many streams.
_POLL_S = 5.0
_DEFERRED_POLL_S = 30.0


class StreamLeft(LakestreamError, Transient):
    """Error of a try whose worker ends while the stream goes on."""


class TaskEnded(LakestreamError, Transient):
    """Error of a task that a person cleared or marked while the task ran."""


class _Signalled(Exception):
    """Exception for ending the supervision after SIGTERM."""


@documented()
class SupervisedOperator(TextRendering, BaseOperator, LineageReporting):
    """Keep a single driver of a stream running and moving until a good end.

    An engine's operator sets its `engine`, and defines `new_supervisor`, `stream_names`, `new_trigger` and, if it has
    any, `driver_pages` and `store_conn_id`; see `airflow_lakestream.driver.backend` for the rest of the port.

    :param checkpoint_location: path or URI; lease and progress are in `<checkpoint_location>.lakestream` (templated)
    :param max_restarts: most restarts of a driver without a healthy period in between (templated)
    :param restart_backoff: pause before the first restart; twice as long before each further one, up to 5 minutes
        (templated)
    :param healthy_after: a driver that moves this long after its start is healthy; restarts count from 0 (templated)
    :param stall_timeout: a driver without any progress for this long is killed and restarted; None: never (templated)
    :param start_timeout: a driver that has not begun to work after this time is killed and restarted (templated)
    :param unknown_timeout: most time in which it may be unknown whether the driver runs (templated)
    :param on_kill_action: action on the driver after a person's clear or "mark failed": `"graceful"` ends after its
        batch, `"kill"` ends it at once, `"leave"` lets it run (templated)
    :param stop_timeout: a driver that was asked to end kills itself if its batch takes longer; None: never (templated)
    :param deferrable: wait in the triggerer, without a worker slot
    :param poll_interval: seconds between two looks; default: 5 in the worker, 30 in the triggerer (templated)
    """

    # The engine's name in metrics.
    engine: ClassVar[str]
    # Links with their addresses, in which `{url}` is the address in the lease.
    driver_pages: ClassVar[Sequence[tuple[BaseOperatorLink, str]]] = ()
    # Values of `on_kill_action`; with "leave" the driver goes on.
    on_kill_actions: ClassVar[type[StrEnum]] = OnKill
    # The key of the stream's location in a report.
    place: ClassVar[str] = "checkpoint_location"

    _supervisor: StreamSupervisor | None = None
    # See `links.links_until_run`.
    _has_run = False
    # Whether `on_kill` leaves the reaction to the supervision, and whether it has noted a signal.
    _is_supervising = False
    _signalled = False

    def __init__(
        self,
        *,
        checkpoint_location: str | None = None,
        max_restarts: int | str = 5,
        restart_backoff: float | str = "10s",
        healthy_after: float | str = "10m",
        stall_timeout: float | str | None = "30m",
        start_timeout: float | str = "5m",
        unknown_timeout: float | str = "5m",
        on_kill_action: str = OnKill.GRACEFUL.value,
        stop_timeout: float | str | None = "10m",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float | str | None = None,
        topic_url: str | None = None,
        table_url: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_written_flags(deferrable=deferrable)
        set_arguments(self, SupervisedOperator, locals(), self._checks())

    template_fields: Sequence[str] = templated(__init__, "deferrable")

    def _checks(self) -> dict[str, Check]:
        return {"on_kill_action": partial(choose, self.on_kill_actions)}

    def _on_kill_action(self) -> StrEnum:
        return choose(self.on_kill_actions, "on_kill_action", self.on_kill_action)

    @abstractmethod
    def new_supervisor(self, context: Context, wait: Callable[[float], None]) -> StreamSupervisor:
        """Check all arguments, and return the supervision of the driver. Raises InvalidArgument."""

    @abstractmethod
    def stream_names(self) -> Mapping[str, Any]:
        """Return `topic`, `table` and `consumer_group` as far as known, for report, metrics and links."""

    @abstractmethod
    def new_trigger(self, **watched: Any) -> DriverTrigger:
        """Return the trigger for the driver, from the arguments of `DriverTrigger`."""

    def store_conn_id(self) -> str | None:
        """Return the connection of the object store with lease and progress; None without an object store."""
        return None

    def root_folder(self) -> Path:
        """Return the folder of drivers next to the worker: `driver_folder`, or by default a folder of Airflow's."""
        if is_given(self.driver_folder):
            return Path(str(self.driver_folder))
        from airflow.configuration import AIRFLOW_HOME

        return Path(AIRFLOW_HOME) / "lakestream"

    def limits(self) -> SupervisionLimits:
        """Return the limits of the supervision. Raises InvalidArgument."""

        def optional(name: str) -> float | None:
            value = getattr(self, name)
            return seconds(name, value) if is_given(value) else None

        required = ("healthy_after", "start_timeout", "unknown_timeout")
        return SupervisionLimits(
            max_restarts=count_from_zero("max_restarts", self.max_restarts),
            backoff=seconds("restart_backoff", self.restart_backoff),
            stall_timeout=optional("stall_timeout"),
            stop_timeout=optional("stop_timeout"),
            **{name: seconds(name, getattr(self, name)) for name in required},
        )

    def seconds_between_looks(self, default: float = _POLL_S) -> float:
        """Return `poll_interval`, or `default` without it. Raises InvalidArgument."""
        return seconds("poll_interval", self.poll_interval) if is_given(self.poll_interval) else default

    def execute(self, context: Context) -> dict[str, Any]:
        """Adopt or submit the driver, watch until the end, and return the report; see the class."""
        with airflow_errors():
            supervisor, task_report = self._set_up(context)
            return self._finished(context, self._run(context, supervisor, task_report))

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Go on after the trigger's event: publish, restart, give up, or return the report.

        :param event: the event of a `DriverTrigger`.
        """
        history = SupervisionHistory.parse(event["history"])
        decision = SupervisionDecision(
            SupervisorAction(event["action"]), history, str(event["reason"]), time.time(), bool(event["terminal"])
        )
        with airflow_errors():
            supervisor, task_report = self._set_up(context, event["begun"], int(event["restarts"]))
            return self._finished(context, self._run(context, supervisor, task_report, decision))

    def on_kill(self) -> None:
        """React to SIGTERM, or to the end of `execution_timeout`.

        During the supervision a SIGTERM is only noted: the next `_wait` ends the supervision, and `_answer_to_signal`
        reacts. After a time-out the supervision has already ended: the driver is stopped here, by `on_kill_action`.
        """
        if self._is_supervising:
            # Only noted: any other action of a signal handler may wait for a lock of the interrupted code.
            self._signalled = True
        elif self._supervisor is not None:
            log.info("execution_timeout: %s", self._supervisor.stop(self._on_kill_action()))

    def _set_up(
        self, context: Context, begun: Mapping[str, Any] | None = None, restarts: int = 0
    ) -> tuple[StreamSupervisor, TaskReport]:
        """Return supervisor and report of the task. Raises InvalidArgument.

        :param begun: the sums before the run, from the trigger's event; None at the start of a try.
        :param restarts: number of restarts in earlier processes of the task.
        """
        with late_imports():
            from airflow_lakestream.operators.supervised.task_report import TaskReport

            # Checks the argument, too, before anything is started.
            log.debug("A person's clear or mark is answered by %s.", self._on_kill_action())
            self._supervisor = self.new_supervisor(context, self._wait)
        self._has_run = True
        before = self._supervisor.before()
        sums = dict(begun) if begun is not None else before
        task_report = TaskReport(context["ti"], sums, self.stream_names(), self.engine, self.driver_pages)
        task_report.restarts = restarts
        if begun is None and (stop := _how_to_stop(context)):
            log.info("%s", stop.strip())
        task_report.push_links(self.topic_url, self.table_url)
        return self._supervisor, task_report

    def _run(
        self,
        context: Context,
        supervisor: StreamSupervisor,
        task_report: TaskReport,
        decision: SupervisionDecision | None = None,
    ) -> dict[str, Any]:
        """Supervise, keep the lineage, and return the report; `decision` is the trigger's, or None without an event."""
        self._is_supervising = True
        try:
            # The lineage is outermost, so that the reaction to a signal is done first.
            with LineageKeeping(self, supervisor):
                try:
                    return self._supervise(supervisor, task_report, decision)
                except _Signalled:
                    raise self._answer_to_signal(context, supervisor, task_report) from None
        finally:
            self._is_supervising = False

    def _supervise(
        self, supervisor: StreamSupervisor, task_report: TaskReport, decision: SupervisionDecision | None
    ) -> dict[str, Any]:
        """Carry out decision after decision until the stream ends well; return the report. Raises `give_up_error`."""
        history: SupervisionHistory | None = None
        if decision is not None:
            supervisor.resume(decision.history)
            if decision.action is SupervisorAction.WAIT:
                # The trigger has fired for work that only a worker does, such as a publication.
                decision = supervisor.follow(task_report, until_started=True)
        while True:
            # No driver is supervised yet, or the last driver has ended and is to be replaced.
            if decision is None:
                supervisor.begin(history)
                decision = supervisor.follow(task_report, until_started=self.deferrable)
            if decision.action is SupervisorAction.WAIT:
                self._defer(supervisor, task_report, decision.history)
            if decision.action is SupervisorAction.FINISH:
                task_report.progress = supervisor.finish()
                task_report.push_end_links()
                return {self.place: supervisor.spec.location, **task_report.report()}
            task_report.report_failure(decision.reason, supervisor.log_tail())
            supervisor.clear_away()
            if decision.action is SupervisorAction.GIVE_UP:
                task_report.push_end_links()
                raise self.give_up_error(supervisor.spec.location, decision)
            supervisor.pause(decision.at)
            task_report.report_restart(decision.reason)
            history, decision = decision.history.restarted(time.time()), None

    def give_up_error(self, location: str, decision: SupervisionDecision) -> LakestreamError:
        """Return DriverFailed if only a change of input helps; otherwise GaveUp, which Airflow retries."""
        if decision.terminal:
            return DriverFailed(location, decision.reason)
        return GaveUp(location, decision.reason, decision.history.restarts)

    def _finished(self, context: Context, report: dict[str, Any]) -> dict[str, Any]:
        if report["read"]:
            emit_to_outlets(context, self.outlets, report)
        if table := report.get("table"):
            self._log_landed(report, str(table))
        return report

    def _log_landed(self, report: Mapping[str, Any], table: str) -> None:
        from airflow_lakestream.run.summary import ICEBERG_DEFAULT, figures, rejects_of

        conn_id = getattr(self, "iceberg_conn_id", None) or ICEBERG_DEFAULT
        rejects = rejects_of(table, report["consumer_group"], conn_id) if report["rejected"] else ""
        level = logging.WARNING if rejects else logging.INFO
        batches = f"{report['batches']} batch{'' if report['batches'] == 1 else 'es'}"
        log.log(level, "Landed %s in %s, in %s.%s", figures(report), table, batches, rejects)

    def _defer(self, supervisor: StreamSupervisor, task_report: TaskReport, history: SupervisionHistory) -> None:
        """Hand the supervision over to the triggerer; the task goes on in `execute_complete`."""
        trigger = self.new_trigger(
            checkpoint_location=supervisor.spec.location,
            generation=supervisor.generation,
            limits=asdict(supervisor.spec.limits),
            history=history.to_dict(),
            poll_interval=self.seconds_between_looks(_DEFERRED_POLL_S),
            on_kill_action=self.on_kill_action,
            seen=task_report.progress.batches,
            begun=task_report.begun,
            restarts=task_report.restarts,
            storage_conn_id=self.store_conn_id(),
            links_afterwards=task_report.links_afterwards,
        )
        self.defer(trigger=trigger, method_name="execute_complete", timeout=self.execution_timeout or _FOREVER)

    def _wait(self, duration: float) -> None:
        """Wait for some seconds. Raises _Signalled after a signal."""
        end = time.monotonic() + duration
        while not self._signalled:
            seconds_left = end - time.monotonic()
            if seconds_left <= 0:
                return
            time.sleep(
                min(_SIGNAL_CHECK_S, seconds_left)
            )  # not a lock or an event: the code that the signal interrupted could hold it
        raise _Signalled

    def _answer_to_signal(
        self, context: Context, supervisor: StreamSupervisor, task_report: TaskReport
    ) -> LakestreamError:
        """React to a signal, and return the error to raise.

        If a person has ended the task, `on_kill_action` is carried out. If the task still runs for Airflow, or its
        state is unknown, only the worker ends: the driver goes on, and the retry finds it.
        """
        state = _state_at_server(context["ti"])
        if state in (None, "running"):
            note = "" if state else " (Airflow's API server did not answer)"
            return StreamLeft(f"The worker ends{note}. The stream goes on; a retry of this task finds it again.")
        action = self._on_kill_action()
        result = supervisor.stop(action)
        if action != OnKill.LEAVE:
            task_report.push_end_links()
        return TaskEnded(f"The task is {state} by now: {result}.{_how_to_stop(context)}")


def _how_to_stop(context: Context) -> str:
    """Return a sentence (with a leading blank) on stopping a stream of a @continuous DAG; empty for other DAGs."""
    if type(getattr(context.get("dag"), "timetable", None)).__name__ != "ContinuousTimetable":
        return ""
    return " The DAG is @continuous: to stop its stream for good, first pause the DAG, then mark this task failed."


def _state_at_server(ti: Any) -> str | None:
    """Ask Airflow's API server for the state of a task instance; None without an answer."""
    try:
        states = ti.get_task_states(ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=ti.map_index)
        name = ti.task_id if ti.map_index < 0 else f"{ti.task_id}_{ti.map_index}"
        # A cleared task has no state until it is scheduled again.
        return str(states[ti.run_id][name] or "cleared")
    except Exception as e:  # noqa: BLE001  # after any error the stream is left alone, and the retry finds it
        log.warning("The state of this task could not be read: %s: %s", type(e).__name__, e)
        return None
