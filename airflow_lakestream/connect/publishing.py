"""Publication of the branch of Iceberg's sink: `core.publishing` with the positions of the sink.

The positions are in the sink's events in the control topic.
"""

from __future__ import annotations

import json
import logging
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any

from confluent_kafka import Message
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from airflow_lakestream.connect.configuration import POSITION_TRANSFORM, POSITIONS, ConfigRefused, IcebergConnector
from airflow_lakestream.connect.connector import HeadUnknown, SinkLacksRecords
from airflow_lakestream.core.checks import RowChecker
from airflow_lakestream.core.landing.plan import DataLoss
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.ledger import Counts, LandingEngine
from airflow_lakestream.core.policies import ValueEnvelope, ValueFormat
from airflow_lakestream.core.ports import RecordReader
from airflow_lakestream.core.publishing.branch import BranchSnapshot, RowProof
from airflow_lakestream.core.publishing.publish import PublicationJob, begin, begin_again, publish
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.decode.avro.schema import Node, parse
from airflow_lakestream.decode.avro.values import Malformed, value_of
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.metadata import metadata_schema
from airflow_lakestream.decode.values.outcome import SchemaRefused
from airflow_lakestream.driver.progress import BatchProgress, DriverProgress
from airflow_lakestream.iceberg.fitness import load_table
from airflow_lakestream.iceberg.publishing.sink import PublishingSink
from airflow_lakestream.kafka.groups import KafkaGroups
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.kafka.source import KafkaSource, StartAt
from airflow_lakestream.run.publication import DecodingProof, KafkaLogView
from airflow_lakestream.tables.design import TableDesign

log = logging.getLogger(__name__)


# Iceberg's AvroEncoderUtil: these two bytes, the schema with two bytes of length, then plain Avro.
_MAGIC = b"\xc2\x01"


class EventType(IntEnum):
    """The kinds of events; `int` values of the sink's own protocol."""

    START_COMMIT = 0
    DATA_WRITTEN = 1
    DATA_COMPLETE = 2
    COMMIT_TO_TABLE = 3
    COMMIT_COMPLETE = 4


class NotAnEvent(ValueError):
    """Error of a record that is not an event of the sink."""


@dataclass(frozen=True)
class ControlEvent:
    """An event of a sink, with its position in the control topic.

    :param kind: an `EventType`, or a number of a later version.
    :param group: the consumer group of the sink.
    :param ends: for DATA_COMPLETE, by source topic and partition, the offset after the last record that a task has
        written into files; empty for other events.
    """

    partition: int
    offset: int
    kind: int
    group: str
    ends: Mapping[tuple[str, int], int]


def parse_event(partition: int, offset: int, value: bytes) -> ControlEvent:
    """Read a record of the control topic. Raises NotAnEvent."""
    if value[:2] != _MAGIC or len(value) < 4:
        raise NotAnEvent
    (length,) = struct.unpack(">H", value[2:4])
    try:
        event = value_of(_schema(value[4 : 4 + length]), value[4 + length :])
        kind = int(event["type"])
        ends = _ends(event["payload"]) if kind == EventType.DATA_COMPLETE else {}
        return ControlEvent(partition, offset, kind, str(event["group_id"]), ends)
    except (Malformed, SchemaRefused, KeyError, TypeError, ValueError, AttributeError) as e:
        raise NotAnEvent from e


def events_of(records: Iterable[Message]) -> list[ControlEvent]:
    """Read the records of a control topic, without records of other programs or later versions."""
    events = []
    for record in records:
        try:
            events.append(parse_event(int(record.partition() or 0), int(record.offset() or 0), record.value() or b""))
        except NotAnEvent:
            continue
    return events


def ends_below(events: Iterable[ControlEvent], group: str, topic: str, until: Mapping[int, int]) -> dict[int, int]:
    """Return, by partition of a source topic, the offset after the last record in files that events have reported.

    The highest end of any task counts: a commit takes all events that it has read, also events of an earlier round.

    :param group: the consumer group of the sink; events of other sinks are ignored.
    :param topic: the source topic.
    :param until: by partition of the control topic, the offset below which events count; events of other partitions do
        not count.
    """
    ends: dict[int, int] = {}
    for event in events:
        if event.group != group or event.offset >= until.get(event.partition, 0):
            continue
        for (source, p), end in event.ends.items():
            if source == topic:
                ends[p] = max(ends.get(p, 0), end)
    return ends


def _ends(payload: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    return {
        (str(assignment["topic"]), int(assignment["partition"])): int(assignment["offset"])
        for assignment in payload["assignments"] or ()
        if assignment["offset"] is not None
    }


@lru_cache(maxsize=256)
def _schema(text: bytes) -> Node:
    # Java defines a name without its namespace and refers to it with the namespace: without namespaces both are equal.
    return parse(json.dumps(_without_namespaces(json.loads(text))))


def _without_namespaces(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_namespaces(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _without_namespaces(value) for key, value in schema.items() if key != "namespace"}


# Key of the sink's commits in a snapshot's summary.
_COMMIT = "kafka.connect.commit-id"


class ConnectPositions:
    """Offsets that the sink had read at each snapshot of the branch; see `core.publishing.branch.EnginePositions`.

    A snapshot's summary has the coordinator's offsets in the control topic; the events below these have the offsets of
    the tasks. The group's committed offsets prove nothing: they are committed before the table.

    :param events: reads the control topic.
    :param committed: reads the offsets that the coordinator of a stopped sink has committed: the table has everything
        that events below these report. None for a sink that works, which may commit at any moment.
    """

    def __init__(
        self,
        sink: IcebergConnector,
        events: Callable[[], Sequence[ControlEvent]],
        committed: Callable[[], Mapping[int, int]] | None,
    ) -> None:
        self._sink = sink
        self._read = events
        self._committed = committed
        self._events: Sequence[ControlEvent] | None = None
        self._newest: dict[int, int] = {}

    # See `EnginePositions`. No record is left out on purpose, so records lacking in the branch are found in Kafka.
    line = None

    def is_own(self, summary: Mapping[str, str]) -> bool:
        """Return whether this sink has made a snapshot, by the snapshot's summary."""
        return _COMMIT in summary and self._key in summary

    def is_of_line(self, summary: Mapping[str, str]) -> bool:
        """Return the same as `is_own`: the sink's snapshots do not name single tasks."""
        return self.is_own(summary)

    def at(self, snapshot: BranchSnapshot) -> Mapping[int, int] | None:
        """Return, by partition, the offset after the last record in the branch at a snapshot; None if unknown.

        The offset is unknown if the snapshot's summary lacks the coordinator's offsets, or if the coordinator's events
        are gone from the control topic.
        """
        try:
            until = {int(p): int(o) for p, o in json.loads(snapshot.summary[self._key]).items()}
        except (KeyError, ValueError, TypeError, AttributeError):
            return None
        # Kept for `beyond`: a stopped coordinator may have committed less than its newest snapshot has.
        self._newest = {p: max(until.get(p, 0), self._newest.get(p, 0)) for p in {*until, *self._newest}}
        return self._ends(until) or None

    def beyond(self) -> Mapping[int, int] | None:
        """Return, by partition, the end of the records up to the coordinator's last commit; None if unknown.

        A commit without rows makes no snapshot, so this end may be beyond the newest snapshot. Unknown while the sink
        works.
        """
        if self._committed is None:
            return None
        # The newest snapshot counts, too: a coordinator stopped after the table's commit has not committed its offsets.
        until = self._committed()
        until = {p: max(until.get(p, 0), self._newest.get(p, 0)) for p in {*until, *self._newest}}
        return self._ends(until) or None

    def _ends(self, until: Mapping[int, int]) -> dict[int, int]:
        # The topic is read again only for events that were not there at the last read.
        if self._events is None or any(until[p] > self._read_until(p) for p in until):
            self._events = self._read()
        return ends_below(self._events, self._sink.group, self._sink.topic, until)

    def _read_until(self, partition: int) -> int:
        return max((event.offset + 1 for event in self._events or () if event.partition == partition), default=0)

    @property
    def _key(self) -> str:
        return f"kafka.connect.offsets.{self._sink.control_topic}.{self._sink.group}"


_JSON = "org.apache.kafka.connect.json.JsonConverter"


def proof_of(config: Mapping[str, str], reader: Callable[[], RecordReader], share: float) -> RowProof | None:
    """Return the proof of a sink; None if the share is 0, or if we can't make the sink's rows ourselves.

    :param config: the sink's complete configuration.
    :param reader: opens a reader of the topic.
    :param share: the share of the records that are compared, from 0 to 1.
    """
    if not share:
        return None
    if reason := find_proof_obstacle(config):
        log.warning("The values of the rows are not compared with the extract's values: %s", reason)
        return None
    # Connect's own default is to expect a schema in each value.
    has_schemas = config.get("value.converter.schemas.enable", "true").strip().lower() != "false"
    payload = PayloadFormats(format=ValueFormat.JSON, envelope=ValueEnvelope.CONNECT if has_schemas else None)
    # Records without a row need no proof: the publication counts them as missing.
    return DecodingProof(reader=reader(), decoder=payload.decoder, beyond_rows=False, share=share)


def find_proof_obstacle(config: Mapping[str, str]) -> str:
    """Return the reason against a proof of a sink's rows; empty if we can make the same rows ourselves."""
    names = [name.strip() for name in config.get("transforms", "").split(",")]
    if transforms := [name for name in names if name != POSITION_TRANSFORM]:
        return f"transforms ({', '.join(transforms)}) change them."
    if (converter := config.get("value.converter", "")) != _JSON:
        return f"value.converter is {converter or 'that of the workers'}, and only JsonConverter's rows are compared."
    return ""


_POLL_TIMEOUT_S = 30.0


def head_of(catalog: Catalog, table: str, branch: str) -> str:
    """Return the id of the snapshot at a branch's head; empty without the table or the branch. Raises HeadUnknown."""
    try:
        refs = catalog.load_table(table).refs()
    except NoSuchTableError:
        return ""
    except Exception as e:
        # Any error of a catalog's client becomes HeadUnknown, which does not end the task.
        raise HeadUnknown(f"{table}: the catalog gives no answer ({type(e).__name__}).") from e
    return str(refs[branch].snapshot_id) if branch in refs else ""


class BranchPublisher:
    """Publications of a sink's commits from branch to main, for a task run.

    :param kafka: librdkafka's configuration of the connection.
    :param where: the connection's name, for errors.
    :param group: the consumer group of the ledger entry.
    :param run_id: the same in every try of one task run.
    :param auditor: checks the rows before publication; None for no checks.
    :param share: the share of records, from 0 to 1, whose rows are compared with the extract's before publication.
    """

    def __init__(
        self,
        sink: IcebergConnector,
        catalog: Catalog,
        kafka: Mapping[str, Any],
        where: str,
        group: str,
        run_id: str,
        auditor: RowChecker | None = None,
        share: float = 1.0,
    ) -> None:
        self._sink = sink
        self._catalog = catalog
        self._kafka = dict(kafka)
        self._where = where
        self._group = group
        self._run_id = run_id
        self._auditor = auditor
        self._proof = proof_of(sink.config, self._reader, share)
        self._groups = KafkaGroups(kafka, where)

    def check_table(self) -> None:
        """Refuse a table without the columns for the sink's positions. Raises ConfigRefused."""
        table = self._sink.table
        try:
            columns = load_table(self._catalog, table).schema().column_names
        except NoSuchTableError:
            remedy = "Let KafkaExtractOperator land the topic's first records there: it makes the columns of positions."
            raise ConfigRefused(f"there is no table {table}.", remedy) from None
        if missing := [name for name in POSITIONS if name not in columns]:
            remedy = "They identify the record of a row; an extract creates them with its table."
            raise ConfigRefused(f"the table {table} has no {' and '.join(missing)}.", remedy)

    def begin(self) -> Mapping[int, int]:
        """Prepare table and branch; return, by partition, the first offset that the ledger lacks.

        A consumer group without an origin gets its origin in the ledger here. Raises ConfigRefused, see `check_table`,
        and SinkLacksRecords.
        """
        self.check_table()
        with self._losses_named():
            return begin(self._publication(is_stopped=False))

    def begin_again(self) -> Mapping[int, int]:
        """Reset the branch to main's head; return, by partition, the sink's first offset.

        Raises LandedAhead if the ledger has offsets above the first offset that it lacks: the sink would land these
        twice. Raises SinkLacksRecords, too.
        """
        with self._losses_named():
            return begin_again(self._publication(is_stopped=True))

    def head(self) -> str:
        """Return the id of the branch's head; empty without a branch. Raises HeadUnknown."""
        return head_of(self._catalog, self._sink.table, self._sink.branch)

    def publish(self, published: DriverProgress, is_stopped: bool) -> BatchProgress | None:
        """Publish new commits; return the published batch, or None without new commits.

        :param published: the sums of the batches that earlier calls of this run returned.
        :param is_stopped: whether the sink is stopped: then its coordinator's committed offsets are final.
        """
        started = time.monotonic()
        with self._losses_named():
            report = publish(self._publication(is_stopped))
        return _unreported_batch(report, published, time.monotonic() - started)

    @contextmanager
    def _losses_named(self) -> Iterator[None]:
        """Turn DataLoss into SinkLacksRecords, which names the sink's remedy."""
        try:
            yield
        except DataLoss as e:
            raise SinkLacksRecords(e.ranges, self._sink.table, self._group) from e

    def _publication(self, is_stopped: bool) -> PublicationJob:
        """Return the job of a publication.

        :param is_stopped: whether the connector is stopped, so that its group's committed offsets stand still.
        """
        sink, group = self._sink, self._group
        design = TableDesign(metadata_schema(("topic", "partition", "offset")))
        return PublicationJob(
            run_id=self._run_id,
            table=sink.table,
            consumer_group=group,
            branch=sink.branch,
            engine=LandingEngine.CONNECT,
            source=KafkaSource(self._kafka, sink.topic, group, StartAt(), self._where),
            log=KafkaLogView(self._reader()),
            sink=PublishingSink(self._catalog, sink.table, group, design, self._auditor),
            positions=ConnectPositions(sink, self._events, self._committed if is_stopped else None),
            proof=self._proof,
        )

    def _reader(self) -> KafkaReader:
        return KafkaReader(self._kafka, self._group, poll_timeout=_POLL_TIMEOUT_S, where=self._where)

    def _events(self) -> list[ControlEvent]:
        return events_of(self._groups.records(self._sink.control_topic))

    def _committed(self) -> Mapping[int, int]:
        return self._groups.committed(self._sink.coordinator_group, self._sink.control_topic)


def _unreported_batch(report: LandingReport, published: DriverProgress, seconds: float) -> BatchProgress | None:
    """Return the landings of a report that `published` lacks, as a batch; None if `published` has all of them.

    An earlier try may have ended between its landing and its report: the batch includes that landing.
    """
    before = Counts(
        published.rows_in,
        published.rows_out,
        rejected=published.rejected,
        skipped=published.skipped,
        filtered=published.filtered,
    )
    new = report.counts - before
    landed = report.entry.landed - RangeSet(OffsetRange(*landed_range) for landed_range in published.landed)
    if not landed:
        return None
    return BatchProgress.of(
        *(published.batches, new, new.written, landed, seconds),
        lag=report.remaining_lag,
        snapshot_ids=tuple(map(str, report.snapshot_ids[-1:])),
        at=time.time(),
        tables={report.table: new.written},
    )
