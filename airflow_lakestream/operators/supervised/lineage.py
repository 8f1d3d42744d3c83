"""OpenLineage of a task that supervises a driver: the landings after the events of the run's earlier tries."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_lakestream.core.policies import is_given
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.operators.lineage import is_lineage_enabled

if TYPE_CHECKING:
    from airflow_lakestream.driver.supervisor import StreamSupervisor
    from airflow_lakestream.lineage.facts import LineageFacts
    from airflow_lakestream.operators.supervised.operator import SupervisedOperator

log = logging.getLogger(__name__)


class _LineageKeeping(AbstractContextManager[None]):
    # Not a generator: contextlib restores the whole traceback of an error that goes on.
    def __init__(self, operator: SupervisedOperator, supervisor: StreamSupervisor) -> None:
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


def keep_lineage(operator: SupervisedOperator, supervisor: StreamSupervisor) -> AbstractContextManager[None]:
    """Keep the facts of the try at its end, even after an error, if OpenLineage is enabled."""
    return _LineageKeeping(operator, supervisor)


def facts_of(
    operator: SupervisedOperator, supervisor: StreamSupervisor, before: Mapping[str, Any], *, is_over: bool
) -> LineageFacts | None:
    """Return the facts about the landings since `before`.

    Returns None after an error, which is logged, or without a Kafka connection.

    :param before: earlier sums, in the form of `DriverProgress.sums`.
    :param is_over: True: the run ends. False: the run's next try goes on; the sums are noted for it, so that it does
        not emit these facts again.
    """
    try:
        return _facts_of(operator, supervisor, before, is_over)
    except Exception as e:  # noqa: BLE001  # rows are landed: a missing event must not fail a task, or hide a failure
        log.warning("OpenLineage did not get the landings of this try: %s: %s", type(e).__name__, e)
        return None


def _facts_of(
    operator: SupervisedOperator, supervisor: StreamSupervisor, before: Mapping[str, Any], is_over: bool
) -> LineageFacts | None:
    kafka_conn_id = getattr(operator, "kafka_conn_id", None)
    if not is_given(kafka_conn_id):
        return None
    from airflow_lakestream.hooks.kafka import KafkaHook
    from airflow_lakestream.lineage.facts import LineageFacts, brokers_of
    from airflow_lakestream.lineage.looking import add_batches

    names, progress = operator.stream_names(), supervisor.progress()
    brokers = brokers_of(KafkaHook(str(kafka_conn_id)).configuration())
    facts = LineageFacts(
        brokers,
        str(names.get("consumer_group", "")),
        statement=operator.rows_statement(),
        columns=operator.column_sources(),
    )
    add_batches(facts, progress, before, names)
    _look(operator, facts)
    if not is_over:
        supervisor.mark_reported(progress.sums())
    return facts


def _look(operator: SupervisedOperator, facts: LineageFacts) -> None:
    from airflow_lakestream.hooks.places import open_tables
    from airflow_lakestream.lineage.looking import look_at_tables

    lakes = {lake.format: lake for lake in map(lake_of, facts.tables)}
    iceberg, storage = (getattr(operator, name, None) for name in ("iceberg_conn_id", "storage_conn_id"))
    for lake in lakes.values():
        try:
            look_at_tables(facts, open_tables(lake, str(iceberg), storage))
        except Exception as e:  # noqa: BLE001  # facts that are known without the lake are emitted
            log.warning("The lake could not be opened for the lineage: %s", e)
