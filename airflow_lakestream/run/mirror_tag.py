"""A tag of one cut through several mirrors: a query over the tags of all tables sees whole transactions.

Each mirror is landed up to exactly the cut, and the snapshot with exactly these offsets gets the tag; landings by
others may go on.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from airflow_lakestream.cdc.columns import COMMIT
from airflow_lakestream.cdc.cut import (
    EVENT_COLUMNS,
    CutObstacle,
    DatabaseCut,
    PartitionTransactions,
    find_cut,
    take_events,
)
from airflow_lakestream.cdc.design import envelope_noted, strategy_noted
from airflow_lakestream.cdc.events.logs import PLACES_PER_ERA, BinaryLogs
from airflow_lakestream.cdc.iceberg_head import IcebergHead
from airflow_lakestream.cdc.merge.memory import SUFFIX
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.job import LandingJob, Stopped
from airflow_lakestream.core.landing.plan import Plan, check_identity, first_hole, reach
from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.names import RecordPart
from airflow_lakestream.core.policies import ValueEnvelope
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.routing import MIRROR
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Transient
from airflow_lakestream.iceberg import fitness, ledger_store
from airflow_lakestream.iceberg.tags import check_tag, set_tag, snapshot_at
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.kafka.source import KafkaSource, StartAt
from airflow_lakestream.lakes import LakeCapability, lake_of
from airflow_lakestream.run.job import Lake, build_job

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
# Offsets before a mirror's end that are read for the transactions that it has.
_LOOK_BACK = 1_000
# The note of the mirror has these, or the command itself.
_KNOWN = {"topic", "table", "consumer_group", "table_format", "envelope", "soft_delete", "history", "history_columns"}


class NoCommonPosition(LakestreamError, Transient):
    """The mirrors have not reached one position of the database in time."""

    def __init__(self, name: str, problem: str, timeout: float) -> None:
        super().__init__(
            f"no table got the tag {name!r}: for {timeout:g} s, {problem}. A later transaction in each topic shows "
            "that all before are there. For tables that seldom change, name offset.storage.topic of Kafka Connect "
            "(--offsets-topic), and set heartbeat.interval.ms of the connector. Is the connector running? If other "
            "runs land these mirrors all the time, pause them."
        )


@dataclass(frozen=True)
class TaggedCut:
    """The tag, the position of the database, and the tagged snapshot of each mirror."""

    name: str
    position: str
    snapshots: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        # As text: browsers would round 64-bit numbers.
        tables = {table: {"snapshot_id": str(one)} for table, one in self.snapshots.items()}
        return {"tag": self.name, "position": self.position, "tables": tables}


@dataclass
class MirrorFollowing:
    """A mirror and its topic, followed for a cut.

    :param job: the landing of the mirror, without bounds.
    :param payload: the format of the events.
    :param partitions: what was read of the topic.
    :param connectors: the connectors named in events.
    :param floor: the greatest position in the mirror's rows.
    """

    catalog: Catalog
    topic: str
    job: LandingJob
    payload: PayloadFormats
    partitions: dict[int, PartitionTransactions] = field(default_factory=dict)
    connectors: set[str] = field(default_factory=set)
    floor: int = -1
    _seen: int | None = None

    def look(self) -> None:
        """Read the mirror's ledger, and the topic up to its present end."""
        table = fitness.load_table(self.catalog, self.job.table)
        ledger, state = ledger_store.read_ledger(table, self.job.consumer_group), self.job.source.look()
        check_identity(ledger, state.identity, self.job.table)
        entry = ledger.entry(state.identity)
        for partition, marks in state.marks.items():
            begin, landed = first_hole(entry, state.identity, partition) - _LOOK_BACK, reach(entry).get(partition, 0)
            found = self.partitions.setdefault(
                partition, PartitionTransactions(self.topic, partition, landed, max(0, begin))
            )
            found.landed, found.at = landed, max(found.at, marks.low)
        ends = {p: marks.end for p, marks in state.marks.items() if self.partitions[p].at < marks.end}
        ranges = union(RangeSet.of(self.topic, p, self.partitions[p].at, end) for p, end in ends.items())
        if ranges:
            decoder = self.payload.decoder(EVENT_COLUMNS)
            with closing(self.job.reader.read(Plan(state, ranges), self.job.stop)) as chunks:
                for chunk in chunks:
                    found = self.partitions[chunk.covers.partition]
                    if len(chunk.batch):
                        self.connectors |= take_events(found, chunk.batch, decoder.decode(chunk.batch))
                    found.at = chunk.covers.until_offset
        if self.job.stop.is_set():
            raise Stopped
        if self._seen != ledger_store.head_of(table.metadata):
            self.floor, self._seen = self._floor_of(table), ledger_store.head_of(table.metadata)

    def land(self, cut: DatabaseCut) -> int | None:
        """Land up to a cut, if needed; return the snapshot with exactly these offsets, or None."""
        identity = self.job.source.identity()
        ends = {partition: cut.ends[self.topic, partition] for partition in self.partitions}
        group = self.job.consumer_group
        if (found := snapshot_at(self._load(), group, identity, ends)) is not None:
            return found
        below = union(RangeSet.of(self.topic, p, 0, end) for p, end in ends.items() if end)
        land(replace(self.job, run_id=f"tag {uuid.uuid4().hex}", within=below))
        return snapshot_at(self._load(), group, identity, ends)

    def _load(self) -> Table:
        return fitness.load_table(self.catalog, self.job.table)

    def _floor_of(self, table: Table) -> int:
        logs = BinaryLogs.of_note(json.loads(table.properties[MIRROR]).get("logs"))
        if logs.seen:
            return logs.top - (len(logs.starts) - 1) * PLACES_PER_ERA
        tables = [table]
        with suppress(NoSuchTableError):
            tables.append(self.catalog.load_table(f"{self.job.table}{SUFFIX}"))
        heads = [IcebergHead(one.metadata, one.metadata, one.io) for one in tables]
        bounds = [head.bounds(file, COMMIT) for head in heads for file in head.files()]
        return max((high for _, high in filter(None, bounds) if high is not None), default=-1)


@dataclass(frozen=True, kw_only=True)
class MirrorTag:
    """Tag of one cut through several mirrors.

    :param name: the tag.
    :param tables: the mirrors, of the topics of one connector.
    :param kafka: librdkafka configuration.
    :param consumer_group: default: the only group with a ledger on the table.
    :param landing: the arguments of the mirrors' landings that decide rows, such as `rename_columns`; empty for none.
        An item with a table's name has further arguments of this table.
    :param offsets_topic: Kafka Connect's `offset.storage.topic`; None takes positions of events alone.
    :param replaces: move an existing tag.
    :param timeout: seconds to wait for a common position.
    :param report: called with progress messages.
    """

    name: str
    tables: Sequence[str]
    kafka: Mapping[str, Any] = field(repr=False)
    where: str = "the Kafka connection"
    consumer_group: str | None = None
    landing: Mapping[str, Any]
    offsets_topic: str | None = None
    replaces: bool = False
    timeout: float = 300
    report: Callable[[str], object] = log.info
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        if not self.name.strip() or not self.tables or len({*self.tables}) < len(self.tables):
            argument = "tables" if self.name.strip() else "name"
            raise InvalidArgument(argument, "is empty, or names a table twice.")
        for table in self.tables:
            lake_of(table).require(LakeCapability.TAGS, "tables", table)
            known = MirrorConfig.__dataclass_fields__.keys() - _KNOWN
            if unknown := sorted(self._arguments(table).keys() - known):
                problem = (
                    f"has {', '.join(unknown)}, which no landing has, which the mirror knows, or which is no table."
                )
                raise InvalidArgument("landing", problem)

    def run(self, lake: Lake) -> TaggedCut:
        """Wait for a common position, land up to it, and tag. Raises NoCommonPosition, and the errors of `follow`."""
        attempt, deadline = self.follow(lake), time.monotonic() + self.timeout
        while isinstance(found := attempt(), CutObstacle):
            self.report(f"Waiting: {found.text}.")
            if time.monotonic() > deadline:
                raise NoCommonPosition(self.name, found.text, self.timeout)
            if self.stop.wait(LOOK_SECONDS):
                raise Stopped
        return found

    def follow(self, lake: Lake) -> Callable[[], TaggedCut | CutObstacle]:
        """Open the mirrors; return a function that looks once, and tags if there is a cut.

        Raises InvalidArgument for a table that is no mirror of Debezium's events, mirrors of several connectors, and a
        name that is taken; the function raises the errors of landings.
        """
        catalog = cast(Catalog, lake)
        mirrors = [self._follow(catalog, table) for table in self.tables]
        stored = None
        if self.offsets_topic is not None:
            stored = ConnectorOffsets(self.kafka, self.where, self.offsets_topic)
        return lambda: self._attempt(catalog, mirrors, stored)

    def _attempt(
        self, catalog: Catalog, mirrors: Sequence[MirrorFollowing], stored: ConnectorOffsets | None
    ) -> TaggedCut | CutObstacle:
        for mirror in mirrors:
            mirror.look()
        position = None
        connector = self._connector(mirrors)
        if stored is not None:
            position = stored.position(connector, self.stop)
            # The stored offset is about records that are in Kafka by now.
            for mirror in mirrors:
                mirror.look()
        partitions = [one for mirror in mirrors for one in mirror.partitions.values()]
        cut = find_cut(partitions, position, {mirror.topic: mirror.floor for mirror in mirrors})
        if isinstance(cut, CutObstacle):
            return cut
        snapshots = dict[str, int]()
        for mirror in mirrors:
            found = mirror.land(cut)
            if found is None:
                return CutObstacle(f"another run landed {mirror.job.table} beyond position {cut.text} meanwhile")
            snapshots[mirror.job.table] = found
            self.report(f"{mirror.job.table}: snapshot {found} is at position {cut.text} of {connector}.")
        self._tag(catalog, snapshots)
        return TaggedCut(self.name, cut.text, snapshots)

    def _tag(self, catalog: Catalog, snapshots: Mapping[str, int]) -> None:
        """Tag the snapshots; after an error no table has the tag, unless the catalog fails again."""
        # Tags to move go first: a mixture with tags of another cut would be none.
        for table in snapshots if self.replaces else ():
            set_tag(catalog, table, self.name, None)
        done = list[str]()
        try:
            for table, snapshot_id in snapshots.items():
                set_tag(catalog, table, self.name, snapshot_id)
                done.append(table)
        except BaseException:
            for table in done:
                set_tag(catalog, table, self.name, None)
            raise

    def _follow(self, catalog: Catalog, name: str) -> MirrorFollowing:
        try:
            table = fitness.load_table(catalog, name)
        except NoSuchTableError:
            raise InvalidArgument("tables", lake_of(name).missing_text(catalog, name)) from None
        note = json.loads(table.properties.get(MIRROR, "null"))
        if note is None or envelope_noted(note) != ValueEnvelope.DEBEZIUM:
            problem = f"{name} is no mirror of Debezium's events, which have positions of the database."
            raise InvalidArgument("tables", problem)
        check_tag(table, self.name, replaces=self.replaces)
        group, topic = self._source(table)
        held: dict[str, Any] = {"soft_delete": bool(note["soft_delete"])}
        if strategy_noted(note).keeps_versions:
            held |= {"history": True, "history_columns": note.get("history_columns")}
        config = MirrorConfig(topic=topic, table=name, consumer_group=group, **held, **self._arguments(name))
        job = build_job(config, self.kafka, catalog, run_id="tag", where=self.where, stop=self.stop)
        values = config.payload
        payload = PayloadFormats(
            format=values.format,
            envelope=values.envelope,
            registry=values.registry,
            writer_schemas=values.writer_schemas,
        )
        return MirrorFollowing(catalog, topic, job, payload)

    def _arguments(self, table: str) -> dict[str, Any]:
        common = {name: value for name, value in self.landing.items() if name not in self.tables}
        return {**common, **self.landing.get(table, {})}

    def _source(self, table: Table) -> tuple[str, str]:
        """Return the mirror's consumer group and topic. Raises InvalidArgument without a single one."""
        name, given = ledger_store.name_of(table), self.consumer_group
        ledgers = {group: ledger_store.read_ledger(table, group) for group in ledger_store.groups(table)}
        groups = [group for group, ledger in ledgers.items() if ledger.topics and given in (None, group)]
        if len(groups) != 1:
            problem = f"{name} has ledgers of {', '.join(ledgers) or 'no group'}."
            raise InvalidArgument("consumer_group", problem, "Say which group is meant.")
        topics = sorted({one.topic for one in ledgers[groups[0]].topics})
        if len(topics) != 1:
            problem = f"{name} is landed from {', '.join(topics)}, and a cut needs one topic of each mirror."
            raise InvalidArgument("tables", problem)
        return groups[0], topics[0]

    def _connector(self, mirrors: Sequence[MirrorFollowing]) -> str:
        """Return the connector's topic.prefix, by events, or by the name of a topic without. Raises InvalidArgument."""
        names = {name: one.job.table for one in mirrors for name in one.connectors or {one.topic.rsplit(".", 2)[0]}}
        if len(names) > 1:
            of = ", ".join(f"{table} of {name}" for name, table in names.items())
            raise InvalidArgument("tables", f"they have several connectors ({of}), whose positions do not compare.")
        return next(iter(names))


_GROUP = "lakestream-connector-offsets"
_FILE_NUMBER = re.compile(r".*\.(\d{1,9})")


class ConnectorOffsets:
    """Stored offsets of all connectors, each record read once.

    :param kafka: librdkafka configuration.
    :param topic: the topic `offset.storage.topic` of Kafka Connect's workers.
    """

    def __init__(self, kafka: Mapping[str, Any], where: str, topic: str) -> None:
        self._source = KafkaSource(kafka, topic, _GROUP, StartAt(), where)
        parts = frozenset({RecordPart.KEY})
        self._reader = KafkaReader(kafka, _GROUP, poll_timeout=30, where=where, parts=parts)
        self._at: dict[int, int] = {}
        # By topic.prefix: the newest record's time, and the offset.
        self._newest: dict[str, tuple[int, Any]] = {}

    def position(self, connector: str, stop: threading.Event) -> int | None:
        """Return a position below which all events are in Kafka, or None if unknown.

        :param connector: the connector's `topic.prefix`.
        """
        state = self._source.look()
        starts = {p: max(marks.low, self._at.get(p, 0)) for p, marks in state.marks.items()}
        topic = state.identity.topic
        ranges = union(RangeSet.of(topic, p, starts[p], m.end) for p, m in state.marks.items() if starts[p] < m.end)
        with closing(self._reader.read(Plan(state, ranges), stop)) as chunks:
            for chunk in chunks:
                keys = [] if chunk.batch.keys is None else chunk.batch.keys.to_pylist()
                for key, value, time_ms in zip(
                    keys, chunk.batch.values.to_pylist(), chunk.batch.timestamps, strict=True
                ):
                    self._take(key, value, time_ms)
                self._at[chunk.covers.partition] = chunk.covers.until_offset
        return position_of(self._newest.get(connector, (0, None))[1])

    def _take(self, key: bytes | None, value: bytes | None, time_ms: int) -> None:
        try:
            _, partition = json.loads(key or b"null")
            server, offset = partition["server"], json.loads(value or b"null")
        except (ValueError, TypeError, KeyError):
            # The offset of another kind of connector.
            return
        # A connector that was made again may have another name, and so another key.
        if time_ms >= self._newest.get(server, (-1, None))[0]:
            self._newest[server] = time_ms, offset


def position_of(offset: Any) -> int | None:
    """Return the position of an offset: all events below were sent before. None for one without, as in a snapshot.

    PostgreSQL: the last commit. Binary logs: the begin of the transaction to go on with.
    """
    if not isinstance(offset, dict) or offset.get("snapshot"):
        return None
    if (commit := offset.get("lsn_commit")) is not None:
        return int(commit)
    match = _FILE_NUMBER.fullmatch(str(offset.get("file")))
    return None if match is None or offset.get("pos") is None else int(match[1]) * 2**32 + int(offset["pos"])
