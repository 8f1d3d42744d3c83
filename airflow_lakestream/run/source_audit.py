"""Audit of a mirror against the table of its database, with a distinction of wrong rows and rows changed meanwhile.

A row that differs is read again: the mirror's row first, then the database's row, then the topic's events after the
mirror's ledger. If one of these events has the row's key, the row has changed meanwhile. Otherwise, once the topic has
an event of a change after the reading of the database, it has all earlier events, too: the row is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from airflow_lakestream.audit.keyed import KeyedTable, WrongRow
from airflow_lakestream.audit.log import AuditStopped
from airflow_lakestream.audit.result import AuditResult
from airflow_lakestream.audit.run import Audit
from airflow_lakestream.audit.source_database import (
    ARGUMENT,
    DatabaseAddress,
    DatabaseKind,
    SourceDatabase,
    SourceTable,
    key_values,
)
from airflow_lakestream.audit.source_engines import MySqlDatabase, PostgresDatabase
from airflow_lakestream.cdc.columns import OFFSET, PARTITION
from airflow_lakestream.cdc.design import check_debezium, strategy_noted
from airflow_lakestream.cdc.merge.repair import is_among
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.policies import OutOfRange
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.routing import is_of_records
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.run.job import Lake
from airflow_lakestream.run.mirror_audit import MirrorAudit, single_topic

if TYPE_CHECKING:
    from airflow_lakestream.audit.source_comparison import DifferingRows, RowDigests
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import OLD, OP, READ, READ_LAST, TIME
from airflow_lakestream.cdc.events.decoder import EventPayload
from airflow_lakestream.cdc.events.provenance import OldKeyState, expanded
from airflow_lakestream.cdc.rows import RowStrategy
from airflow_lakestream.cdc.stops import MirrorStopped
from airflow_lakestream.core.landing.plan import DamagedBatch, Plan, TopicState
from airflow_lakestream.core.ledger import TopicIdentity
from airflow_lakestream.core.ports import OffsetsGone
from airflow_lakestream.decode.connect.debezium_own import own_record
from airflow_lakestream.decode.values.outcome import pick
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.kafka.source import KafkaSource, StartAt
from airflow_lakestream.tables.row_buffer import no_rows
from airflow_lakestream.tables.row_hashes import Hashes

if TYPE_CHECKING:
    from airflow_lakestream.audit.source_comparison import RowDigests


# Seconds between two reads of the topic.
_POLL_S = 1.0
# Operations of events of many rows, and of events of a snapshot, whose times are not the times of changes.
_MANY_ROWS, _SNAPSHOT = pa.array(["t", READ_LAST]), pa.array([READ, READ_LAST])


@dataclass
class LaterKeys:
    """The wanted keys with a later event, as hashes.

    :param reason: why further keys may have a later event, to continue "the rows differ, and ..."; or None.
    """

    keys: set[int] = field(default_factory=set)
    reason: str | None = None


class LaterEvents:
    """Reader of the events that a mirror has not landed.

    :param config: the mirror's configuration, for decoding.
    :param table: the mirror, for its columns and its key.
    :param patience: seconds to wait for an event of a later change.
    """

    def __init__(
        self,
        audit: Audit,
        config: MirrorConfig,
        table: KeyedTable,
        identity: TopicIdentity,
        digests: RowDigests,
        patience: float,
    ) -> None:
        payload = config.payload
        assert isinstance(payload, EventPayload), "the table is a mirror of events"
        # As for a history: then decoded events have their times.
        names = replace(payload.names, rows=RowStrategy.HISTORY)
        own = set(config.mirror.rows.columns.names)
        columns = pa.schema([column for column in table.columns if column.name not in own])
        self._decoder = replace(payload, key=table.key, names=names, stops=False).decoder(columns)
        self._stop, self._identity, self._digests, self._patience = audit.stop, identity, digests, patience
        kafka, group, where = audit.kafka, audit.consumer_group, audit.where
        self._source = KafkaSource(kafka, identity.topic, group, StartAt(), where, notes_refusals=False)
        self._reader = KafkaReader(kafka, group, poll_timeout=audit.poll_timeout, where=where, parts=payload.parts)

    def read(self, landed: RangeSet, wanted: Hashes, read_at: int) -> LaterKeys:
        """Return the wanted keys with an event that is not landed.

        Until each partition has an event of a change after `read_at`, an event of an earlier change may still come: the
        topic is read again until `patience` is over. Raises AuditStopped.

        :param landed: the mirror's offsets.
        :param wanted: sorted hashes of keys.
        :param read_at: time of the database after the reading of its rows, in milliseconds.
        """
        topic, later, read = self._identity.topic, LaterKeys(), landed
        # By partition, the time of the newest change, in microseconds.
        newest: dict[int, int] = {}
        deadline = time.monotonic() + self._patience
        while True:
            state = self._source.look()
            later.reason = self._problem(state, landed)
            if later.reason is not None:
                return later
            begins = self._begins(state, landed)
            in_kafka = union(RangeSet.of(topic, p, begins[p], marks.end) for p, marks in state.marks.items())
            try:
                for partition, covered, rows in self._events(Plan(state, in_kafka - read)):
                    read |= covered
                    later.keys |= self._keys_of(rows, wanted)
                    newest[partition] = max(newest.get(partition, 0), _newest(rows))
            except (MirrorStopped, DamagedBatch, OffsetsGone, UnreadableEvent) as e:
                later.reason = f"later events can't be read ({e})."
                return later
            if all(newest.get(p, 0) > read_at * 1000 for p in state.marks) or len(later.keys) == len(wanted):
                return later
            if time.monotonic() > deadline:
                later.reason = (
                    f"no event of a later change in each partition of {topic} shows that theirs are not on the way. "
                    "Audit again after a further change; if no event of it comes, the connector does not run."
                )
                return later
            if self._stop.wait(_POLL_S):
                raise AuditStopped

    def _problem(self, state: TopicState, landed: RangeSet) -> str | None:
        """Return the reason why the events after the landed events can't be read, or None."""
        topic = self._identity.topic
        if state.identity != self._identity:
            return f"{topic} was created again."
        begins = self._begins(state, landed)
        gone = union(RangeSet.of(topic, p, begins[p], marks.low) for p, marks in state.marks.items()) - landed
        return f"Kafka has no longer the events of {gone}, which were not landed." if gone else None

    def _begins(self, state: TopicState, landed: RangeSet) -> dict[int, int]:
        """Return each partition's first landed offset, or the log's start: a mirror may lack older events."""
        begins = {}
        for p, marks in state.marks.items():
            first_offsets = (part.from_offset for part in landed.of_partition(self._identity.topic, p))
            begins[p] = min(first_offsets, default=marks.low)
        return begins

    def _events(self, plan: Plan) -> Iterator[tuple[int, RangeSet, pa.Table]]:
        """Yield the events of a plan, with their partition and offsets. Raises UnreadableEvent."""
        if not plan.ranges:
            return
        with closing(self._reader.read(plan, self._stop)) as chunks:
            for chunk in chunks:
                # Without tombstones, each of which follows the event of its row's deletion.
                events = pick(chunk.batch, np.flatnonzero(chunk.batch.values.is_valid().to_numpy(zero_copy_only=False)))
                decoded = self._decoder.decode(events)
                # Debezium's own records, such as heartbeats, are no events of rows.
                bad = [row for row in decoded.bad if own_record(events.values[row.index].as_py()) is None]
                if bad:
                    position = f"partition {chunk.covers.partition}, offset {events.offsets[bad[0].index]}"
                    raise UnreadableEvent(f"{position}: {bad[0].reason}")
                yield chunk.covers.partition, RangeSet([chunk.covers]), expanded(decoded.rows)

    def _keys_of(self, rows: pa.Table, wanted: Hashes) -> set[int]:
        """Return the wanted keys of events; all wanted keys for an event of many rows, or without a known old key."""
        is_unknown = OLD in rows.column_names and pc.any(pc.equal(rows[OLD], str(OldKeyState.UNKNOWN))).as_py()
        if is_unknown or pc.any(pc.is_in(rows[OP], _MANY_ROWS)).as_py():
            return set(wanted.tolist())
        hashes = self._digests.of_keys(rows)
        return set(hashes[is_among(hashes, wanted)].tolist())


class UnreadableEvent(Exception):
    """Error of an event that can't be decoded."""


def _newest(rows: pa.Table) -> int:
    """Return the time of the newest change among events, in microseconds; 0 without a change."""
    changes = rows.filter(pc.invert(pc.fill_null(pc.is_in(rows[OP], _SNAPSHOT), False)))
    return int(pc.max(changes[TIME]).as_py() or 0)


_DATABASES: Mapping[DatabaseKind, Callable[[DatabaseAddress, str], SourceDatabase]] = {
    DatabaseKind.POSTGRES: PostgresDatabase,
    DatabaseKind.MYSQL: MySqlDatabase,
}
# Greatest numbers of looks at rows that differ, and of rows in a report.
_MOST_LOOKS = 5
_MOST_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class SourceAudit:
    """Audit of a mirror against the table of its database.

    :param audit: the table, the group and the Kafka connection.
    :param address: the database.
    :param landing: the arguments of the mirror that decide its rows.
    :param patience: seconds to wait for an event that is newer than the reading of the database.
    """

    audit: Audit
    address: DatabaseAddress
    landing: Mapping[str, Any] = field(default_factory=dict)
    patience: float = 60.0

    def run(self, lake: Lake) -> AuditResult:
        """Audit the mirror, and return the result.

        Raises InvalidArgument for a table that is not the mirror of a single table, or if the database's table can't be
        read, MissingExtra, DatabaseFailed, AuditStopped, and the errors of the audit, of Kafka and of decoding.
        """
        # DuckDB is loaded only for such audits.
        from airflow_lakestream.audit.key_comparison import opened
        from airflow_lakestream.audit.source_comparison import RowDigests, SourceComparison, current_rows

        mirror = MirrorAudit(audit=self.audit, landing=self.landing)
        note = mirror.note(lake)
        source = _source_of(self.audit.table, note, self.landing)
        table, ledgers, snapshot_id = self.audit.by_key(lake)
        audit = self.audit
        result = AuditResult(audit.table, audit.consumer_group, snapshot_id, True, by_key=True, source=source)
        identity = single_topic(result, ledgers)
        if not result.take_lost(table.lost, ()) or identity is None:
            return result
        config = mirror.config(identity.topic, note, audit.table)
        with closing(_DATABASES[self.address.kind](self.address, source)) as database:
            columns, clamped = _compared_columns(table, note, config)
            source_table = database.open_table(source, table.key, columns, config.mirror.renamed)
            digests = RowDigests(table.key, source_table.columns)
            with TemporaryDirectory(prefix="lakestream-audit-") as folder, opened(Path(folder)) as rows:
                comparison = SourceComparison(rows, digests)
                comparison.load("held", self._until_stopped(current_rows(table, source_table.columns.names)))
                comparison.load("base", self._until_stopped(database.chunks(source_table)))
                suspects = comparison.suspects()
            later = LaterEvents(audit, config, table, identity, digests, self.patience)
            looks = SuspectLooks(self, lake, database, source_table, digests, later)
            looks.run(suspects.keys)
        result.notes.append(f"{comparison.rows['held']} rows were compared with {comparison.rows['base']} of {source}.")
        not_compared = {**source_table.not_compared, **clamped}
        if not_compared:
            reasons = ", ".join(f"{name} ({reason})" for name, reason in sorted(not_compared.items()))
            result.made.append(f"columns that were not compared: {reasons}")
        _report(result, looks, suspects.doubled, suspects.left_out, identity.topic)
        return result

    def _until_stopped(self, parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """Yield rows, part by part. Raises AuditStopped on a request to end."""
        for part in parts:
            if self.audit.stop.is_set():
                raise AuditStopped
            yield part


def _source_of(table: str, note: Mapping[str, Any], landing: Mapping[str, Any]) -> str:
    """Return the source table of a mirror. Raises InvalidArgument."""
    source = note.get("source_table")
    if is_of_records(note):
        raise InvalidArgument(ARGUMENT, f"{table} is a table by key, not a mirror of a database's table.")
    check_debezium(ARGUMENT, table, note)
    if not source or landing.get("source_tables"):
        problem = f"{table} has rows of several tables of the database, or none yet."
        raise InvalidArgument(ARGUMENT, problem, "Compare it with its topic: --full.")
    return str(source)


def _compared_columns(
    table: KeyedTable, note: Mapping[str, Any], config: MirrorConfig
) -> tuple[pa.Schema, dict[str, str]]:
    """Return the mirror's columns to compare, and by column that is not compared, the reason."""
    own = strategy_noted(note).columns.names
    columns = [column for column in table.columns if column.name not in own]
    if OutOfRange(config.out_of_range) is not OutOfRange.CLAMP:
        return pa.schema(columns), {}
    clamped = {column.name: "values are clamped" for column in columns if pa.types.is_temporal(column.type)}
    return pa.schema([column for column in columns if column.name not in clamped]), clamped


def _report(result: AuditResult, looks: SuspectLooks, doubled: list[WrongRow], left_out: int, topic: str) -> None:
    """Add the wrong rows, and the rows that could not be compared, to the result."""
    result.wrong = sorted([*doubled, *looks.wrong])
    result.findings += [row.text for row in result.wrong[:_MOST_SHOWN]]
    if len(result.wrong) > _MOST_SHOWN:
        result.findings.append(f"{len(result.wrong) - _MOST_SHOWN} more rows are wrong: --json names them.")
    if looks.changed:
        result.made.append(
            f"{len(looks.changed)} rows changed meanwhile, by events of {topic} that the mirror has not landed or "
            f"landed just now: {_keys(looks.changed)}"
        )
    if looks.unproven:
        result.blind.append(f"{len(looks.unproven)} rows differ, and {looks.reason} {_keys(looks.unproven)}")
    if left_out:
        result.blind.append(
            f"{left_out} more rows differ, and were not looked at again. Land the topic, then audit again."
        )


def _keys(rows: Sequence[WrongRow]) -> str:
    """Return the keys of the first rows as text."""
    keys = [", ".join(f"{name}={value}" for name, value in row.key) for row in rows[:_MOST_SHOWN]]
    return "; ".join([*keys, "..."] if len(rows) > _MOST_SHOWN else keys)


@dataclass
class SuspectLooks:
    """Repeated looks at rows that differ.

    :param wrong: rows that are wrong.
    :param changed: rows that changed meanwhile.
    :param unproven: rows that may have changed meanwhile, for `reason`.
    """

    audit: SourceAudit
    lake: Lake
    database: SourceDatabase
    source: SourceTable
    digests: RowDigests
    later: LaterEvents
    wrong: list[WrongRow] = field(default_factory=list)
    changed: list[WrongRow] = field(default_factory=list)
    unproven: list[WrongRow] = field(default_factory=list)
    reason: str = ""

    def run(self, keys: pa.Table) -> None:
        """Look at the rows of keys, again while rows change and the mirror lands."""
        last_landed: RangeSet | None = None
        for number in range(_MOST_LOOKS):
            if not len(keys):
                return
            landed, changed = self._look(keys)
            self.changed = list(changed.values())
            if landed == last_landed or number == _MOST_LOOKS - 1:
                return
            last_landed = landed
            has_changed = is_among(self.digests.of_keys(keys), np.sort(np.array([*changed], np.uint64)))
            keys = keys.filter(pa.array(has_changed))

    def _look(self, keys: pa.Table) -> tuple[RangeSet, dict[int, WrongRow]]:
        """Return the mirror's offsets, and the rows that changed meanwhile, by the hash of the key.

        Other rows that still differ are added to `wrong` or `unproven`.
        """
        landed, mirror_rows = self._mirror_rows(keys)
        differing = self._compare(keys, mirror_rows)
        read_at = self.database.clock()
        if not differing.faults:
            return landed, {}
        later = self.later.read(landed, np.sort(np.array([*differing.faults], np.uint64)), read_at)
        # Once more: a transaction may be in the log shortly before its rows can be read from the table.
        again = self._compare(keys, mirror_rows)
        changed = {}
        for key_hash, fault in differing.faults.items():
            if key_hash in later.keys or again.base[key_hash] != differing.base[key_hash]:
                changed[key_hash] = fault
            elif later.reason is None:
                self.wrong.append(fault)
            else:
                self.unproven.append(fault)
        self.reason = later.reason or self.reason
        return landed, changed

    def _mirror_rows(self, keys: pa.Table) -> tuple[RangeSet, pa.Table]:
        """Return the offsets that the mirror has now, or never gets, and the mirror's rows of keys."""
        from airflow_lakestream.audit.source_comparison import current_rows, rows_among

        table, ledgers, _ = self.audit.audit.by_key(self.lake)
        # With lost offsets, whose events never come.
        landed = union(entry.landed | entry.lost for _, _, entry in ledgers.entries())
        wanted = np.sort(self.digests.of_keys(keys))
        names = self.source.columns.names
        parts = list(rows_among(self.digests, current_rows(table, names), wanted))
        if parts:
            return landed, pa.concat_tables(parts)
        columns = [*self.source.columns, pa.field(PARTITION, pa.int32()), pa.field(OFFSET, pa.int64())]
        return landed, no_rows(pa.schema(columns))

    def _compare(self, keys: pa.Table, mirror_rows: pa.Table) -> DifferingRows:
        """Compare the mirror's rows of keys with the database's present rows."""
        from airflow_lakestream.audit.source_comparison import differing_rows

        database_rows = self.database.rows_of(self.source, key_values(keys, self.digests.key))
        return differing_rows(self.digests, keys, mirror_rows, database_rows)
