"""A Delta table's sink with its reject table beside it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import obstore
import pyarrow as pa

from airflow_lakestream.core.ports import SharedSink
from airflow_lakestream.delta.reject_table import DeltaBooks, RejectTable
from airflow_lakestream.delta.storage import Tables
from airflow_lakestream.delta.write.files import delete_files
from airflow_lakestream.tables.rejects import sink
from airflow_lakestream.tables.rejects.settlement import Settlement
from airflow_lakestream.tables.rejects.sink import read_stream, write_stream

log = logging.getLogger(__name__)


class RejectingSink(sink.SharedRejectingSink):
    """`tables.rejects.sink.SharedRejectingSink` on Delta tables.

    :param inner: the sink of the table whose ledger decides.
    :param table: where that table lies.
    :param records: the columns of rejected records.
    """

    def __init__(self, inner: SharedSink, tables: Tables, table: str, consumer_group: str, records: pa.Schema) -> None:
        super().__init__(inner, RejectTable(tables, table, consumer_group, records), consumer_group)
        self._tables, self._name = tables, table

    @cached_property
    def _files(self) -> Any:
        return self._tables.store(self._name)

    def _settlement(self) -> Settlement:
        # Without a reject table there is nothing that could be anybody's.
        head = self._tables.open(self._name) if self._rejects.exists else None
        return Settlement.by(self._rejects.pending, None if head is None else DeltaBooks(head))

    def _new_path(self) -> str:
        name = f"{uuid.uuid4().hex}-rejected.arrows"
        return f"{self._folder.strip('/')}/{name}" if self._folder else name

    def _store(self, path: str, records: pa.Table) -> None:
        obstore.put(self._files, path, write_stream(records), mode="create")

    def _read_handed(self, path: str) -> pa.Table:
        return read_stream(bytes(obstore.get(self._files, path).bytes()))

    def _take_handed(self, path: str) -> pa.Table:
        records = self._read_handed(path)
        for left in self._delete_handed([path]):
            log.warning("Rejected records that were read could not be deleted: %s", left)
        return records

    def _is_there(self, path: str) -> bool:
        try:
            obstore.head(self._files, path)
        except FileNotFoundError:
            return False
        return True

    def _delete_handed(self, paths: Sequence[str]) -> Sequence[str]:
        return delete_files(self._files, [{"path": path} for path in paths])
