"""`<table>__rejected`: the records that became no row of a table, raw and with the reason.

Written before the commit of the main table, which alone decides what is landed. So a row counts only if its landing is
in the main table's ledger. Until that is known, the landing is noted as pending in a property of this table; a later
landing finds out, and removes what does not count: rows of landings that came to nothing, and rows of ranges that a
later landing brought anew. See ledger.md, section 7.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import CommitTableResponse, FileScanTask, Table
from pyiceberg.table.update import RemovePropertiesUpdate, SetPropertiesUpdate, TableRequirement, TableUpdate

from airflow_lakestream.core import codec
from airflow_lakestream.core.ledger import Landing, Ledger, TopicIdentity
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.commit.attempt import AppendAttempt, Attempt, CreateAttempt, overwriting
from airflow_lakestream.iceberg.commit.guard import HeadGuard
from airflow_lakestream.iceberg.commit.transaction import LandingTransaction
from airflow_lakestream.iceberg.replace.hits import is_hit, live_files, may_hold, read_rows
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.iceberg.write.files import delete_files, write_data_files
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.rejects import settlement as decided
from airflow_lakestream.tables.rejects.pending import OWN, pending_of, rows_of
from airflow_lakestream.tables.rejects.pending import PLACE as PLACE
from airflow_lakestream.tables.rejects.pending import Pending as Pending
from airflow_lakestream.tables.rejects.pending import of_topic as of_topic
from airflow_lakestream.tables.rejects.pending import rejects_of as rejects_of
from airflow_lakestream.tables.schema.columns import METADATA_PREFIX, to_schema

log = logging.getLogger(__name__)


def pending_in(table: Table | None) -> list[Pending]:
    """Return the landings that are noted as pending."""
    return [] if table is None else pending_of(table.metadata.properties)


class Settlement(decided.Settlement):
    """What an Iceberg table has decided of the pending landings."""

    @classmethod
    def of(cls, pending: Iterable[Pending], main: Table | None) -> Self:
        """Ask the main table; None for one that is not there."""
        return cls.by(pending, None if main is None else _Books(main))


class _Books:
    """`tables.rejects.settlement.MainBooks` of an Iceberg table."""

    def __init__(self, main: Table) -> None:
        self._main = main
        self._sequence = {snapshot.snapshot_id: snapshot.sequence_number or 0 for snapshot in main.metadata.snapshots}
        self.properties: Mapping[str, str] = main.metadata.properties
        self.rolled_back: Sequence[str] = ledger_store.rolled_back(main.metadata)

    def place(self, consumer_group: str, landing_id: str) -> int | None:
        """Return the landing's sequence number, 0 for one that has expired, and below 0 for one known by its id."""
        snapshot_id = ledger_store.snapshot_of_landing(self._main, consumer_group, landing_id)
        if snapshot_id is None:
            ledgers = (self.ledger(group) for group in {consumer_group, *ledger_store.groups(self._main)})
            return next(filter(None, (ledger.noted.place(landing_id) for ledger in ledgers)), None)
        # Those that have expired are older than all that are alive.
        return self._sequence.get(snapshot_id, 0)

    def ledger(self, consumer_group: str) -> Ledger:
        """Return a group's ledger."""
        return ledger_store.read_ledger(self._main, consumer_group)


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


class RejectTable(IcebergSink):
    """The reject table of one table, as it is written for one consumer group."""

    takes_records = False

    def __init__(self, catalog: Catalog, table: str, consumer_group: str, records: pa.Schema) -> None:
        metadata = pa.schema([field for field in records if field.name.startswith(METADATA_PREFIX)])
        payload = pa.schema([field for field in records if field.name not in metadata.names])
        # A table that an earlier version made gets the columns that it lacks.
        schema = to_schema(pa.schema([*payload, *OWN]))
        design = TableDesign(metadata=metadata, schema=schema, evolution=SchemaEvolution.ADD)
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
        """Return how many rows there are of these offsets, and how many of them count.

        Those of open landings are among the first: one of them may land, be rolled back, and have its snapshot expired
        before the landing that asks is there, and nothing would tell its rows from those that count.
        """
        there = counting = 0
        for rows in rows_in(self._table, ranges) if self._table is not None else ():
            own = rows.filter(pc.and_(settlement.is_of(rows, self._group, identity), is_hit(rows, ranges)))
            there += len(own)
            not_counting = pc.or_(settlement.stale(own), settlement.undecided(own))
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
                    self.write(rows_of(of_topic(part, one.identity.topic), one, run_id), one.identity)
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
        return [
            Pending(*key, ranges, replaces=True, supersedes=False, at_ms=now, after=settlement.marks(key[1]))
            for key, ranges in found.items()
        ]

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
        guard = self._guard(landing, _Guard)
        guard.added = {one.key: one.encode() for one in self._add}
        guard.settled = [one.key for one in self._settlement.settled]
        summary = codec.encode_summary(self._group, landing)
        if self._table is None:
            assert self._staged is not None
            return CreateAttempt(self._staged, guard, summary, self._change)
        return _Settling(self._catalog, self._name, guard, summary, self._settlement)


class _Guard(HeadGuard):
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
