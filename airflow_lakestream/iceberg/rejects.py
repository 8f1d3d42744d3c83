"""An Iceberg table's sink with its reject table beside it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.table import Table

from airflow_lakestream.core.ports import Sink
from airflow_lakestream.iceberg.reject_table import RejectTable, Settlement
from airflow_lakestream.iceberg.write.files import data_folder, delete_files
from airflow_lakestream.tables.rejects import sink
from airflow_lakestream.tables.rejects.sink import read_stream, write_stream

log = logging.getLogger(__name__)


class OneWorkerRejectingSink(sink.RejectingSink):
    """`tables.rejects.sink.RejectingSink` on Iceberg tables.

    :param inner: the sink of the table whose ledger decides.
    :param table: that table's name.
    :param records: the columns of rejected records.
    """

    def __init__(self, inner: Sink, catalog: Catalog, table: str, consumer_group: str, records: pa.Schema) -> None:
        super().__init__(inner, RejectTable(catalog, table, consumer_group, records), consumer_group)
        self._catalog = catalog
        self._name = table

    def _settlement(self) -> Settlement:
        pending = self._rejects.pending
        try:
            # Without a reject table there is nothing that could be anybody's.
            return Settlement.of(pending, self._main() if self._rejects.exists else None)
        except NoSuchTableError:
            return Settlement.of(pending, None)

    def _main(self) -> Table:
        return self._catalog.load_table(self._name)


class RejectingSink(OneWorkerRejectingSink, sink.SharedRejectingSink):
    """`tables.rejects.sink.SharedRejectingSink` on Iceberg tables; `inner` is a shared sink, too."""

    def _new_path(self) -> str:
        return f"{data_folder(self._main().metadata, self._folder)}/{uuid.uuid4().hex}-rejected.arrows"

    def _store(self, path: str, records: pa.Table) -> None:
        with self._main().io.new_output(path).create() as stream:
            stream.write(write_stream(records))

    def _read_handed(self, path: str) -> pa.Table:
        return _read_records(self._main().io, path)

    def _take_handed(self, path: str) -> pa.Table:
        # The table may be one that the commit is to create: nobody but the inner sink knows it yet.
        io = self.inner.outline().io
        records = _read_records(io, path)
        for left in delete_files(io, [path]):
            log.warning("Rejected records that were read could not be deleted: %s", left)
        return records

    def _is_there(self, path: str) -> bool:
        return self._main().io.new_input(path).exists()

    def _delete_handed(self, paths: Sequence[str]) -> Sequence[str]:
        try:
            return delete_files(self._main().io, paths)
        except NoSuchTableError:
            return paths


def _read_records(io: FileIO, path: str) -> pa.Table:
    with io.new_input(path).open() as stream:
        return read_stream(stream.read())
