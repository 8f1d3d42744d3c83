"""Base of operators that land in the worker: the run, links, metrics and report."""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowSkipException, BaseOperator

from airflow_lakestream.core.policies import OnEmpty, choose
from airflow_lakestream.core.routing import NoTopicMatches, is_pattern

# No import of PyIceberg, Arrow or pandas at the top: Airflow parses DAG files again every half minute.
from airflow_lakestream.links import TableLink, TopicLink, links_until_run, push_pages
from airflow_lakestream.metrics import LandingMeter, measure_lag, tags_of
from airflow_lakestream.operators.arguments import extras_of
from airflow_lakestream.operators.base import (
    IDLE_THREADS,
    airflow_errors,
    emit_to_outlets,
    keep_freed_memory,
    late_imports,
    need_extras,
    run_key,
)
from airflow_lakestream.operators.lineage import LineageReporting, is_lineage_enabled

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_lakestream.core.landing.job import CommittedLanding
    from airflow_lakestream.hooks.kafka import KafkaHook
    from airflow_lakestream.lineage.looking import FactsKeeper
    from airflow_lakestream.run.job import ExtractConfig, Lake
    from airflow_lakestream.run.topics import RunReport

log = logging.getLogger(__name__)


class LandingOperator(BaseOperator, LineageReporting):
    """Land the missing records of a topic in a table; a subclass defines `configured`."""

    operator_extra_links = links_until_run(TopicLink(), TableLink())

    topic: str
    table: str
    kafka_conn_id: str
    iceberg_conn_id: str
    storage_conn_id: str | None
    on_empty: str
    topic_url: str | None
    table_url: str | None

    _has_run = False
    _stop: threading.Event | None = None
    _keeper: FactsKeeper | None = None

    @abstractmethod
    def configured(self, context: Context, kafka: KafkaHook) -> ExtractConfig:
        """Return the landing's configuration, from the rendered arguments.

        :param context: of the task's run, for an interval.
        :param kafka: the hook of the Kafka connection, for its schema registry.

        Raises InvalidArgument.
        """

    def execute(self, context: Context) -> dict[str, Any]:
        """Land, and return the report; see the subclass.

        Raises AirflowSkipException with `on_empty="skip"`, if no topic matches or nothing was landed.
        """
        self._stop = threading.Event()
        deadline = self._deadline()
        self._link(context)
        with late_imports():
            from airflow_lakestream.hooks.kafka import KafkaHook
            from airflow_lakestream.hooks.places import open_lake
            from airflow_lakestream.run.processes import reader_processes
            from airflow_lakestream.run.topics import land_run

        keep_freed_memory()
        with airflow_errors():
            need_extras(*extras_of(self))
            on_empty = choose(OnEmpty, "on_empty", self.on_empty)
            kafka = KafkaHook(self.kafka_conn_id)
            config = self.configured(context, kafka)
            configuration = kafka.configuration()
            try:
                # Before the catalog is opened: see `runtime.processes` about threads that may exist before a fork.
                with reader_processes(config, configuration, kafka.where, IDLE_THREADS) as children:
                    lake = open_lake(config, self.iceberg_conn_id, self.storage_conn_id)
                    committed = self._on_commit(context, config, lake, configuration)
                    report = land_run(
                        config,
                        configuration,
                        lake,
                        run_id=run_key(context),
                        where=kafka.where,
                        stop=self._stop,
                        children=children,
                        prepare=lambda job: replace(job, committed=committed),
                        deadline=deadline,
                    )
            except NoTopicMatches as e:
                if on_empty is OnEmpty.SKIP:
                    raise AirflowSkipException(str(e)) from e
                raise
        return self._report(context, report, config, on_empty)

    def on_kill(self) -> None:
        """Stop between two batches; uncommitted files leave no trace."""
        if self._stop is not None:
            self._stop.set()

    def _deadline(self) -> float | None:
        """Return the time of `time.monotonic` at which Airflow ends a task that begins now, or None."""
        limit = self.execution_timeout
        return None if limit is None else time.monotonic() + limit.total_seconds()

    def _link(self, context: Context) -> None:
        self._has_run = True
        # Without a link for a regex or a template of tables, which have no single page.
        names = {
            "topic": "" if is_pattern(self.topic) else self.topic,
            "table": "" if "{" in self.table else self.table,
        }
        push_pages(context["ti"], names, self.topic_url, self.table_url)

    def _on_commit(
        self, context: Context, config: ExtractConfig, lake: Lake, kafka: Mapping[str, Any]
    ) -> Callable[[CommittedLanding], None]:
        """Return the function to call with each commit: for metrics, and for OpenLineage's facts if enabled."""
        tags = tags_of(context["ti"], {"consumer_group": config.consumer_group}, engine="extract")
        meter = LandingMeter(tags, lake)
        if not is_lineage_enabled():
            return meter
        from airflow_lakestream.lineage.columns import columns_of
        from airflow_lakestream.lineage.facts import LineageFacts, brokers_of
        from airflow_lakestream.lineage.looking import FactsKeeper

        self._facts = LineageFacts(
            brokers_of(kafka),
            config.consumer_group,
            statement=self.rows_statement(),
            columns=columns_of(config.statement),
        )
        keeper = self._keeper = FactsKeeper(self._facts, lake)

        def on_commit(landing: CommittedLanding) -> None:
            meter(landing)
            keeper(landing)

        return on_commit

    def _report(self, context: Context, report: RunReport, config: ExtractConfig, on_empty: OnEmpty) -> dict[str, Any]:
        """Emit events, metrics and facts of a run, and return its report. Raises AirflowSkipException."""
        from airflow_lakestream.run.summary import last_line

        result = report.to_dict()
        if self._keeper is not None:
            snapshots = [str(id_) for topic_report in report.reports.values() for id_ in topic_report.snapshot_ids]
            self._keeper.ended(report.reports, report.tables, snapshots)
        for topic, topic_report in report.reports.items():
            stream = {"table": topic_report.table, "topic": topic, "consumer_group": report.consumer_group}
            measure_lag(topic_report.remaining_lag, tags_of(context["ti"], stream, engine="extract"))
        if report.recovered:
            log.info("An earlier try of this run had landed %s snapshots; the report includes them.", report.recovered)
        # Otherwise an event would start the DAGs of the table's users without new rows.
        if not report.changed_nothing:
            emit_to_outlets(context, self.outlets, result)
        line = last_line(report, config, self.iceberg_conn_id)
        if report.changed_nothing and on_empty is OnEmpty.SKIP:
            raise AirflowSkipException(line)
        log.log(logging.WARNING if report.counts.rejected else logging.INFO, "%s", line)
        return result
