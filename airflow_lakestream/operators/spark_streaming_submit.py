"""SparkStreamingSubmitOperator: a streaming query on Spark, submitted once and watched from Airflow."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

# Nothing that imports PyIceberg, Arrow or the Spark provider up here: Airflow parses DAG files anew every half minute.
from airflow_lakestream.core.policies import choose
from airflow_lakestream.driver.supervisor import OnKill
from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.links import DriverLogLink, SparkUILink, TableLink, TopicLink, links_until_run
from airflow_lakestream.operators.base import airflow_errors, late_imports, need_extras
from airflow_lakestream.operators.outlets import tell_outlets
from airflow_lakestream.operators.spark.stream_arguments import StreamArguments
from airflow_lakestream.spark.apps import DELTA_APPS, MAINTAIN_ICEBERG

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_lakestream.driver.driving import Driving
    from airflow_lakestream.driver.supervisor import Decision, History
    from airflow_lakestream.operators.spark.task_report import TaskReport

log = logging.getLogger(__name__)

# How long a signal may wait to be seen.
_SLICE = 0.2
# Airflow wants a time; a stream has none.
_FOREVER = timedelta(days=36_500)


class StreamLeft(LakestreamError, Transient):
    """The worker ends, and the stream goes on without this try."""


class TaskEnded(LakestreamError, Transient):
    """A person cleared or marked the task while it ran."""


class _Signalled(Exception):
    """SIGTERM came."""


class SparkStreamingSubmitOperator(StreamArguments):
    """Run a streaming query on Spark, and see to it that there is one driver, that it moves, and that it ends well.

    Adopts the stream's driver where one is running; else submits one. Restarts it when it fails, vanishes or stalls.
    The worker's death leaves the driver running, and the retry adopts it: give the task retries. Returns, and puts on
    the event of each outlet asset, a report of what all tries landed: `batches`, `read`, `rows`, `rejected`, `skipped`,
    `filtered`, `bad`, `ranges` as [partition, from, until], the rows by table in `tables`, `restarts`, and of the
    newest batch `lag`, `snapshot_ids` and rates; the XCom `progress` holds its sums while the task runs.

    Raises AirflowFailException where only a change of input helps, and errors that Airflow retries otherwise.

    .. seealso:: docs/operators/spark_streaming_submit.md

    :param app: a bundled app, such as `"kafka_to_iceberg"` (templated)
    :param application: path of a program of your own, instead (templated)
    :param app_config: the app's arguments: for `kafka_to_iceberg`, those of `KafkaExtractOperator`; for
        `maintain_iceberg`, the tables and works; no secrets (templated)
    :param trigger: `"available_now"`: all that is there, and then the query ends; or the time between two batches,
        such as `"10 seconds"` (templated)
    :param checkpoint_location: path or URI; the lease and the progress lie in `<checkpoint_location>.lakestream`;
        without a query (an interval, ranges) a folder for those alone, by default in `driver_folder` (templated)
    :param max_batches: the query ends after so many (templated)
    :param max_offsets_per_trigger: most offsets in one batch (templated)
    :param max_restarts: how often a driver is started again without a healthy period in between (templated)
    :param restart_backoff: pause before the first restart; twice as long before each further one, up to 5 minutes
        (templated)
    :param healthy_after: a driver that moved so long after its start is healthy, and restarts count anew (templated)
    :param stall_timeout: a query without any progress for so long is killed and restarted; None never (templated)
    :param start_timeout: a driver that has not begun to work after so long is killed and restarted (templated)
    :param unknown_timeout: how long it is borne that nobody can tell whether the driver runs (templated)
    :param on_kill_action: what a person's clear or "mark failed" does to the driver: `"graceful"` lets its batch end,
        `"kill"` ends it at once, `"leave"` lets it run (templated)
    :param stop_timeout: a driver that was asked to end kills itself when its batch takes longer; None never (templated)
    :param deferrable: wait in the triggerer, without a worker slot
    :param poll_interval: seconds between two looks; default: 5 in the worker, 30 in the triggerer (templated)
    :param driver_folder: where drivers that run beside the worker have their logs; default:
        `$AIRFLOW_HOME/lakestream` (templated)
    :param kafka_conn_id: connection of type `kafka`; None for an application that needs none (templated)
    :param iceberg_conn_id: connection of type `iceberg`; None likewise (templated)
    :param spark_conn_id: connection of type `spark`: master, deploy-mode, queue (templated)
    :param storage_conn_id: for the apps of Delta, as `KafkaExtractOperator` takes it (templated)
    :param topic_url: where the link Topic goes, such as `"https://kafka-ui/topics/{topic}"` (templated)
    :param table_url: where the link Table goes, with `{table}` in it (templated)
    :param packages: Maven coordinates; default: those that a bundled app needs, fitting the installed Spark, fetched
        once (templated)
    :param kwargs: of `SparkArguments`: conf, jars, driver_memory and so on, as `SparkSubmitOperator` takes them
    """

    template_fields_renderers = {"app_config": "json", "conf": "json"}
    operator_extra_links = links_until_run(SparkUILink(), DriverLogLink(), TopicLink(), TableLink())
    ui_color = "#f7d9c4"

    _driving: Driving | None = None
    _has_run = False
    _is_heeding = False
    _signalled = False

    def execute(self, context: Context) -> dict[str, Any]:
        """Adopt or submit, and watch; see the class."""
        with airflow_errors():
            driving, told = self._set_up(context)
            return self._finished(context, self._run(context, driving, told))

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Go on where the trigger fired: report, restart, or give up."""
        with late_imports():
            from airflow_lakestream.driver.supervisor import Action, Decision, History

        history = History.parse(event["history"])
        decision = Decision(
            Action(event["action"]), history, str(event["reason"]), time.time(), bool(event["terminal"])
        )
        with airflow_errors():
            driving, told = self._set_up(context, event["begun"], int(event["restarts"]))
            return self._finished(context, self._run(context, driving, told, decision))

    def on_kill(self) -> None:
        """Heed SIGTERM, which comes for a worker that ends and for a task that was cleared or marked; or a time-out."""
        if self._is_heeding:
            # In a signal's handler: whatever else is done here may wait for a lock that the interrupted code holds.
            self._signalled = True
        elif self._driving is not None:
            log.info("execution_timeout: %s", self._driving.stop(choose(OnKill, "on_kill_action", self.on_kill_action)))

    def _set_up(
        self, context: Context, begun: Mapping[str, Any] | None = None, restarts: int = 0
    ) -> tuple[Driving, TaskReport]:
        need_extras("spark", *(("delta",) if self.app in DELTA_APPS else ()))
        with late_imports():
            from airflow_lakestream.operators.spark.set_up import driving_of
            from airflow_lakestream.operators.spark.task_report import TaskReport

        self._has_run = True
        on_kill = choose(OnKill, "on_kill_action", self.on_kill_action)
        log.debug("A person's clear or mark is answered by %s.", on_kill)
        self._driving = driving_of(self, context, self._wait)
        before = self._driving.before()
        # Of an app that lands: what it tells of the table, and of the ledger in it.
        what = {"consumer_group": self.dag_id, **self.app_config} if self.app != MAINTAIN_ICEBERG else {}
        told = TaskReport(context["ti"], dict(begun) if begun is not None else before, what)
        told.restarts = restarts
        if begun is None and (stop := _how_to_stop(context)):
            log.info("%s", stop.strip())
        told.pages(self.topic_url, self.table_url)
        return self._driving, told

    def _run(
        self, context: Context, driving: Driving, told: TaskReport, decision: Decision | None = None
    ) -> dict[str, Any]:
        self._is_heeding = True
        try:
            return self._supervise(driving, told, decision)
        except _Signalled:
            raise self._answer_to_signal(context, driving) from None
        finally:
            self._is_heeding = False

    def _supervise(self, driving: Driving, told: TaskReport, decision: Decision | None) -> dict[str, Any]:
        from airflow_lakestream.driver.supervisor import Action, DriverFailed, GaveUp

        history: History | None = None
        if decision is not None:
            driving.resume()
        while True:
            if decision is None:
                driving.begin(history)
                told.submitted(driving.handle)
                decision = driving.follow(told, until_started=self.deferrable)
            if decision.action is Action.WAIT:
                self._defer(driving, told, decision.history)
            if decision.action is Action.FINISH:
                told.finished(driving.finish())
                told.ended()
                return {"checkpoint_location": driving.spec.location, **told.report()}
            told.failed(decision.reason, driving.log_tail())
            driving.clear_away()
            if decision.action is Action.GIVE_UP:
                told.ended()
                if decision.terminal:
                    raise DriverFailed(driving.spec.location, decision.reason)
                raise GaveUp(driving.spec.location, decision.reason, decision.history.restarts)
            driving.pause(decision.at)
            told.restarted(decision.reason)
            history, decision = decision.history.restarted(time.time()), None

    def _finished(self, context: Context, report: dict[str, Any]) -> dict[str, Any]:
        if report["read"]:
            tell_outlets(context, self.outlets, report)
        if table := report.get("table"):
            self._tell(report, str(table))
        return report

    def _tell(self, report: Mapping[str, Any], table: str) -> None:
        from airflow_lakestream.run.summary import ICEBERG_DEFAULT, figures, rejects_of

        conn = self.iceberg_conn_id or ICEBERG_DEFAULT
        shown = rejects_of(table, report["consumer_group"], conn) if report["rejected"] else ""
        level = logging.WARNING if shown else logging.INFO
        log.log(level, "Landed %s in %s, in %s batches.%s", figures(report), table, report["batches"], shown)

    def _defer(self, driving: Driving, told: TaskReport, history: History) -> None:
        from airflow_lakestream.operators.spark.set_up import trigger_of

        trigger = trigger_of(self, driving, history, told)
        self.defer(trigger=trigger, method_name="execute_complete", timeout=self.execution_timeout or _FOREVER)

    def _wait(self, duration: float) -> None:
        end = time.monotonic() + duration
        while not self._signalled:
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(_SLICE, left))  # a lock or an event could be held by what the signal interrupted
        raise _Signalled

    def _answer_to_signal(self, context: Context, driving: Driving) -> LakestreamError:
        """Find out whether the worker ends or a person has ended the task, and do what is promised for it."""
        from airflow_lakestream.operators.spark.set_up import state_at_server

        state = state_at_server(context["ti"])
        if state in (None, "running"):
            known = "" if state else " (Airflow's API server did not say otherwise)"
            return StreamLeft(f"The worker ends{known}. The stream goes on; a retry of this task finds it again.")
        what = driving.stop(choose(OnKill, "on_kill_action", self.on_kill_action))
        return TaskEnded(f"The task is {state} by now: {what}.{_how_to_stop(context)}")


def _how_to_stop(context: Context) -> str:
    """Return how a stream is stopped for good, with a blank before it, where the DAG would start the next run."""
    if type(getattr(context.get("dag"), "timetable", None)).__name__ != "ContinuousTimetable":
        return ""
    return " The DAG is @continuous: to stop its stream for good, first pause the DAG, then mark this task failed."
