"""`<table>__rejected`: the records that became no row of a table, raw and with the reason.

Written before the commit of the main table, which alone decides what is landed. So a row counts only if its landing is
in the main table's ledger. Until that is known, the landing is noted as pending in a property of this table; a later
landing finds out, and removes what does not count: rows of landings that came to nothing, and rows of ranges that a
later landing brought anew. See ledger.md, section 7.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import CommitTableResponse, FileScanTask, Table
from pyiceberg.table.update import RemovePropertiesUpdate, SetPropertiesUpdate, TableRequirement, TableUpdate

from airflow_lakestream.core import codec
from airflow_lakestream.core.ledger import Landing, TopicIdentity, union
from airflow_lakestream.core.pieces import ranges_from_dict, ranges_to_dict
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.attempt import AppendAttempt, Attempt, CreateAttempt, overwriting
from airflow_lakestream.iceberg.design import TableDesign
from airflow_lakestream.iceberg.files import delete_files, write_data_files
from airflow_lakestream.iceberg.guard import CommitGuard, NotApplied
from airflow_lakestream.iceberg.hits import COORDINATES, is_hit, live_files, may_hold, read_rows
from airflow_lakestream.iceberg.schema import METADATA_PREFIX, to_schema
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.iceberg.transaction import LandingTransaction

log = logging.getLogger(__name__)

SUFFIX = "__rejected"
# With the landing's id and a topic behind it: what is written before the main table has decided.
PENDING = "lakestream.rejects.pending."
# A replace that nobody has heard of for so long is dead: no run takes longer.
DEAD_AFTER_MS = 24 * 3600 * 1000

# Beside what the decoder says of a record.
_OWN = pa.schema(
    [
        ("consumer_group", pa.string()),
        ("topic_id", pa.string()),
        ("run_id", pa.string()),
        ("landing_id", pa.string()),
        ("rejected_at", pa.timestamp("us", "UTC")),
    ]
)
# What says whose a rejected record is.
PLACE = (*COORDINATES, "consumer_group", "topic_id", "landing_id")


def rejects_of(table: str) -> str:
    """Return the name of a table's reject table."""
    return table + SUFFIX


@dataclass(frozen=True, slots=True)
class Pending:
    """A landing whose rejected records are written, and of which the main table was still to decide.

    `supersedes` says that other rows of its ranges were there, to be removed once it is landed.
    """

    landing_id: str
    consumer_group: str
    identity: TopicIdentity
    ranges: RangeSet
    replaces: bool
    supersedes: bool
    at_ms: int

    def encode(self) -> str:
        """Return the text of the property."""
        data = {
            **ranges_to_dict(self.identity, self.ranges),
            "group": self.consumer_group,
            "replaces": self.replaces,
            "supersedes": self.supersedes,
            "at": self.at_ms,
        }
        return json.dumps(data, separators=(",", ":"))

    @property
    def key(self) -> str:
        """The name of the property: one for each topic of a landing."""
        return f"{PENDING}{self.landing_id}/{self.identity.topic}"

    @classmethod
    def decode(cls, key: str, text: str) -> Pending:
        """Read a property. Raises UnreadableLedger."""
        landing_id = key.removeprefix(PENDING).partition("/")[0]
        try:
            data = json.loads(text)
            identity = TopicIdentity(data["topic"], data["id"], data["cluster"])
            ranges = ranges_from_dict(data)
            return cls(
                landing_id, data["group"], identity, ranges, data["replaces"], data["supersedes"], int(data["at"])
            )
        except (KeyError, ValueError, TypeError) as e:
            problem = f"not as this version writes it ({e!r})."
            raise codec.UnreadableLedger(f"table property {key}", problem) from e


def pending_in(table: Table | None) -> list[Pending]:
    """Return the landings that are noted as pending."""
    properties = {} if table is None else table.metadata.properties
    return [Pending.decode(key, text) for key, text in properties.items() if key.startswith(PENDING)]


@dataclass
class Settlement:
    """What the main table has decided of the pending landings: those that are landed, are dead, and may yet land.

    `landed` is in the order of the main table's history.
    """

    landed: list[Pending] = field(default_factory=list)
    dead: list[Pending] = field(default_factory=list)
    open: list[Pending] = field(default_factory=list)
    # Of the main table: they say which groups had other names.
    properties: Mapping[str, str] = field(default_factory=dict)
    # Landings that were rolled back, and may come again while their snapshots live.
    rolled_back: Sequence[str] = ()

    @classmethod
    def of(cls, pending: Iterable[Pending], main: Table | None) -> Settlement:
        """Ask the main table."""
        if main is None:
            return cls(open=list(pending))
        result = cls(properties=main.metadata.properties, rolled_back=ledger_store.rolled_back(main.metadata))
        sequence = {snapshot.snapshot_id: snapshot.sequence_number or 0 for snapshot in main.metadata.snapshots}
        landed: list[tuple[int, int, Pending]] = []
        for one in pending:
            snapshot_id = ledger_store.snapshot_of_landing(main, one.consumer_group, one.landing_id)
            if snapshot_id is not None:
                # Those that have expired are older than all that are alive.
                landed.append((sequence.get(snapshot_id, 0), one.at_ms, one))
            elif one.landing_id not in result.rolled_back:
                (result.dead if _can_not_land(one, main) else result.open).append(one)
        result.landed = [one for *_, one in sorted(landed, key=lambda item: item[:2])]
        return result

    @property
    def is_due(self) -> bool:
        """Whether there are rows to remove."""
        return bool(self.dead) or any(one.supersedes for one in self.landed)

    @property
    def settled(self) -> list[Pending]:
        """Those that need no note any more."""
        return [*self.landed, *self.dead]

    @property
    def ranges(self) -> RangeSet:
        """Where rows to remove may be."""
        return union(one.ranges for one in [*self.dead, *self.landed] if one in self.dead or one.supersedes)

    def stale(self, rows: pa.Table) -> pa.Array:
        """Tell which rows of a reject table do not count, and never will; open landings are left alone."""
        ids = rows["landing_id"]
        stale = pc.is_in(ids, value_set=pa.array([one.landing_id for one in self.dead], pa.string()))
        for number, one in enumerate(self.landed):
            if not one.supersedes:
                continue
            # Of two landings that have the same offsets the later one counts: the earlier was replaced or rolled back.
            earlier = pc.and_(self.is_of(rows, one.consumer_group, one.identity), is_hit(rows, one.ranges))
            for other in (*self.landed[number:], *self.open):
                earlier = pc.and_(earlier, pc.not_equal(ids, other.landing_id))
            stale = pc.or_(stale, earlier)
        return stale

    def is_of(self, rows: pa.Table, consumer_group: str, identity: TopicIdentity) -> pa.ChunkedArray:
        """Tell which rows are of a group, whatever it was called, and of one incarnation of a topic."""
        names = pa.array(ledger_store.names_of(self.properties, consumer_group), pa.string())
        ours = pc.and_(pc.is_in(rows["consumer_group"], names), pc.equal(rows["topic_id"], identity.topic_id))
        return pc.and_(ours, pc.equal(rows["_kafka_topic"], identity.topic))

    def undecided(self, rows: pa.Table) -> pa.ChunkedArray:
        """Tell which rows are of landings that may yet land, or come again."""
        return pc.or_(self.unsettled(rows), self.of_rolled_back(rows))

    def unsettled(self, rows: pa.Table) -> pa.ChunkedArray:
        """Tell which rows are of landings that may yet land."""
        return pc.is_in(rows["landing_id"], value_set=pa.array([one.landing_id for one in self.open], pa.string()))

    def of_rolled_back(self, rows: pa.Table) -> pa.ChunkedArray:
        """Tell which rows are of landings that were rolled back."""
        return pc.is_in(rows["landing_id"], value_set=pa.array(self.rolled_back, pa.string()))


def _can_not_land(one: Pending, main: Table) -> bool:
    if one.replaces:
        # The guard of a replace asks for its ranges to be landed, so the ledger can't tell.
        return time.time() * 1000 - one.at_ms > DEAD_AFTER_MS
    entry = ledger_store.read_ledger(main, one.consumer_group).entry(one.identity)
    return bool(entry.held & one.ranges)


def files_in(table: Table, ranges: RangeSet) -> Iterator[FileScanTask]:
    """Yield the files of a reject table that may have rows of these offsets."""
    return (task for task in live_files(table) if may_hold(table.metadata, task.file, ranges))


def rows_in(table: Table, ranges: RangeSet, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
    """Yield the rows of those files, of other offsets, too."""
    for task in files_in(table, ranges):
        yield from read_rows(table.metadata, table.io, task, columns=columns)


def counting_rows(
    rejects: Table,
    main: Table,
    consumer_group: str,
    *,
    topic: str | None = None,
    ranges: RangeSet | None = None,
    columns: Sequence[str] = (),
) -> Iterator[pa.Table]:
    """Yield the rows that count: of landings that are in the main table's ledger, at offsets that it holds.

    :param topic: only of this topic.
    :param ranges: only at these offsets.
    :param columns: those to read, besides `PLACE`; default: all.
    """
    settlement = Settlement.of(pending_in(rejects), main)
    ledger = ledger_store.read_ledger(main, consumer_group)
    named = tuple(dict.fromkeys((*PLACE, *columns))) if columns else ()
    for identity, entry in ledger.topics.items():
        if topic in (None, identity.topic):
            wanted = entry.landed if ranges is None else entry.landed & ranges
            for rows in rows_in(rejects, wanted, named):
                own = pc.and_(settlement.is_of(rows, consumer_group, identity), is_hit(rows, wanted))
                own = pc.and_not(own, pc.or_(settlement.stale(rows), settlement.undecided(rows)))
                yield rows.filter(own)


def of_topic(records: pa.Table, topic: str) -> pa.Table:
    """Return the rejected records of one topic."""
    same = pc.equal(records["_kafka_topic"], topic)
    return records if pc.all(same).as_py() else records.filter(same)


class RejectTable(IcebergSink):
    """The reject table of one table, as it is written for one consumer group."""

    def __init__(self, catalog: Catalog, table: str, consumer_group: str, records: pa.Schema) -> None:
        metadata = pa.schema([field for field in records if field.name.startswith(METADATA_PREFIX)])
        payload = pa.schema([field for field in records if field.name not in metadata.names])
        design = TableDesign(metadata=metadata, schema=to_schema(pa.schema([*payload, *_OWN])))
        super().__init__(catalog, rejects_of(table), consumer_group, design, allow_group_overlap=True)
        self._add: Sequence[Pending] = ()
        self._settlement = Settlement()

    @property
    def exists(self) -> bool:
        """Whether the table was there at the last look."""
        return self._table is not None

    @property
    def pending(self) -> list[Pending]:
        """The landings that were noted as pending at the last look."""
        return pending_in(self._table)

    def count(self, identity: TopicIdentity, ranges: RangeSet, settlement: Settlement) -> tuple[int, int]:
        """Return how many rows there are of these offsets, but for open landings, and how many of them count."""
        there = counting = 0
        for rows in rows_in(self._table, ranges) if self._table is not None else ():
            own = rows.filter(pc.and_(settlement.is_of(rows, self._group, identity), is_hit(rows, ranges)))
            own = own.filter(pc.invert(settlement.unsettled(own)))
            there += len(own)
            not_counting = pc.or_(settlement.stale(own), settlement.of_rolled_back(own))
            counting += len(own.filter(pc.invert(not_counting)))
        return there, counting

    def write_down(
        self, records: Sequence[pa.Table], pending: Sequence[Pending], run_id: str, settlement: Settlement
    ) -> None:
        """Commit the rejected records of a landing, and note it as pending, by topic; settle others by the way.

        Raises what a commit raises.
        """
        try:
            for part in records:
                for one in pending:
                    self.write(_rows(of_topic(part, one.identity.topic), one, run_id), one.identity)
            if self._table is None and not records:
                raise AssertionError("without rejected records there is nothing to note before the table is there")
            self._add, self._settlement = pending, settlement
            self.commit(Landing(pending[0].landing_id, run_id, {}))
        except BaseException:
            self.discard()
            raise
        finally:
            self._add, self._settlement = (), Settlement()

    def rolled_back(self, settlement: Settlement) -> list[Pending]:
        """Return, as pending ones, the landings with rows here that were rolled back and have no note.

        Without a note they would count as soon as their snapshots have expired.
        """
        ids = set(settlement.rolled_back) - {one.landing_id for one in self.pending}
        found: dict[tuple[str, str, TopicIdentity], RangeSet] = {}
        table = self._table
        if table is None or not ids:
            return []
        for task in live_files(table):
            for part in read_rows(table.metadata, table.io, task, columns=PLACE):
                rows = part.filter(pc.is_in(part["landing_id"], value_set=pa.array(sorted(ids), pa.string())))
                for row in rows.to_pylist():
                    topic, partition, offset, group, topic_id, landing_id = (row[name] for name in PLACE)
                    key = landing_id, group, TopicIdentity(topic, topic_id, "")
                    found[key] = found.get(key, RangeSet()) | RangeSet.of(topic, partition, offset, offset + 1)
        now = time.time_ns() // 1_000_000
        return [Pending(*key, ranges, replaces=True, supersedes=False, at_ms=now) for key, ranges in found.items()]

    def settle(self, settlement: Settlement, pending: Sequence[Pending], run_id: str) -> None:
        """Remove the rows that do not count, and note others, in a commit of its own. Raises what a commit raises."""
        self._settlement, self._add = settlement, pending
        try:
            self.commit(Landing(f"settle-{uuid.uuid4().hex}", run_id, {}))
        except BaseException:
            self.discard()
            raise
        finally:
            self._add, self._settlement = (), Settlement()

    def _attempt(self, landing: Landing) -> Attempt:
        target = self._target(None)
        added = {one.key: one.encode() for one in self._add}
        settled = [one.key for one in self._settlement.settled]
        base = self._change.base if self._change else target.metadata
        guard = _Guard(self._catalog, self._group, landing, base, change=self._change)
        guard.added, guard.settled = added, settled
        summary = codec.encode_summary(self._group, landing)
        if self._table is None:
            assert self._staged is not None
            return CreateAttempt(self._staged, guard, summary, self._change)
        return _Settling(self._catalog, self._name, guard, summary, self._settlement)


class _Guard(CommitGuard):
    """Notes and settles pending landings in the commit; no ledger forbids one."""

    added: Mapping[str, str]
    settled: Sequence[str]

    def _commit(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        if self.added:
            updates = (*updates, SetPropertiesUpdate(updates=dict(self.added)))
        if self.settled:
            # Another landing may have settled them too; a removal of what is not there fails.
            known = self._catalog.load_table(table.name()).metadata.properties
            updates = (*updates, RemovePropertiesUpdate(removals=[key for key in self.settled if key in known]))
        return super()._commit(table, requirements, updates)

    def _not_applied(self, why: str) -> Exception:
        # Not a CommitFailedException: what is to be removed has to be found anew on another head.
        return NotApplied(why)


class _Settling(AppendAttempt):
    """A commit of a reject table that is there: new rows in, rows that do not count out."""

    def __init__(
        self, catalog: Catalog, name: str, guard: _Guard, summary: Mapping[str, str], settlement: Settlement
    ) -> None:
        super().__init__(catalog, name, guard, summary)
        self._settlement = settlement
        self._kept: dict[int | None, list[DataFile]] = {}
        self._io: Any = None

    def _stage(self, transaction: LandingTransaction, table: Table, files: Sequence[DataFile]) -> None:
        out, remainders = self._stale(table)
        if not out:
            super()._stage(transaction, table, files)
            return
        self._io = table.io
        summary = {**self._summary, **transaction.notes}
        with overwriting(transaction, summary, self._producers) as producer:
            self._kept[producer.snapshot_id] = remainders
            for file in out:
                producer.delete_data_file(file)
            for file in (*remainders, *files):
                producer.append_data_file(file)

    def clean_up(self, keep: int | None) -> None:
        """Delete manifests and remainders of the tries that were not applied."""
        super().clean_up(keep)
        unused = [file for snapshot, files in self._kept.items() if snapshot != keep for file in files]
        for path in delete_files(self._io, [file.file_path for file in unused]) if unused else ():
            log.warning("An uncommitted data file could not be deleted: %s", path)

    def _stale(self, table: Table) -> tuple[list[DataFile], list[DataFile]]:
        out: list[DataFile] = []
        remainders: list[DataFile] = []
        if not self._settlement.is_due:
            return out, remainders
        ranges = self._settlement.ranges
        for task in files_in(table, ranges):
            rows = pa.concat_tables(read_rows(table.metadata, table.io, task))
            stale = self._settlement.stale(rows)
            if not pc.any(stale).as_py():
                continue
            out.append(task.file)
            remainders += write_data_files(table.metadata, table.io, rows.filter(pc.invert(stale)), uuid.uuid4().hex)
        return out, remainders


def _rows(records: pa.Table, pending: Pending, run_id: str) -> pa.Table:
    """Return rejected records as rows of the table."""
    made = {
        "consumer_group": pending.consumer_group,
        "topic_id": pending.identity.topic_id,
        "run_id": run_id,
        "landing_id": pending.landing_id,
        "rejected_at": datetime.fromtimestamp(pending.at_ms / 1000, UTC),
    }
    for own in _OWN:
        records = records.append_column(own, pa.repeat(pa.scalar(made[own.name], own.type), len(records)))
    return records
