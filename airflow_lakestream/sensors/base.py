"""Base of all sensors: turns a look into success, wait, failure or skip, in each way of waiting."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    PokeReturnValue,
    conf,
)
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS
from airflow.triggers.base import StartTriggerArgs

from airflow_lakestream.config.literals import check_literals
from airflow_lakestream.core.policies import is_given
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Transient
from airflow_lakestream.metrics import measure_look, tags_of
from airflow_lakestream.operators.arguments import check_written_flags, documented, set_arguments, templated
from airflow_lakestream.operators.base import airflow_errors, late_imports
from airflow_lakestream.operators.rendering import TextRendering

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_lakestream.watching.asking import Verdict

log = logging.getLogger(__name__)

_TRIGGER = "airflow_lakestream.triggers.look.LookTrigger"
# `triggers.look.GRACE`, without an import of that module: imports would slow down the parsing of DAGs.
_GRACE = timedelta(seconds=60)


class CheckFailed(LakestreamError, Transient):
    """Error of a sensor whose look failed, or showed a bad state of the stream. A retry looks again."""


class LookSensor(TextRendering, BaseSensorOperator):
    """Looks at a stream until the check is done.

    A subclass sets its check's name and the check's arguments, which are its templated fields, and calls `ready` at the
    end of its constructor. Airflow's own arguments work in each way of waiting: `timeout`, `soft_fail`, `never_fail`,
    `silent_fail`; with `deferrable`, `mode` does not matter.

    :param missing: what to do while a connection does not work, or a table, topic, checkpoint or group does not exist:
        `"fail"`, or `"wait"` until the time-out (templated)
    :param deferrable: wait in the triggerer, without a worker slot
    :param start_from_trigger: also begin in the triggerer, so that only the end needs a worker. Needs Airflow 3.3;
        on older versions, for mapped tasks, and in a DAG with `render_template_as_native_obj`, whose triggerer would
        read a text such as `1_000` as a number, the task begins in a worker
    """

    check_name: ClassVar[str]
    template_fields: Sequence[str] = ("missing",)
    ui_color = "#dfe8f7"

    def __init__(
        self,
        *,
        missing: str = "fail",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        start_from_trigger: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_written_flags(deferrable=deferrable, start_from_trigger=start_from_trigger)
        self.deferrable = deferrable or start_from_trigger
        self.missing, self.start_from_trigger = missing, start_from_trigger
        # Monotonic time of the first look, in seconds.
        self._began: float | None = None
        self._last: Verdict | None = None
        if self.deferrable and (self.exponential_backoff or self.max_wait):
            raise InvalidArgument(
                "exponential_backoff", "does not go with deferrable.", "Give poll_interval alone: a look costs little."
            )

    def ready(self) -> None:
        """Check the literal arguments, and with `start_from_trigger` let the task begin in the triggerer.

        A subclass calls this once all fields are set. If the task can't begin in the triggerer, a warning is written,
        and the task begins in a worker. Raises InvalidArgument.
        """
        check_literals(self._arguments())
        if not self.start_from_trigger:
            return
        is_native = (dag := self.get_dag()) is not None and dag.render_template_as_native_obj
        if is_native or not AIRFLOW_V_3_3_PLUS:
            self.start_from_trigger = False
            reason = "keeps no texts with render_template_as_native_obj" if is_native else "needs Airflow 3.3 or newer"
            warnings.warn(f"{self.task_id}: start_from_trigger {reason}; the task begins in a worker.", stacklevel=3)
            return
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls=_TRIGGER,
            trigger_kwargs=self._trigger_kwargs(None),
            next_method="execute_complete",
            timeout=timedelta(seconds=self.timeout) + _GRACE,
        )

    def execute(self, context: Context) -> Any:
        """Wait until the check is done, and return the last look's figures, which the sensor's class describes.

        After a failure or a time-out the figures are in XCom, too.
        """
        if self.deferrable:
            return self._defer_unless_done(context)
        try:
            return super().execute(context)
        except AirflowSensorTimeout as e:
            # Airflow's own text has the time waited, but not the reason.
            self._keep(context, self._last)
            text = f"{e} {self._last.text if self._last else ''}"
            # Airflow skips a deferred sensor with `never_fail` here, too.
            raise (AirflowSkipException if self.never_fail else AirflowSensorTimeout)(text) from None

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once; return whether the check is done, with the figures. Raises the error of `_failure`."""
        verdict = self._last = self._look(context, self._waited(context))
        if verdict.outcome == "failed":
            raise self._failure(context, verdict)
        if verdict.outcome == "waiting":
            log.info("Waiting. %s", verdict.text)
        return PokeReturnValue(verdict.outcome == "done", _value(verdict))

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Return the figures in the trigger's event, or raise the error for a failure or a time-out."""
        from airflow_lakestream.watching.asking import LookOutcome, Verdict

        verdict = Verdict.parse(event)
        if verdict.outcome is LookOutcome.DONE:
            return self._done(verdict)
        if verdict.outcome is LookOutcome.TIMED_OUT:
            self._keep(context, verdict)
            text = f"Sensor has timed out after {self.timeout:g} seconds. {verdict.text}"
            if self.soft_fail:
                # With `soft_fail` Airflow replaces this text by its own text, without the reason: so the log has it.
                log.warning("Skipped. %s", text)
                raise AirflowSkipException(text)
            raise AirflowSensorTimeout(text)
        raise self._failure(context, verdict)

    def _defer_unless_done(self, context: Context) -> Any:
        """Look once in the worker, and return the figures if the check is done; else wait in the triggerer."""
        from airflow_lakestream.triggers.look import LookTrigger
        from airflow_lakestream.watching.asking import LookOutcome

        began = time.time()
        verdict = self._look(context, 0.0)
        if verdict.outcome is LookOutcome.DONE:
            return self._done(verdict)
        if verdict.outcome is LookOutcome.FAILED:
            raise self._failure(context, verdict)
        log.info("Waiting in the triggerer. %s", verdict.text)
        trigger = LookTrigger(**self._trigger_kwargs(began))
        timeout = timedelta(seconds=self.timeout) + _GRACE
        return self.defer(trigger=trigger, method_name="execute_complete", timeout=timeout)

    def _look(self, context: Context, waited: float) -> Verdict:
        """Look once, and measure the look.

        :param waited: seconds since the task's first look.
        """
        with late_imports():
            from airflow_lakestream.hooks.places import AirflowPlaces
            from airflow_lakestream.watching.asking import look_now, look_safely, make_check

        with airflow_errors():
            check = make_check(self.check_name, self._arguments())
        verdict = look_now(look_safely(check, AirflowPlaces(), waited, forgiving=self.silent_fail))
        measure_look(self.check_name, verdict.value, tags_of(context["ti"], vars(self)))
        return verdict

    def _arguments(self) -> dict[str, Any]:
        """Return the check's arguments."""
        return {name: getattr(self, name) for name in self.template_fields}

    def _trigger_kwargs(self, began: float | None) -> dict[str, Any]:
        """Return the arguments of the trigger.

        :param began: time when the task began, in seconds since the epoch; None if it begins in the triggerer.
        """
        return {
            "check": self.check_name,
            "poll_interval": self.poke_interval,
            "timeout": self.timeout,
            "began": began,
            "forgiving": self.silent_fail,
            **self._arguments(),
        }

    def _waited(self, context: Context) -> float:
        """Return the seconds since the task's first look."""
        # A rescheduled sensor is a new process for each look: only Airflow knows the time of the first look.
        if self.reschedule:
            first = context["ti"].get_first_reschedule_date(context)
            return time.time() - first.timestamp() if first is not None else 0.0
        now = time.monotonic()
        if self._began is None:
            self._began = now
        return now - self._began

    def _done(self, verdict: Verdict) -> Any:
        """Log the verdict of a done check, and return its figures."""
        log.info("Done. %s", verdict.text)
        return _value(verdict)

    def _failure(self, context: Context, verdict: Verdict) -> Exception:
        """Push the figures as XCom, and return the error to raise.

        By the error's type Airflow skips the task, fails it without retries, or retries it.
        """
        from airflow_lakestream.watching.causes import UNSEEN

        # Without figures the XCom has the reason, which the page of streams shows.
        text = "; ".join(reason.text for reason in verdict.reasons)
        self._keep(context, verdict if verdict.value is not None else replace(verdict, value={UNSEEN: text}))
        if self.soft_fail or self.never_fail:
            log.warning("Skipped. %s", verdict.text)
            return AirflowSkipException(verdict.text)
        return AirflowFailException(verdict.text) if verdict.terminal else CheckFailed(verdict.text)

    def _keep(self, context: Context, verdict: Verdict | None) -> None:
        """Push a look's figures as XCom: a failed task returns no value."""
        if verdict is not None and verdict.value is not None:
            context["ti"].xcom_push(key="return_value", value=_value(verdict))


@documented()
class ConsumerSensor(LookSensor):
    """Looks at a Spark query, a table's ledger, or a consumer group.

    :param checkpoint_location: checkpoint of a Spark query, as Spark takes it (templated)
    :param table: `namespace.table` with a ledger; with `table_format="delta"` its path or URI (templated)
    :param consumer_group: name of the table's ledger; default: the DAG's id (templated)
    :param group_id: a consumer group, by its committed offsets (templated)
    :param topic: a topic or a list; default: all topics that the consumer has read (templated)
    :param storage_conn_id: connection of a Delta table's or checkpoint's store: type `aws`, `generic` or `iceberg`
        (templated)
    :param kwargs: arguments of `LookSensor`: `missing`, `deferrable`, `start_from_trigger`, and Airflow's own
    """

    def __init__(
        self,
        *,
        checkpoint_location: str | None = None,
        table: str | None = None,
        consumer_group: str = "{{ dag.dag_id }}",
        group_id: str | None = None,
        topic: str | Sequence[str] | None = None,
        table_format: str = "iceberg",
        kafka_conn_id: str = "kafka_default",
        iceberg_conn_id: str = "iceberg_default",
        storage_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not any(is_given(source) for source in (checkpoint_location, table, group_id)):
            raise InvalidArgument(
                "checkpoint_location", "one of checkpoint_location, table and group_id has to be given."
            )
        set_arguments(self, ConsumerSensor, locals())

    template_fields: Sequence[str] = (*templated(__init__), *LookSensor.template_fields)


def _value(verdict: Verdict) -> dict[str, Any] | None:
    """Return a verdict's figures as a new dictionary, which XCom can store; None without figures."""
    return None if verdict.value is None else dict(verdict.value)
