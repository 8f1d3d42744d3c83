"""A tag of one cut through several mirrors: a query over the tags of all tables sees whole transactions.

A cut is a position of the database: by partition, the offset behind the last event of transactions up to the position.
Each mirror is landed up to exactly these offsets, and the snapshot with exactly these offsets gets the tag; other
landings may go on.
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

# Seconds between two tries to find a cut.
LOOK_SECONDS = 1.0
# Number of offsets before a mirror's end that are read, too, to learn which transactions the mirror has.
_LOOK_BACK = 1_000
# Arguments of a landing that the mirror's note or the command already contains.
_NOT_OF_USER = {
    "topic",
    "table",
    "consumer_group",
    "table_format",
    "envelope",
    "soft_delete",
    "history",
    "history_columns",
}


class NoCommonPosition(LakestreamError, Transient):
    """Error of mirrors that have not reached a common position of the database in time."""

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
        tables = {table: {"snapshot_id": str(snapshot_id)} for table, snapshot_id in self.snapshots.items()}
        return {"tag": self.name, "position": self.position, "tables": tables}


@dataclass
class MirrorFollowing:
    """A mirror and its topic, read repeatedly until there is a cut.

    :param job: the landing of the mirror, without bounds.
    :param payload: the format of the events.
    :param partitions: the transactions read so far, by partition.
    :param connectors: the connectors named in events.
    :param floor: the greatest position in the mirror's rows; -1 if unknown.
    """

    catalog: Catalog
    topic: str
    job: LandingJob
    payload: PayloadFormats
    partitions: dict[int, PartitionTransactions] = field(default_factory=dict)
    connectors: set[str] = field(default_factory=set)
    floor: int = -1
    # The snapshot with `floor`.
    _floor_head: int | None = None

    def look(self) -> None:
        """Read the mirror's ledger, and the topic from the last look up to its present end. Raises Stopped."""
        table = fitness.load_table(self.catalog, self.job.table)
        ledger, state = ledger_store.read_ledger(table, self.job.consumer_group), self.job.source.look()
        check_identity(ledger, state.identity, self.job.table)
        entry = ledger.entry(state.identity)
        for partition, marks in state.marks.items():
            begin, landed = first_hole(entry, state.identity, partition) - _LOOK_BACK, reach(entry).get(partition, 0)
            new = PartitionTransactions(self.topic, partition, landed, max(0, begin))
            transactions = self.partitions.setdefault(partition, new)
            transactions.landed, transactions.at = landed, max(transactions.at, marks.low)
        ends = {p: marks.end for p, marks in state.marks.items() if self.partitions[p].at < marks.end}
        ranges = union(RangeSet.of(self.topic, p, self.partitions[p].at, end) for p, end in ends.items())
        if ranges:
            decoder = self.payload.decoder(EVENT_COLUMNS)
            with closing(self.job.reader.read(Plan(state, ranges), self.job.stop)) as chunks:
                for chunk in chunks:
                    transactions = self.partitions[chunk.covers.partition]
                    if len(chunk.batch):
                        self.connectors |= take_events(transactions, chunk.batch, decoder.decode(chunk.batch))
                    transactions.at = chunk.covers.until_offset
        if self.job.stop.is_set():
            raise Stopped
        if self._floor_head != (head := ledger_store.head_of(table.metadata)):
            self.floor, self._floor_head = self._floor_of(table), head

    def land(self, cut: DatabaseCut) -> int | None:
        """Land up to a cut, if needed; return the snapshot with exactly these offsets.

        Return None if another run has landed beyond the cut, so that no snapshot has exactly these offsets.
        """
        identity = self.job.source.identity()
        ends = {partition: cut.ends[self.topic, partition] for partition in self.partitions}
        group = self.job.consumer_group
        if (snapshot_id := snapshot_at(self._load(), group, identity, ends)) is not None:
            return snapshot_id
        below = union(RangeSet.of(self.topic, p, 0, end) for p, end in ends.items() if end)
        land(replace(self.job, run_id=f"tag {uuid.uuid4().hex}", within=below))
        return snapshot_at(self._load(), group, identity, ends)

    def _load(self) -> Table:
        return fitness.load_table(self.catalog, self.job.table)

    def _floor_of(self, table: Table) -> int:
        """Return the greatest position in a mirror's rows, by its note or by the bounds of its files; -1 if unknown."""
        logs = BinaryLogs.of_note(json.loads(table.properties[MIRROR]).get("logs"))
        if logs.seen:
            return logs.top - (len(logs.starts) - 1) * PLACES_PER_ERA
        tables = [table]
        with suppress(NoSuchTableError):
            tables.append(self.catalog.load_table(f"{self.job.table}{SUFFIX}"))
        highs = []
        for each in tables:
            head = IcebergHead(each.metadata, each.metadata, each.io)
            bounds = filter(None, (head.bounds(file, COMMIT) for file in head.files()))
            highs += [high for _, high in bounds if high is not None]
        return max(highs, default=-1)


@dataclass(frozen=True, kw_only=True)
class MirrorTag:
    """Tag of one cut through several mirrors.

    :param name: the tag.
    :param tables: the mirrors, of the topics of one connector.
    :param kafka: librdkafka configuration.
    :param consumer_group: default: the only group with a ledger on the table.
    :param landing: the arguments of the mirrors' landings that decide rows, such as `rename_columns`. An item with a
        table's name has other arguments of this table.
    :param offsets_topic: Kafka Connect's `offset.storage.topic`; None: positions are known only from events.
    :param replaces: whether an existing tag is moved.
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
            known = MirrorConfig.__dataclass_fields__.keys() - _NOT_OF_USER
            if unknown := sorted(self._arguments(table).keys() - known):
                problem = (
                    f"has {', '.join(unknown)}, which no landing has, which the mirror knows, or which is no table."
                )
                raise InvalidArgument("landing", problem)

    def run(self, lake: Lake) -> TaggedCut:
        """Wait for a cut, land up to the cut, and tag. Raises NoCommonPosition, Stopped, and the errors of `follow`."""
        attempt, deadline = self.follow(lake), time.monotonic() + self.timeout
        while isinstance(result := attempt(), CutObstacle):
            self.report(f"Waiting: {result.text}.")
            if time.monotonic() > deadline:
                raise NoCommonPosition(self.name, result.text, self.timeout)
            if self.stop.wait(LOOK_SECONDS):
                raise Stopped
        return result

    def follow(self, lake: Lake) -> Callable[[], TaggedCut | CutObstacle]:
        """Open the mirrors; return a function that looks once, and tags if there is a cut.

        Raises InvalidArgument for a table that is not a mirror of Debezium's events, for mirrors of several connectors,
        and for a tag that exists; the function raises the errors of landings.
        """
        catalog = cast(Catalog, lake)
        mirrors = [self._follow(catalog, table) for table in self.tables]
        offsets = None
        if self.offsets_topic is not None:
            offsets = ConnectorOffsets(self.kafka, self.where, self.offsets_topic)
        return lambda: self._attempt(catalog, mirrors, offsets)

    def _attempt(
        self, catalog: Catalog, mirrors: Sequence[MirrorFollowing], offsets: ConnectorOffsets | None
    ) -> TaggedCut | CutObstacle:
        """Look once, and tag if there is a cut; otherwise return the reason."""
        for mirror in mirrors:
            mirror.look()
        position = None
        connector = self._connector(mirrors)
        if offsets is not None:
            position = offsets.position(connector, self.stop)
            # Again: the stored position is about records that may have come after the look.
            for mirror in mirrors:
                mirror.look()
        partitions = [transactions for mirror in mirrors for transactions in mirror.partitions.values()]
        cut = find_cut(partitions, position, {mirror.topic: mirror.floor for mirror in mirrors})
        if isinstance(cut, CutObstacle):
            return cut
        snapshots = dict[str, int]()
        for mirror in mirrors:
            snapshot_id = mirror.land(cut)
            if snapshot_id is None:
                return CutObstacle(f"another run landed {mirror.job.table} beyond position {cut.text} meanwhile")
            snapshots[mirror.job.table] = snapshot_id
            self.report(f"{mirror.job.table}: snapshot {snapshot_id} is at position {cut.text} of {connector}.")
        self._tag(catalog, snapshots)
        return TaggedCut(self.name, cut.text, snapshots)

    def _tag(self, catalog: Catalog, snapshots: Mapping[str, int]) -> None:
        """Tag the snapshots; after an error no table has the tag, unless the catalog fails again."""
        # Old tags are removed first: at no time some tables have the tag of another cut.
        for table in snapshots if self.replaces else ():
            set_tag(catalog, table, self.name, None)
        tagged = list[str]()
        try:
            for table, snapshot_id in snapshots.items():
                set_tag(catalog, table, self.name, snapshot_id)
                tagged.append(table)
        except BaseException:
            for table in tagged:
                set_tag(catalog, table, self.name, None)
            raise

    def _follow(self, catalog: Catalog, name: str) -> MirrorFollowing:
        """Open a mirror. Raises InvalidArgument for a table that can't be tagged."""
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
        noted: dict[str, Any] = {"soft_delete": bool(note["soft_delete"])}
        if strategy_noted(note).keeps_versions:
            noted |= {"history": True, "history_columns": note.get("history_columns")}
        config = MirrorConfig(topic=topic, table=name, consumer_group=group, **noted, **self._arguments(name))
        job = build_job(config, self.kafka, catalog, run_id="tag", where=self.where, stop=self.stop)
        # Only the format: the mirror's payload also has settings for its rows.
        formats = config.payload
        payload = PayloadFormats(
            format=formats.format,
            envelope=formats.envelope,
            registry=formats.registry,
            writer_schemas=formats.writer_schemas,
        )
        return MirrorFollowing(catalog, topic, job, payload)

    def _arguments(self, table: str) -> dict[str, Any]:
        """Return the user's arguments of a table's landing."""
        common = {name: value for name, value in self.landing.items() if name not in self.tables}
        return {**common, **self.landing.get(table, {})}

    def _source(self, table: Table) -> tuple[str, str]:
        """Return the mirror's consumer group and topic. Raises InvalidArgument for several groups or topics."""
        name, wanted = ledger_store.name_of(table), self.consumer_group
        ledgers = {group: ledger_store.read_ledger(table, group) for group in ledger_store.groups(table)}
        groups = [group for group, ledger in ledgers.items() if ledger.topics and wanted in (None, group)]
        if len(groups) != 1:
            problem = f"{name} has ledgers of {', '.join(ledgers) or 'no group'}."
            raise InvalidArgument("consumer_group", problem, "Say which group is meant.")
        topics = sorted({identity.topic for identity in ledgers[groups[0]].topics})
        if len(topics) != 1:
            problem = f"{name} is landed from {', '.join(topics)}, and a cut needs one topic of each mirror."
            raise InvalidArgument("tables", problem)
        return groups[0], topics[0]

    def _connector(self, mirrors: Sequence[MirrorFollowing]) -> str:
        """Return the connector's topic.prefix, by events, or else by the topic's name. Raises InvalidArgument."""
        table_of = dict[str, str]()
        for mirror in mirrors:
            for connector in mirror.connectors or {mirror.topic.rsplit(".", 2)[0]}:
                table_of[connector] = mirror.job.table
        if len(table_of) > 1:
            names = ", ".join(f"{table} of {connector}" for connector, table in table_of.items())
            raise InvalidArgument("tables", f"they have several connectors ({names}), whose positions do not compare.")
        return next(iter(table_of))


_OFFSETS_GROUP = "lakestream-connector-offsets"
_FILE_NUMBER = re.compile(r".*\.(\d{1,9})")


class ConnectorOffsets:
    """The offsets that Kafka Connect has stored for all connectors; each record of the topic is read once.

    :param kafka: librdkafka configuration.
    :param topic: the topic `offset.storage.topic` of Kafka Connect's workers.
    """

    def __init__(self, kafka: Mapping[str, Any], where: str, topic: str) -> None:
        self._source = KafkaSource(kafka, topic, _OFFSETS_GROUP, StartAt(), where)
        parts = frozenset({RecordPart.KEY})
        self._reader = KafkaReader(kafka, _OFFSETS_GROUP, poll_timeout=30, where=where, parts=parts)
        # By partition, the next offset to read.
        self._next_offsets: dict[int, int] = {}
        # By topic.prefix, the newest record's time in milliseconds, and the stored offset.
        self._newest: dict[str, tuple[int, Any]] = {}

    def position(self, connector: str, stop: threading.Event) -> int | None:
        """Return a position below which all events are in Kafka, or None if unknown.

        :param connector: the connector's `topic.prefix`.
        """
        state = self._source.look()
        starts = {p: max(marks.low, self._next_offsets.get(p, 0)) for p, marks in state.marks.items()}
        topic = state.identity.topic
        ranges = union(RangeSet.of(topic, p, starts[p], m.end) for p, m in state.marks.items() if starts[p] < m.end)
        with closing(self._reader.read(Plan(state, ranges), stop)) as chunks:
            for chunk in chunks:
                batch = chunk.batch
                keys = [] if batch.keys is None else batch.keys.to_pylist()
                for key, value, time_ms in zip(keys, batch.values.to_pylist(), batch.timestamps, strict=True):
                    self._add(key, value, time_ms)
                self._next_offsets[chunk.covers.partition] = chunk.covers.until_offset
        _, newest = self._newest.get(connector, (0, None))
        return position_of(newest)

    def _add(self, key: bytes | None, value: bytes | None, time_ms: int) -> None:
        """Keep the stored offset of a record, if the record is its connector's newest."""
        try:
            _, partition = json.loads(key or b"null")
            server, offset = partition["server"], json.loads(value or b"null")
        except (ValueError, TypeError, KeyError):
            # The offset of a connector other than Debezium's.
            return
        # By time: a connector that was created again may have another name, and so another key in the topic.
        if time_ms >= self._newest.get(server, (-1, None))[0]:
            self._newest[server] = time_ms, offset


def position_of(offset: Any) -> int | None:
    """Return the log position in a stored offset, below which all events were sent; None during a snapshot.

    For PostgreSQL this is the last commit, for binary logs the beginning of the next transaction.
    """
    if not isinstance(offset, dict) or offset.get("snapshot"):
        return None
    if (commit := offset.get("lsn_commit")) is not None:
        return int(commit)
    match = _FILE_NUMBER.fullmatch(str(offset.get("file")))
    return None if match is None or offset.get("pos") is None else int(match[1]) * 2**32 + int(offset["pos"])
