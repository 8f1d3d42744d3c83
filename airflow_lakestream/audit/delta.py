"""The audit of a Delta table: Delta's reading of ledgers and rows, with the same comparison as for Iceberg."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote

import obstore
import pyarrow as pa
import pyarrow.compute as pc
from obstore.exceptions import BaseError

from airflow_lakestream.audit.books import TableLedgers
from airflow_lakestream.audit.keyed import KeyedTable
from airflow_lakestream.audit.quick import look_at_files, look_at_rejects
from airflow_lakestream.audit.result import AuditResult
from airflow_lakestream.audit.rows import RowPositions, UnreadableRows
from airflow_lakestream.audit.run import Audit, find_lost, load_consistent, look_for_positions
from airflow_lakestream.audit.statistics import FileFacts, LostFile, TableFiles, partly
from airflow_lakestream.cdc.delta import entries_of, id_of
from airflow_lakestream.cdc.delta_head import DeltaHead
from airflow_lakestream.cdc.design import key_noted
from airflow_lakestream.core.names import check_location
from airflow_lakestream.core.ports import CannotReplace
from airflow_lakestream.core.routing import refuse_mirror
from airflow_lakestream.delta import ledger_store
from airflow_lakestream.delta.files import Add, read_file
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.delta.reject_table import DeltaMainLedgers
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.delta.takeout import bounds_of, live_files
from airflow_lakestream.tables.coordinates import COORDINATES, TOPIC, is_hit
from airflow_lakestream.tables.positions import OWN_COLUMNS, PositionColumns
from airflow_lakestream.tables.rejects.settlement import RejectSettlement, pending_of, rejects_of


@dataclass(frozen=True, kw_only=True)
class DeltaAudit(Audit):
    """Configuration of an audit of a Delta table; `table` is a path or URI."""

    def check_place(self) -> None:
        """Raise InvalidArgument if `table` is not a valid path or URI of a Delta table."""
        check_location(self.table)

    def run(self, storage: Any) -> AuditResult:
        """Audit the table without a change in Kafka or in the table.

        The result is blind if files of the reject table are lost. If the rows have no positions, only the size of the
        reject table is compared with the ledgers.

        Raises InvalidArgument if the Delta table does not exist, IsMirror, NoLedger, NoPositions, LedgerTakenAway,
        UnreadableRows, and the errors of the Kafka side.
        """
        main, rejects = _both(storage, self.table)
        refuse_mirror(self.table, main.properties, "audited by topic, partition and offset")
        has_positions = look_for_positions(self.table, main.schema.names, main.properties)
        ledgers = self._ledgers(storage, main)
        result = AuditResult(self.table, self.consumer_group, main.version, self.full)
        topics = self.begin(result, ledgers, main.properties)
        files = _statistics(main)
        reject_files = TableFiles() if rejects is None else _statistics(rejects)
        lost = _find_lost(storage, main, files, ledgers)
        if not result.take_lost(lost, [] if rejects is None else _find_lost(storage, rejects, reject_files, ledgers)):
            return result
        lost_paths = {file.path for file in lost}
        adopted = self.adopted(
            result,
            ledgers,
            main.schema,
            main.properties,
            lambda columns: RowPositions.of(_rows(storage, main, lost_paths, None, columns)),
        )
        if not has_positions and not adopted.ranges:
            look_at_rejects(result, ledgers, None if rejects is None else reject_files)
        elif self.full:
            rows = RowPositions.of(_rows(storage, main, lost_paths, self.topic)) if has_positions else RowPositions()
            rejected = (
                RowPositions() if rejects is None else RowPositions.of(_rejected(storage, main, rejects, ledgers))
            )
            self.judge(result, ledgers, rows, rejected, topics, adopted)
        else:
            for head in filter(None, (main, rejects)):
                _check_counted(head)
            look_at_files(result, ledgers, files, topics)
            look_at_rejects(result, ledgers, None if rejects is None else reject_files)
        return result

    def by_key(self, storage: Any) -> tuple[KeyedTable, TableLedgers, int | None]:
        """Open a table by key at its head; return it with the ledgers, and the head's version.

        Raises InvalidArgument if the Delta table does not exist, NoLedger, LedgerTakenAway and UnreadableRows.
        """
        main = storage.open_existing(self.table)
        ledgers = self._ledgers(storage, main)
        lost = _find_lost(storage, main, _statistics(main), ledgers)
        lost_paths, key = {file.path for file in lost}, key_noted(main.properties)
        entries = entries_of(storage, self.table, id_of(main), main.schema, key).open()
        files = [file for file in _files(main) if file["path"] not in lost_paths]
        head = DeltaHead(storage, main, main.schema)
        keyed = KeyedTable(columns=main.schema, key=key, head=head, files=files, entries=entries, lost=lost)
        return keyed, ledgers, main.version

    def _ledgers(self, storage: DeltaStorage, main: DeltaTableHead) -> TableLedgers:
        """Read the ledgers of all groups. Raises NoLedger and LedgerTakenAway."""
        groups = sorted({*ledger_store.groups(main), self.consumer_group})
        for group in groups:
            ledger_store.check_not_taken_away(main, group, storage.store(self.table))
        by_group = {group: ledger_store.read_ledger(main, group) for group in groups}
        return TableLedgers.made(self.table, self.consumer_group, by_group, self.topic)


def _both(storage: DeltaStorage, table: str) -> tuple[DeltaTableHead, DeltaTableHead | None]:
    """Load a table and its reject table (None if absent) in consistent versions."""
    load_rejects = partial(storage.open, rejects_of(table))
    return load_consistent(partial(storage.open_existing, table), load_rejects, lambda head: head.version)


def _files(head: DeltaTableHead) -> Iterator[Add]:
    """Yield the live files. Raises UnreadableRows."""
    try:
        yield from live_files(head)
    except CannotReplace as e:
        raise UnreadableRows(head.table, e) from e


def _find_lost(storage: DeltaStorage, head: DeltaTableHead, files: TableFiles, ledgers: TableLedgers) -> list[LostFile]:
    """Return the lost files, and remove them from `files`. Raises UnreadableRows if the store does not answer."""
    store = storage.store(head.table)

    def size_of(path: str) -> int:
        return int(obstore.head(store, unquote(path))["size"])

    return find_lost(head.table, files, size_of, ledgers, (OSError, BaseError))


def _rows(
    storage: DeltaStorage,
    head: DeltaTableHead,
    without: Collection[str],
    topic: str | None,
    columns: PositionColumns = OWN_COLUMNS,
) -> Iterator[pa.Table]:
    """Yield the positions of the rows of all files. Raises UnreadableRows.

    :param without: the paths of files to leave out.
    :param topic: a topic, or None for the rows of all topics.
    """
    store = storage.store(head.table)
    for add in _files(head):
        try:
            if add["path"] not in without:
                rows = columns.of(read_file(store, add, head.schema, columns.roots))
                yield rows if topic is None else rows.filter(pc.equal(rows[TOPIC], topic))
        except (OSError, BaseError, pa.ArrowException) as e:
            raise UnreadableRows(head.table, e) from e


def _rejected(
    storage: DeltaStorage, main: DeltaTableHead, rejects: DeltaTableHead, ledgers: TableLedgers
) -> Iterator[pa.Table]:
    """Yield the rejected records that count for any group.

    A record counts if it is at a landed offset of the group, from a committed landing that no later one has replaced.
    """
    settlement = RejectSettlement.by(pending_of(rejects.properties), DeltaMainLedgers(main, storage.store(main.table)))
    store = storage.store(rejects.table)
    for add in _files(rejects):
        rows = read_file(store, add, rejects.schema)
        # Rows that do not count: replaced, rolled back, or of a landing that may still be committed.
        open_or_stale = pc.or_(settlement.stale(rows), settlement.undecided(rows))
        for group, identity, entry in ledgers.entries():
            counts = pc.and_(settlement.is_of(rows, group, identity), is_hit(rows, entry.landed))
            yield rows.filter(pc.and_not(counts, open_or_stale))


def _statistics(head: DeltaTableHead) -> TableFiles:
    """Return the live files with their statistics from the log; no data file is opened."""
    return TableFiles([_facts(add) for add in _files(head)])


def _check_counted(head: DeltaTableHead) -> None:
    """Raise UnreadableRows if the log lacks the number of rows of a file, which a quick audit needs."""
    if path := next((add["path"] for add in _files(head) if add["stats"]["numRecords"] is None), None):
        raise UnreadableRows(
            head.table, ValueError(f"its log does not have the number of rows of {path}; --full reads it")
        )


def _facts(add: Add) -> FileFacts:
    """Return a file's statistics from the log."""
    stats, path = add["stats"], add["path"]
    topic, partition, offset = (bounds_of(add, name) for name in COORDINATES)
    rows = stats["numRecords"]
    # Partition values are in the log itself.
    nulls = [0 if name in add["partitionValues"] else stats["nullCount"].get(name) for name in COORDINATES]
    return FileFacts(path, rows or 0, nulls[-1], topic, partition, offset, add["size"], partly(nulls))
