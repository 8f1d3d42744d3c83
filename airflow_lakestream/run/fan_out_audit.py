"""Audit of all tables of a fan-out by its home, the table with the ledger of all.

Each record has to be once in the table that its value names, or to be rejected.

The rows of all tables together are compared with the home's ledger as the rows of a single table are. If the template
of the tables is known, each record is decoded and routed again, and compared with the table that has its row.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pyarrow.compute as pc
from pyiceberg.table import Table

from airflow_lakestream.audit.books import TableLedgers
from airflow_lakestream.audit.quick import look_at_files, look_at_rejects
from airflow_lakestream.audit.result import AuditResult
from airflow_lakestream.audit.rows import AdoptedRows, RowPositions, UnreadableRows, count_rejected, count_rows
from airflow_lakestream.audit.run import Audit, TableMissing, find_lost, load, load_both
from airflow_lakestream.audit.source_database import ARGUMENT, DatabaseAddress
from airflow_lakestream.audit.statistics import LostFile, TableFiles, table_files
from airflow_lakestream.audit.tally import OffsetTally, TallySegments
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.policies import OnError
from airflow_lakestream.core.ports import RecordChunk, RecordReader
from airflow_lakestream.core.ranges import Interval, PartitionKey, RangeSet, shown
from airflow_lakestream.core.routing import MIRROR, ROUTE_OFFSET, SEPARATOR
from airflow_lakestream.decode.metadata import RecordRouter
from airflow_lakestream.decode.rows import RowDecoderFactory
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.fan_out.books import BOOKS, HomeNotes
from airflow_lakestream.iceberg.fan_out.share import by_route
from airflow_lakestream.iceberg.upkeep.narrow_bounds import wrong_bounds
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.run.job import Lake
from airflow_lakestream.run.mirror_audit import MirrorAudit
from airflow_lakestream.run.source_audit import SourceAudit
from airflow_lakestream.tables.schema.columns import payload_schema

_MOST_SHOWN = 10
Tallies = dict[PartitionKey, OffsetTally]


def takes_landing(lake: Lake, table: str) -> bool:
    """Return whether the audit of a table decodes records: for a mirror, a table by key, or the home of a fan-out."""
    return not {MIRROR, BOOKS}.isdisjoint(_properties(lake, table))


def is_mirror(lake: Lake, table: str) -> bool:
    """Return whether a table is a mirror, or a table by key."""
    return MIRROR in _properties(lake, table)


def audit_of(
    audit: Audit, lake: Lake, landing: Mapping[str, Any], address: DatabaseAddress | None = None
) -> Audit | MirrorAudit | SourceAudit:
    """Return the audit for the table's kind. Raises InvalidArgument for a wrong argument.

    :param landing: the arguments of the landing that decide rows; for a fan-out, `table` is the template of its tables.
    :param address: the database to compare a mirror with; None to compare the mirror with its topic.
    """
    properties = _properties(lake, audit.table)
    if address is not None:
        if MIRROR not in properties:
            raise InvalidArgument(ARGUMENT, f"{audit.table} is not a mirror of a database's table.")
        return SourceAudit(audit=audit, address=address, landing=landing)
    if MIRROR in properties:
        return MirrorAudit(audit=audit, landing=landing)
    notes = HomeNotes.of(properties)
    if notes is None:
        return audit
    common = {"topic": notes.topic, "consumer_group": audit.consumer_group, "home_table": audit.table}
    config = ExtractConfig(**{**landing, **common}) if "table" in landing else None
    if config is not None and config.fan_out is None:
        raise InvalidArgument("table", f"{config.table!r} has no placeholder, and {audit.table} is a fan-out's home.")
    return FanOutAudit(**{field_.name: getattr(audit, field_.name) for field_ in fields(Audit)}, config=config)


def _properties(lake: Lake, table: str) -> Mapping[str, str]:
    return lake_of(table).part("swap").properties_of(lake, table) or {}


@dataclass(frozen=True, kw_only=True)
class FanOutAudit(Audit):
    """Audit of a fan-out; `table` is the fan-out's home.

    :param config: the landing's configuration, with the template of the tables; None: rows are not compared with the
        tables that their records name.
    :param routing: the reader of records that notes these tables, made by `run`.
    """

    config: ExtractConfig | None = None
    routing: RecordRouting | None = None

    def run(self, catalog: Any) -> AuditResult:
        """Audit all tables of the fan-out, without a change of any table.

        Raises the errors of `Audit.run`, and of decoding.
        """
        home, rejects = load_both(catalog, self.table)
        notes = HomeNotes.of(home.metadata.properties)
        assert notes is not None, "the table is a fan-out's home"
        ledgers = TableLedgers.of(home, self.consumer_group, self.topic)
        head = ledger_store.facts_of(home.metadata).head_id
        result = AuditResult(self.table, self.consumer_group, head, self.full)
        topics = self.begin(result, ledgers, home.metadata.properties)
        targets = list(self._targets(catalog, result, ledgers, notes))
        reject_files = TableFiles() if rejects is None else table_files(rejects, ledger_store.head_of(rejects.metadata))
        lost_rejects = [] if rejects is None else _find_lost(rejects, reject_files, ledgers)
        if not result.take_lost([lost for target in targets for lost in target.lost], lost_rejects):
            return result
        for target in targets:
            result.wrong_bounds += target.wrong_bounds()
        if not self.full:
            data_files = [file for target in targets for file in target.files.data]
            delete_files = [file for target in targets for file in target.files.deletes]
            files = TableFiles(data_files, delete_files)
            look_at_files(result, ledgers, files, topics)
            look_at_rejects(result, ledgers, None if rejects is None else reject_files)
            return result
        rows = {target.name: target.rows(self.topic) for target in targets}
        rejected = RowPositions() if rejects is None else count_rejected(rejects, home, ledgers.ledgers, self.topic)
        routing = None if self.config is None else RecordRouting.of(self, self.config, home)
        look = replace(self, routing=routing)
        look.judge(result, ledgers, _joined_rows(rows.values()), rejected, topics, AdoptedRows())
        if routing is None:
            result.notes.append(
                "rows were not compared with the tables that their values name: give the template of the tables, such "
                'as --table "lake.{event}", with the arguments of the landing.'
            )
        else:
            result.findings += routing.misplaced({name: positions.tallies for name, positions in rows.items()})
        return result

    def reader(self) -> RecordReader:
        """Return the reader of the topic's records."""
        return super().reader() if self.routing is None else self.routing

    def _targets(
        self, catalog: Any, result: AuditResult, ledgers: TableLedgers, notes: HomeNotes
    ) -> Iterator[AuditedTarget]:
        """Yield the tables of the fan-out; a dropped table becomes a finding."""
        for name in sorted(notes.tables):
            try:
                table = load(catalog, name)
            except TableMissing as e:
                result.findings.append(str(e))
                continue
            by_group = {group: ledger_store.read_ledger(table, group) for group in ledger_store.groups(table)}
            own = by_group.pop(self.consumer_group, None)
            topics = {identity.topic for identity in ledgers.own.topics}
            others = sorted(
                group for group, ledger in by_group.items() if topics & {identity.topic for identity in ledger.topics}
            )
            if others:
                result.blind.append(
                    f"{name} has rows of {', '.join(topics)} by the consumer group {', '.join(others)}, too: they "
                    "can't be distinguished from those of the fan-out."
                )
            # A run commits the home last: offsets that only the table has are not landed yet.
            pending = union(entry.landed for entry in own.topics.values()) if own is not None else RangeSet()
            pending -= union(ledgers.landed_by_anyone(topic) for topic in topics)
            files = table_files(table, ledger_store.facts_of(table.metadata).head_id)
            yield AuditedTarget(name, table, files, _find_lost(table, files, ledgers), pending)


def _find_lost(table: Table, files: TableFiles, ledgers: TableLedgers) -> list[LostFile]:
    return find_lost(".".join(table.name()), files, lambda path: len(table.io.new_input(path)), ledgers)


@dataclass(frozen=True)
class AuditedTarget:
    """A table of a fan-out.

    :param files: the table's files without lost files.
    :param pending: landed offsets that the home does not have yet.
    """

    name: str
    table: Table
    files: TableFiles
    lost: list[LostFile]
    pending: RangeSet

    @property
    def _head(self) -> int | None:
        return ledger_store.facts_of(self.table.metadata).head_id

    def wrong_bounds(self) -> list[Any]:
        """Return the files with wrong bounds. Raises UnreadableRows."""
        try:
            return list(wrong_bounds(self.table, self._head, [file.path for file in self.lost]))
        except OSError as e:
            raise UnreadableRows(self.name, e) from e

    def rows(self, topic: str | None) -> RowPositions:
        """Return the rows by position, without pending offsets. Raises NoPositions and UnreadableRows."""
        positions = count_rows(self.table, self._head, topic, [file.path for file in self.lost])
        for key, tally in positions.tallies.items():
            positions.tallies[key] = _without_intervals(tally, self.pending.intervals(*key))
        return positions


def _without_intervals(tally: OffsetTally, intervals: Sequence[Interval]) -> OffsetTally:
    """Return a tally without the offsets of the intervals."""
    if not intervals:
        return tally
    # The windows between the intervals; None: no bound.
    start: int | None = None
    remaining = OffsetTally()
    for begin, end in intervals:
        remaining, start = remaining + tally.window(start, begin), end
    return remaining + tally.window(start, None)


def _joined_rows(parts: Iterable[RowPositions]) -> RowPositions:
    """Return the rows of several tables together, as of a single table."""
    joined = RowPositions()
    for part in parts:
        joined.without_position += part.without_position
        for key, tally in part.tallies.items():
            joined.tallies[key] = joined.tallies[key] + tally if key in joined.tallies else tally
        for impossible in part.impossible:
            joined.add_impossible(impossible)
    return joined


@dataclass
class RecordRouting:
    """`core.ports.RecordReader` that notes, for each table, the offsets of the records that name the table."""

    inner: RecordReader
    decoder: Any
    router: RecordRouter
    tables: dict[str, Tallies] = field(default_factory=dict)

    @classmethod
    def of(cls, audit: Audit, config: ExtractConfig, home: Table) -> RecordRouting:
        """Return the reader for a landing's configuration; rows are decoded into the columns of the home.

        Raises InvalidArgument for columns that do not fit the configuration.
        """
        assert config.fan_out is not None, "the template of the tables has placeholders"
        # Without refusals of tables: a record names its table even if the run that landed it was refused the table.
        router = RecordRouter(config.fan_out.template, lambda routes, rows: {})
        sql = None if config.statement is None else config.statement.transform
        metadata, tombstones = tuple(config.metadata_columns), config.tombstone_policy
        decoders = RowDecoderFactory(
            config.payload, metadata, router, OnError.REJECT, tombstones, sql, columns=config.decoded
        )
        schema = payload_schema(home.schema(), config.design.metadata.names)
        reader = KafkaReader(
            audit.kafka, audit.consumer_group, poll_timeout=audit.poll_timeout, where=audit.where, parts=decoders.parts
        )
        return cls(reader, decoders(schema, None), router)

    def read(self, plan: Plan, cancelled: threading.Event) -> Generator[RecordChunk, None, None]:
        """Yield the plan's records; see `core.ports.RecordReader`."""
        with closing(self.inner.read(plan, cancelled)) as chunks:
            for chunk in chunks:
                key = plan.state.identity.topic, chunk.covers.partition
                rows = self.decoder.decode(chunk.batch).rows
                for route, part in by_route(rows) if len(rows) else ():
                    name = self.router.template.table(route.split(SEPARATOR))
                    tally = self.tables.setdefault(name, {}).setdefault(key, OffsetTally())
                    tally.add_offsets(part[ROUTE_OFFSET].combine_chunks())
                yield chunk

    def misplaced(self, rows: Mapping[str, Tallies]) -> list[str]:
        """Return sentences about rows that are in another table than their records name.

        :param rows: by table, the tallies of the rows' offsets.
        """
        sentences = []
        for name, tallies in rows.items():
            for key, tally in sorted(tallies.items()):
                for other, expected in sorted(self.tables.items()):
                    if other == name or key not in expected:
                        continue
                    own = self.tables.get(name, {}).get(key, OffsetTally())
                    segments = TallySegments({"rows": tally, "other": expected[key], "own": own})
                    counts = segments.counts
                    has_row, names_other = pc.greater(counts["rows"], 0), pc.greater(counts["other"], 0)
                    is_wrong = pc.and_(pc.and_(has_row, names_other), pc.equal(counts["own"], 0))
                    if ranges := segments.where(is_wrong):
                        texts = shown([f"[{start},{end})" for start, end in ranges], _MOST_SHOWN)
                        topic, partition = key
                        sentences.append(
                            f"misplaced: {name} has rows of {topic}[{partition}] {texts}, whose values name {other}"
                        )
        return sentences
