"""OpenLineage of operators: facts about landings; for a driver's task, the landings that earlier tries did not emit.

Without OpenLineage's provider, or if it is disabled, no facts are kept.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_lakestream.core.policies import is_given
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.operators.sql_template import SqlRendering

if TYPE_CHECKING:
    from airflow_lakestream.driver.supervisor import StreamSupervisor
    from airflow_lakestream.lineage.facts import LineageFacts


def is_lineage_enabled() -> bool:
    """Return whether OpenLineage's provider is installed and enabled."""
    try:
        from airflow.providers.openlineage.conf import is_disabled
    except ImportError:
        return False
    return not is_disabled()


class LineageReporting:
    """Mixin with facts about the try's landings, for OpenLineage's listener, which reads the facts at the end.

    To the right of BaseOperator among the bases: on the left, a class without an `__init__` of its own would have the
    defaults of the signature for mapped tasks, which are wrong (`inlets` is None).
    """

    _facts: LineageFacts | None = None

    def keep_facts(self, facts: LineageFacts | None) -> None:
        """Keep the facts of the try until the listener asks."""
        self._facts = facts

    def rows_statement(self) -> str | None:
        """Return the SQL of the rows, or None without SQL."""
        sql = self.statement() if isinstance(self, SqlRendering) else getattr(self, "sql", None)
        return str(sql) if is_given(sql) else None

    def column_sources(self) -> Mapping[str, tuple[str, ...]]:
        """Return by column of the table the topic's fields in the column, as far as known; empty in the base class."""
        return {}

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the lineage of this try's landings, or None without facts. Called by OpenLineage's listener."""
        if self._facts is None or not (self._facts.topics or self._facts.tables):
            return None
        from airflow.providers.openlineage.extractors import OperatorLineage

        from airflow_lakestream.lineage.datasets import inputs_of, job_facets_of, outputs_of, run_facets_of

        facts = self._facts
        return OperatorLineage(
            inputs=inputs_of(facts),
            outputs=outputs_of(facts),
            run_facets=run_facets_of(facts),
            job_facets=job_facets_of(facts),
        )

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """Return the lineage of commits before the failure. Called by OpenLineage's listener."""
        return self.get_openlineage_facets_on_complete(task_instance)


class DriverLineage(Protocol):
    """Operator of a driver, as far as the lineage of its stream needs."""

    def keep_facts(self, facts: LineageFacts | None) -> None:
        """Keep the facts of the try until the listener asks."""

    def rows_statement(self) -> str | None:
        """Return the SQL of the rows, or None without SQL."""

    def column_sources(self) -> Mapping[str, tuple[str, ...]]:
        """Return by column of the table the topic's fields in the column, as far as known."""

    def stream_names(self) -> Mapping[str, Any]:
        """Return `topic`, `table` and `consumer_group` as far as known."""


log = logging.getLogger(__name__)


class LineageKeeping(AbstractContextManager[None]):
    """Context that keeps the facts of the try at its end, even after an error, if OpenLineage is enabled."""

    # A class and not a generator: contextlib would restore the whole traceback of an error that is raised again.
    def __init__(self, operator: DriverLineage, supervisor: StreamSupervisor) -> None:
        self._operator = operator
        self._supervisor = supervisor
        self._before: Mapping[str, Any] | None = None

    def __enter__(self) -> None:
        if is_lineage_enabled():
            try:
                self._before = self._supervisor.reported_sums()
            except Exception as e:  # noqa: BLE001  # a failure of the lineage must not keep a stream from starting
                log.warning("OpenLineage will not get the landings of this try: %s: %s", type(e).__name__, e)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # A task that waits in the triggerer emits its facts when it is resumed.
        if self._before is not None and not isinstance(error, TaskDeferred):
            self._operator.keep_facts(facts_of(self._operator, self._supervisor, self._before, is_over=error is None))


def facts_of(
    operator: DriverLineage, supervisor: StreamSupervisor, before: Mapping[str, Any], *, is_over: bool
) -> LineageFacts | None:
    """Return the facts about the landings since `before`; None after an error, which is logged, or without Kafka.

    :param before: earlier sums, in the form of `DriverProgress.sums`.
    :param is_over: whether the run ends. Otherwise the sums are kept, so that the next try does not emit these facts
        again.
    """
    kafka_conn_id = getattr(operator, "kafka_conn_id", None)
    if not is_given(kafka_conn_id):
        return None
    try:
        from airflow_lakestream.hooks.kafka import KafkaHook
        from airflow_lakestream.lineage.facts import LineageFacts, brokers_of
        from airflow_lakestream.lineage.looking import add_batches

        names, progress = operator.stream_names(), supervisor.progress()
        facts = LineageFacts(
            brokers_of(KafkaHook(str(kafka_conn_id)).configuration()),
            str(names.get("consumer_group", "")),
            statement=operator.rows_statement(),
            columns=operator.column_sources(),
        )
        add_batches(facts, progress, before, names)
        _add_tables(operator, facts)
        if not is_over:
            supervisor.mark_reported(progress.sums())
        return facts
    except Exception as e:  # noqa: BLE001  # rows are landed: a missing event must not fail a task, or hide a failure
        log.warning("OpenLineage did not get the landings of this try: %s: %s", type(e).__name__, e)
        return None


def _add_tables(operator: DriverLineage, facts: LineageFacts) -> None:
    """Add the columns and snapshots of the written tables to the facts, as far as their lakes answer."""
    from airflow_lakestream.hooks.places import open_tables
    from airflow_lakestream.lineage.looking import look_at_tables

    lakes = {lake.format: lake for lake in map(lake_of, facts.tables)}
    iceberg, storage = (getattr(operator, name, None) for name in ("iceberg_conn_id", "storage_conn_id"))
    for lake in lakes.values():
        try:
            look_at_tables(facts, open_tables(lake, str(iceberg), storage))
        except Exception as e:  # noqa: BLE001  # facts that are known without the lake are emitted
            log.warning("The lake could not be opened for the lineage: %s", e)
