"""A run over all topics: each topic of a regex in turn, and the rows landed in each table. No Airflow in here."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_lakestream.cdc.mirror import Mirror
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.column_use import silent_texts
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.job import LandingJob, Stopped
from airflow_lakestream.core.landing.plan import Plan, TopicState
from airflow_lakestream.core.landing.report import LandingReport, counts_to_dict
from airflow_lakestream.core.ledger import Counts, union
from airflow_lakestream.core.policies import ValueEnvelope
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.routing import (
    NoTopicMatches,
    check_name_by_topic,
    colliding_topics,
    is_pattern,
    matching,
    near_names,
)
from airflow_lakestream.decode.connect.debezium_own import own_record, own_schema
from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.iceberg.fan_out.books import NamingTopic
from airflow_lakestream.iceberg.fan_out.sink import FanOutSink
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.kafka.cluster import list_topics
from airflow_lakestream.registry.client import RegistryClient
from airflow_lakestream.run import job as extract
from airflow_lakestream.run.maintenance.after_landing import LandingUpkeep, table_sink
from airflow_lakestream.run.storage import storage_errors_named
from airflow_lakestream.runtime.processes import ChildProcesses

log = logging.getLogger(__name__)

# Number of offsets that are examined at the beginning, and at the end, of each partition.
_EXAMINED_OFFSETS = 20
# A zero byte and the schema id, at the beginning of a value in the framing of Confluent's registry.
_HEADER_BYTES = 5


@dataclass(frozen=True)
class OwnTopics:
    """Check for topics that have only Debezium's own records, such as heartbeats, and no events of a table."""

    config: ExtractConfig

    def is_left_out(self, topic: str, job: LandingJob, error: LakestreamError | None = None) -> bool:
        """Return whether all examined records are Debezium's own; if so, log the topic as left out.

        Only the oldest and the newest records of each partition are examined, and only with Debezium's envelope. False
        without records, or if reading fails.

        :param error: the error of the topic's landing. False for an error that a retry may fix: its cause is not the
            content.
        """
        if self.config.envelope != ValueEnvelope.DEBEZIUM or not isinstance(error, Terminal | None):
            return False
        try:
            kinds = self.find_kinds(job)
        except LakestreamError as e:
            log.warning("The topic's content can't be examined: %s", e)
            return False
        if kinds:
            log.info("%s is left out: it contains %s of Debezium's own, not a table's events.", topic, kinds)
        return bool(kinds)

    def find_kinds(self, job: LandingJob) -> str:
        """Return the kinds of the oldest and the newest records of the job's topic, as text.

        The text is empty if a record may be a table's event, or without records. Raises the errors of reading.
        """
        values = list(self._values(job))
        kinds = [self._kind(value) for value in values]
        return "" if None in kinds else " and ".join(sorted({kind for kind in kinds if kind}))

    def _kind(self, value: bytes) -> str | None:
        """Return the kind of a record of Debezium's own, by the value or by its schema; None for another record."""
        registry = self.config.payload.registry
        if registry is None or value[:1] != b"\0" or len(value) < _HEADER_BYTES:
            return own_record(value)
        schema = RegistryClient(registry).schema(int.from_bytes(value[1:_HEADER_BYTES], "big"))
        return own_schema(schema.text)

    def _values(self, job: LandingJob) -> Iterator[bytes]:
        """Yield the values of the oldest and the newest records of each partition."""
        state = job.source.look()
        plan = Plan(state, _end_ranges(state))
        if not plan.ranges:
            return
        with closing(job.reader.read(plan, job.stop)) as chunks:
            for chunk in chunks:
                yield from (value for value in chunk.batch.values.to_pylist() if value is not None)


def _end_ranges(state: TopicState) -> RangeSet:
    """Return the first and the last offsets of each partition."""
    topic = state.identity.topic
    parts = []
    for p, marks in state.marks.items():
        if marks.low < marks.end:
            parts.append(RangeSet.of(topic, p, marks.low, min(marks.low + _EXAMINED_OFFSETS, marks.end)))
            parts.append(RangeSet.of(topic, p, max(marks.low, marks.end - _EXAMINED_OFFSETS), marks.end))
    return union(parts)


@dataclass
class RunReport:
    """Landings of a run.

    :param topic: the topic or regex of the user.
    :param table: the table or template of the user.
    :param reports: the reports by topic.
    :param tables: the number of rows by table.
    :param by_record: whether records named their tables.
    """

    topic: str
    table: str
    consumer_group: str
    reports: dict[str, LandingReport] = field(default_factory=dict)
    tables: Counter[str] = field(default_factory=Counter)
    by_record: bool = False

    @property
    def counts(self) -> Counts:
        """The counts of all topics together."""
        return sum((report.counts for report in self.reports.values()), Counts())

    @property
    def rows(self) -> int:
        """The number of rows added to tables."""
        return sum(report.rows for report in self.reports.values())

    @property
    def changed_nothing(self) -> bool:
        """Whether the run landed no record and recorded no loss."""
        return not self.counts.read and not any(report.entry.lost for report in self.reports.values())

    @property
    def silent(self) -> list[tuple[str, str]]:
        """The silent columns of the run, as pairs of table and text."""
        reports = self.reports.values()
        return [(report.table, text) for report in reports for text in silent_texts(report.silent or {})]

    @property
    def stale(self) -> list[tuple[str, str]]:
        """The columns dropped in the source and added again, as pairs of table and column."""
        return [(report.table, column) for report in self.reports.values() for column in report.types.stale]

    @property
    def recovered(self) -> int:
        """The number of snapshots by earlier tries of the run."""
        return sum(report.recovered for report in self.reports.values())

    @property
    def snapshots(self) -> int:
        """The number of snapshots by all tries of the run."""
        return sum(len(report.snapshot_ids) for report in self.reports.values())

    @property
    def remaining_lag(self) -> int:
        """The number of offsets missing in the group's ledger."""
        return sum(report.remaining_lag for report in self.reports.values())

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values: a single topic's report, or the sums with each topic's report in `topics`."""
        common = {"topic": self.topic, "table": self.table, "tables": dict(sorted(self.tables.items()))}
        if not is_pattern(self.topic):
            (report,) = self.reports.values()
            # The report's table is the home, which has the ledger.
            home = {"home_table": report.table} if self.by_record else {}
            return report.to_dict() | common | home
        return {
            **common,
            "consumer_group": self.consumer_group,
            **counts_to_dict(self.counts),
            "rows": self.rows,
            "bad": sum(report.bad.count for report in self.reports.values()),
            "remaining_lag": self.remaining_lag,
            "complete": all(report.completes for report in self.reports.values()),
            "schema_changes": [
                f"{report.table}: {text}" for report in self.reports.values() for text in report.schema_changes
            ],
            "silent_columns": [f"{name}: {text}" for name, text in self.silent],
            "stale_columns": [f"{name}: {column}" for name, column in self.stale],
            "topics": {topic: report.to_dict() for topic, report in self.reports.items()},
        }


def land_run(
    config: ExtractConfig,
    kafka: Mapping[str, Any],
    catalog: extract.Lake,
    *,
    run_id: str,
    where: str = "the Kafka connection",
    stop: threading.Event | None = None,
    children: ChildProcesses | None = None,
    prepare: Callable[[LandingJob], LandingJob] | None = None,
    deadline: float | None = None,
) -> RunReport:
    """Land the topic, or each topic of the regex; see `run.job.build_job` for the arguments.

    A topic of a regex that can't be landed does not stop the next topics: its error is raised at the end. Of several
    errors, an error that a retry may fix is raised. Topics with only Debezium's own records are left out of the report.
    Once `max_records` are read, the next topics wait for the next run. Raises NoTopicMatches, and the errors of a
    landing.

    :param children: processes that may read; see `reader_processes`.
    :param prepare: changes the job of each topic before it is landed.
    :param deadline: time of `time.monotonic` at which the run has to be over, compactions included.
    """
    stop = stop or threading.Event()
    run = RunReport(config.topic, config.table, config.consumer_group, by_record=bool(config.template.by_record))
    failed: list[LakestreamError] = []
    topics = topics_of(config, kafka, where)
    own_topics = OwnTopics(config)
    upkeep = LandingUpkeep(catalog, config.maintain_mode, stop, deadline)
    for topic in topics:
        records_left = _records_left(config, run)
        if records_left == 0:
            log.info("%s and the topics after it wait for the next run: max_records are landed.", topic)
            break
        # A topic of a regex has a run id of its own, by which a further try finds the topic's landings.
        topic_run_id = f"{run_id}/{topic}" if is_pattern(config.topic) else run_id
        job: LandingJob | None = None
        try:
            topic_config = replace(config, max_records=records_left)
            job = job_of(topic_config, topic, topics, kafka, catalog, topic_run_id, where, stop)
            job = replace(job, children=children)
            with storage_errors_named(job.table, catalog):
                report = land(prepared := job if prepare is None else prepare(job))
        except Stopped:
            raise
        except LakestreamError as e:
            if not is_pattern(config.topic):
                raise
            if job is not None and own_topics.is_left_out(topic, job, e):
                continue
            log.error("%s: %s", topic, e)
            failed.append(e)
            continue
        if report.lacks_columns and is_pattern(config.topic) and own_topics.is_left_out(topic, job):
            continue
        run.reports[topic] = report
        run.tables.update(_rows_by_table(job, report))
        # Not after `max_records`: then further records wait, and their landing is more urgent than a compaction.
        if _records_left(config, run) != 0:
            upkeep.run(prepared, report)
    if failed:
        # False sorts before True: an error that is not terminal comes first.
        raise min(failed, key=lambda e: isinstance(e, Terminal))
    return run


def job_of(
    config: ExtractConfig,
    topic: str,
    topics: Sequence[str],
    kafka: Mapping[str, Any],
    catalog: extract.Lake,
    run_id: str,
    where: str,
    stop: threading.Event | None = None,
) -> LandingJob:
    """Return the job of a topic; see `run.job.build_job` for the arguments.

    If a regex and the topic's name determine the table, the sink refuses a table of another stream. Raises
    InvalidArgument for a reserved name of a table.

    :param topics: all topics of the run, to find topics that share a table.
    """
    topic_config = config.of_topic(topic)
    job = extract.build_job(topic_config, kafka, catalog, run_id=run_id, where=where, stop=stop)
    if is_pattern(config.topic) and config.template.by_topic:
        check_name_by_topic(topic_config.table, topic)
        sink = table_sink(job)
        if isinstance(sink, Mirror):
            sink = sink.table
        # Also for a fan-out by records: its home table is named by the topic.
        if isinstance(sink, IcebergSink):
            sink.named_by = NamingTopic(topic, colliding_topics(config.template, topics).get(topic))
    return job


def _rows_by_table(job: LandingJob, report: LandingReport) -> Mapping[str, int]:
    sink = table_sink(job)
    if isinstance(sink, FanOutSink):
        return sink.rows_by_table
    return {job.table: report.rows}


def topics_of(config: ExtractConfig, kafka: Mapping[str, Any], where: str) -> Sequence[str]:
    """Return the configured topic, or the sorted topics of the cluster that match the regex. Raises NoTopicMatches."""
    if not is_pattern(config.topic):
        return [config.topic]
    existing = list_topics(kafka, where)
    topics = matching(config.topic, existing)
    if not topics:
        raise NoTopicMatches(config.topic, where, near_names(config.topic, existing))
    log.info("%r matches %s topics: %s", config.topic, len(topics), ", ".join(topics))
    return topics


def _records_left(config: ExtractConfig, run: RunReport) -> int | None:
    """Return the number of records left to the run, or None without a limit."""
    most = config.limits.max_records
    return None if most is None else max(0, most - run.counts.read)
