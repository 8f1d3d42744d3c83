"""The audit of a Delta table: other ways to its ledgers and rows, the same judgement as of an Iceberg table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from airflow_lakestream.audit.books import Books
from airflow_lakestream.audit.quick import look_at_files, look_at_rejects
from airflow_lakestream.audit.result import AuditResult
from airflow_lakestream.audit.rows import NoPositions, RowsFound, UnreadableTable
from airflow_lakestream.audit.run import Audit
from airflow_lakestream.audit.statistics import FileFacts, TableFiles
from airflow_lakestream.coordinates import COORDINATES, OFFSET, PARTITION, TOPIC, is_hit
from airflow_lakestream.core.mirrors import refuse_mirror
from airflow_lakestream.core.ports import CannotReplace
from airflow_lakestream.delta import ledger_store
from airflow_lakestream.delta.files import Add, read_file
from airflow_lakestream.delta.head import Head
from airflow_lakestream.delta.location import check_location
from airflow_lakestream.delta.reject_table import DeltaBooks
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.delta.takeout import live_files
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.rejects.pending import pending_of, rejects_of
from airflow_lakestream.rejects.settlement import Settlement


@dataclass(frozen=True, kw_only=True)
class DeltaAudit(Audit):
    """What to audit; `table` is the path or URI of a Delta table."""

    def check_place(self) -> None:
        """Raise InvalidArgument for what can't be the place of a Delta table."""
        check_location(self.table)

    def look(self, storage: DeltaStorage) -> AuditResult:
        """Look. Nothing is changed, in Kafka or in the table.

        Raises InvalidArgument where there is no Delta table, IsMirror, NoLedger, NoPositions, LedgerTakenAway,
        UnreadableTable, and the errors of the Kafka side.
        """
        main, rejects = _both(storage, self.table)
        refuse_mirror(self.table, main.properties, "audited by topic, partition and offset")
        if missing := [name for name in COORDINATES if name not in main.schema.names]:
            raise NoPositions(self.table, missing)
        for group in sorted({*ledger_store.groups(main), self.consumer_group}):
            ledger_store.check_not_taken_away(main, group, storage.store(self.table))
        groups = sorted({*ledger_store.groups(main), self.consumer_group})
        ledgers = {group: ledger_store.read_ledger(main, group) for group in groups}
        books = Books.made(self.table, self.consumer_group, ledgers, self.topic)
        result = AuditResult(self.table, self.consumer_group, main.version, self.full)
        topics = self.begin(result, books)
        if self.full:
            rows = _count(_rows(storage, main), self.topic)
            rejected = RowsFound() if rejects is None else _rejected(storage, main, rejects, books)
            self.judge(result, books, rows, rejected, topics)
        else:
            look_at_files(result, books, _statistics(main), topics)
            look_at_rejects(result, books, None if rejects is None else _statistics(rejects))
        return result


def _both(storage: DeltaStorage, table: str) -> tuple[Head, Head | None]:
    """Load a table and its reject table, None without one, as they belong together."""
    main = _open(storage, table)
    while True:
        rejects = storage.open(rejects_of(table))
        again = _open(storage, table)
        # Rejected records are removed after a commit to the main table: what was loaded before it would lack them.
        if again.version == main.version:
            return main, rejects
        main = again


def _open(storage: DeltaStorage, table: str) -> Head:
    head = storage.open(table)
    if head is None:
        raise InvalidArgument("table", f"there is no Delta table at {table}.")
    return head


def _files(head: Head) -> Iterator[Add]:
    try:
        yield from live_files(head)
    except CannotReplace as e:
        raise UnreadableTable(head.table, e) from e


def _rows(storage: DeltaStorage, head: Head) -> Iterator[Any]:
    store = storage.store(head.table)
    return (read_file(store, add, head.schema, COORDINATES) for add in _files(head))


def _count(parts: Iterator[Any], topic: str | None) -> RowsFound:
    found = RowsFound()
    for rows in parts:
        wanted = rows if topic is None else rows.filter(pc.equal(rows[TOPIC], topic))
        for batch in wanted.to_batches():
            found.add(batch)
    return found


def _rejected(storage: DeltaStorage, main: Head, rejects: Head, books: Books) -> RowsFound:
    """Count by position the rejected records that count for any of the groups."""
    settlement = Settlement.by(pending_of(rejects.properties), DeltaBooks(main))
    store, found = storage.store(rejects.table), RowsFound()
    for add in _files(rejects):
        rows = read_file(store, add, rejects.schema)
        open_or_stale = pc.or_(settlement.stale(rows), settlement.undecided(rows))
        for group, identity, entry in books.entries():
            own = pc.and_(settlement.is_of(rows, group, identity), is_hit(rows, entry.landed))
            for batch in rows.filter(pc.and_not(own, open_or_stale)).select(COORDINATES).to_batches():
                found.add(batch)
    return found


def _statistics(head: Head) -> TableFiles:
    """Read what the log says of the live files: no data file is opened."""
    return TableFiles([_facts(head, add) for add in _files(head)])


def _facts(head: Head, add: Add) -> FileFacts:
    stats, path = add["stats"], add["path"]
    topic, partition, offset = (_bounds(add, name) for name in COORDINATES)
    if (text := add["partitionValues"].get(TOPIC)) is not None:
        topic = text, text
    if (text := add["partitionValues"].get(PARTITION)) is not None:
        partition = int(text), int(text)
    rows = stats["numRecords"]
    if rows is None:
        raise UnreadableTable(head.table, ValueError(f"its log does not say how many rows {path} has; --full reads it"))
    return FileFacts(path, rows, stats["nullCount"].get(OFFSET), topic, partition, offset)


def _bounds(add: Add, name: str) -> Any:
    low, high = (add["stats"][which].get(name) for which in ("minValues", "maxValues"))
    return None if low is None or high is None else (low, high)
