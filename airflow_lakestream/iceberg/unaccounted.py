"""Search of an Iceberg table for rows unknown to all ledgers; see `airflow_lakestream.tables.unaccounted`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.parser import parse
from pyiceberg.manifest import DataFileContent, ManifestEntry
from pyiceberg.table import FileScanTask, ManifestGroupPlanner, Table
from pyiceberg.table.snapshots import Snapshot

from airflow_lakestream.core.landing.unaccounted import ForeignRowQuery, UnaccountedRows
from airflow_lakestream.core.ports import HeadMoved
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.replace.takeout import bounds_of, read_rows
from airflow_lakestream.tables.coordinates import COORDINATES, OFFSET, PARTITION, TOPIC
from airflow_lakestream.tables.unaccounted import CandidateFile, FileUnreadable, find, keeps_positions


def look_for_rows(table: Table, asked: ForeignRowQuery) -> UnaccountedRows:
    """Return the unaccounted rows in the table's head: position deletes are applied, equality deletes are not.

    Raises FileUnreadable, and HeadMoved if another writer has removed the files meanwhile. The result is empty for a
    table whose rows keep no positions.
    """
    snapshot = table.current_snapshot()
    if snapshot is None or not keeps_positions(table.schema().as_arrow()):
        return UnaccountedRows()
    name = ledger_store.name_of(table)
    try:
        return _look(table, snapshot, asked)
    except (FileNotFoundError, FileUnreadable) as e:
        if ledger_store.head_of(table.catalog.load_table(table.name()).metadata) != snapshot.snapshot_id:
            raise HeadMoved(name) from e
        raise e if isinstance(e, FileUnreadable) else FileUnreadable(name, str(e.filename or e), e) from e


def _look(table: Table, snapshot: Snapshot, asked: ForeignRowQuery) -> UnaccountedRows:
    planner = ManifestGroupPlanner(table.metadata, table.io, row_filter=_is_of(asked.topic))
    # PyIceberg plans no scan of a table that has equality deletes, which it can't apply.
    tasks = planner.plan_files(snapshot.manifests(table.io), manifest_entry_filter=_is_no_equality_delete)
    return find(ledger_store.name_of(table), (_to_judge(table, task, asked.topic) for task in tasks), asked)


def _is_of(topic: str) -> BooleanExpression:
    # Kafka's names of topics have no quotes.
    return parse(f"{TOPIC} == '{topic}'")


def _is_no_equality_delete(entry: ManifestEntry) -> bool:
    return entry.data_file.content != DataFileContent.EQUALITY_DELETES


def _to_judge(table: Table, task: FileScanTask, topic: str) -> CandidateFile:
    file, schema = task.file, table.schema()
    ids = [schema.find_field(name).field_id for name in COORDINATES]
    nulls = file.null_value_counts or {}
    return CandidateFile(
        path=file.file_path,
        rows=file.record_count,
        topic=bounds_of(schema, file, TOPIC),
        partition=bounds_of(schema, file, PARTITION),
        offset=bounds_of(schema, file, OFFSET),
        is_whole=not task.delete_files and all(nulls.get(of) == 0 for of in ids),
        read=partial(_rows, table, task, topic),
    )


def _rows(table: Table, task: FileScanTask, topic: str) -> Iterable[pa.Table]:
    return read_rows(table.metadata, table.io, task, columns=COORDINATES, where=_is_of(topic))
