"""Share of an executor in a fan-out: rows of each table are written into files, without any decision.

The executor knows the tables of the decided routes. A batch with another route is left to the next round, when the
driver has decided this route: see `core.sharing.rounds`.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from airflow_lakestream.core.ledger import Ledger, TopicIdentity
from airflow_lakestream.core.ports import RowsNotWritable, TableState
from airflow_lakestream.core.routing import ROUTE, ROUTE_COLUMNS, SEPARATOR
from airflow_lakestream.core.sharing.rounds import Undecided
from airflow_lakestream.iceberg.fan_out.admission import FanOut, refusal
from airflow_lakestream.iceberg.write import handover
from airflow_lakestream.iceberg.write.files import delete_files, write_data_files
from airflow_lakestream.iceberg.write.trial import unwritable
from airflow_lakestream.tables.row_buffer import FILE_BYTES, is_of_rows

# Key in the files of a share: the files by route.
ROUTES = "routes"


@dataclass(frozen=True)
class FanOutOutline:
    """Outline of a fan-out for executors; also a catalog with the home only.

    :param columns: the payload's columns, into which rows are decoded.
    :param tables: the tables of admitted routes, by route.
    :param refused: the reasons against refused routes.
    :param known: all tables that count towards the limit, with their routes.
    """

    fan_out: FanOut
    home: handover.IcebergOutline
    columns: pa.Schema
    tables: Mapping[str, handover.IcebergOutline] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def io(self) -> FileIO:
        """The FileIO of the home."""
        return self.home.io

    def load_table(self, name: str) -> Table:
        """Return the home. Raises NoSuchTableError for another table."""
        return self.home.load_table(name)

    def refusals(self, routes: Sequence[str], rows: pa.Schema) -> Mapping[str, str]:
        """Return the refused routes with reasons. Raises Undecided for routes without a decision.

        :param rows: not needed: the columns are known here.
        """
        reasons, unknown = dict[str, str](), dict[str, int]()
        for route in routes:
            if route in self.tables:
                continue
            name = self.fan_out.template.table(route.split(SEPARATOR))
            reason = self.refused.get(route) or refusal(self.fan_out, self.known, name, route)
            if reason is None:
                unknown[route] = len(route)
            else:
                reasons[route] = reason
        if unknown:
            raise Undecided(unknown)
        return reasons


class FanOutShare:
    """Writer of routed rows into files of the tables: a part of `core.ports.Sink`.

    No file is open between two calls. All tables together hold no more rows than one file, for any number of tables.

    :param most: limit of the buffered rows, in bytes.
    """

    def __init__(self, outline: FanOutOutline, consumer_group: str, most: int = FILE_BYTES) -> None:
        self._outline, self._group, self._most = outline, consumer_group, most
        self._folder = ""
        self._prefix, self._numbers = uuid.uuid4().hex, itertools.count()
        self._held: dict[str, list[pa.Table]] = {}
        self._bytes = 0
        self._files: dict[str, list[DataFile]] = {}

    def load(self, run_id: str) -> TableState:
        """Return a state with the columns for decoding; no table is read, and `run_id` is not needed."""
        return TableState(Ledger(self._group), schema=self._outline.columns)

    def write_below(self, folder: str) -> None:
        """Write later files below this folder of each table's data."""
        self._folder = folder

    def write(self, rows: pa.Table, identity: TopicIdentity) -> None:
        """Buffer rows with the columns of `decode.metadata.RecordRouter`. Raises RowsNotWritable.

        :param identity: not needed: a share has rows of a single topic.
        """
        for route, part in by_route(rows):
            part = part.drop_columns(list(ROUTE_COLUMNS))
            self._held.setdefault(route, []).append(part)
            self._bytes += part.nbytes
        if self._bytes >= self._most:
            self._relieve()

    def pass_over(self, identity: TopicIdentity, partition: int, offsets: Any) -> None:
        """Ignore the offsets: only a replace needs the offsets of records without a row."""

    def hand_over(self) -> Mapping[str, Any]:
        """Write all buffered rows, and return the files by route. Raises RowsNotWritable."""
        for route in list(self._held):
            self._write_out(route)
        tables = self._outline.tables
        return {ROUTES: {r: handover.encode_files(tables[r].metadata, files) for r, files in self._files.items()}}

    def discard(self) -> None:
        """Delete the files; never raises."""
        self._held.clear()
        for route, files in self._files.items():
            delete_files(self._outline.tables[route].io, [file.file_path for file in files])
        self._files.clear()

    def _relieve(self) -> None:
        """Write the rows of the largest tables, until half of the memory is free."""
        sizes = {route: sum(part.nbytes for part in parts) for route, parts in self._held.items()}
        for route in sorted(sizes, key=lambda route: -sizes[route]):
            if self._bytes <= self._most // 2:
                break
            self._write_out(route)
            self._bytes -= sizes[route]
        # The remaining rows are slices, each of which holds a whole batch in memory.
        self._held = {route: [_copied(parts)] for route, parts in self._held.items()}

    def _write_out(self, route: str) -> None:
        """Write the buffered rows of a table to data files. Raises RowsNotWritable for rows that no file can hold."""
        table, rows = self._outline.tables[route], pa.concat_tables(self._held.pop(route))
        write = partial(write_data_files, table.metadata, table.io, folder=self._folder)
        try:
            self._files.setdefault(route, []).extend(write(rows, self._prefix, self._numbers))
        except BaseException as error:
            # Errors of the store and signals are raised as they are.
            if not is_of_rows(error):
                raise
            trial = partial(unwritable, table.metadata)
            raise RowsNotWritable(table.name, f"{type(error).__name__}: {error}", trial) from error


def _copied(parts: Sequence[pa.Table]) -> pa.Table:
    """Return the rows as a copy, so that the memory of whole batches is freed."""
    rows = pa.concat_tables(parts)
    # `combine_chunks` copies only several chunks, and `take` is slow on these.
    return rows.combine_chunks() if len(parts) > 1 else rows.take(pa.array(np.arange(len(rows))))


def by_route(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield each route with its rows, in the original order."""
    routes = rows[ROUTE].combine_chunks()
    names = routes.dictionary.to_pylist()
    order = pc.array_sort_indices(routes.indices)
    ordered, start = rows.take(order), 0
    for run in pc.value_counts(routes.indices.take(order)).to_pylist():
        yield names[run["values"]], ordered.slice(start, run["counts"])
        start += run["counts"]
