"""Sink of an Iceberg table for the files written by another engine to a branch of the table.

With checks, the rows are checked in place: the engine's branch keeps rows that fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import index_by_name, index_name_by_id
from pyiceberg.table import FileScanTask, Table

from airflow_lakestream.core.checks import RowChecker
from airflow_lakestream.core.ledger import Landing, TopicIdentity, union
from airflow_lakestream.core.ports import TableState
from airflow_lakestream.core.published import PublicationMarker
from airflow_lakestream.core.publishing.branch import BranchFile, EnginePositions, FileRows, NewSnapshots
from airflow_lakestream.core.publishing.refusals import CHECKED_AGAIN, BranchFileGone, ColumnsMoved
from airflow_lakestream.iceberg.checked.branch import drop_superseded
from airflow_lakestream.iceberg.checked.examiner import IcebergExaminer
from airflow_lakestream.iceberg.publishing import branch as branches
from airflow_lakestream.iceberg.replace.takeout import read_rows
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.iceberg.write.bounds import too_narrow, without_bounds
from airflow_lakestream.tables.coordinates import COORDINATES, OFFSET, PARTITION, TOPIC, ranges_of
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.examiner import brings_any
from airflow_lakestream.tables.guards import check_columns


class PublishingSink(IcebergSink):
    """`core.publishing.branch.BranchSink` on an Iceberg table.

    :param auditor: checks the rows before they become visible; None: no checks.
    """

    _branch = ""

    def __init__(
        self, catalog: Catalog, table: str, consumer_group: str, design: TableDesign, auditor: RowChecker | None = None
    ) -> None:
        super().__init__(catalog, table, consumer_group, design)
        self._examiner = None if auditor is None else IcebergExaminer(auditor, catalog, table, consumer_group)

    def load(self, run_id: str) -> TableState:
        """Load the table again, and refuse checks unfit for the columns. Raises InvalidArgument."""
        state = super().load(run_id)
        if self._examiner is not None:
            self._examiner.check_columns(self._design, self._change)
        return state

    def commit(self, landing: Landing) -> int:
        """Commit the branch's files and the landing as a snapshot, once the rows have passed the checks.

        Raises ChecksFailed, and BranchFileGone if a file to check is gone; the branch is unchanged then. After the
        commit, branches of earlier checks of the same offsets are dropped.
        """
        if self._examiner is None:
            return super().commit(landing)
        if brings_any(landing):
            written = self._examiner.written(landing, self._planned(None).schema, self._io(), self._files)
            try:
                self._examiner.examine(landing, written, self._branch, CHECKED_AGAIN)
            except FileNotFoundError as e:
                raise BranchFileGone(self._name, self._branch, str(e.filename or e)) from e
        snapshot_id = super().commit(landing)
        # The branches of an extract's checks, or of Spark's.
        drop_superseded(self._catalog, self._name, self._group, None, landing.touched, self._table)
        return snapshot_id

    def new_snapshots(
        self, branch: str, marker: PublicationMarker | None, positions: EnginePositions
    ) -> NewSnapshots | None:
        """Return the new snapshots and files of the branch since the marker, or None without a table or branch.

        The branch becomes the branch of later calls. Raises the errors of `publishing.branch.new_snapshots`.
        """
        self._branch = branch
        return None if self._table is None else branches.new_snapshots(self._table, branch, marker, positions)

    def positions_of(self, file: BranchFile, identity: TopicIdentity) -> FileRows:
        """Return the positions of a file's rows. Raises BranchFileGone, ColumnsMoved.

        Rows of another topic, and rows with NULL in a position, are only counted.
        """
        parts: dict[int, list[np.ndarray[tuple[int], np.dtype[np.int64]]]] = {}
        strange = 0
        for rows in self.rows_of(file, COORDINATES):
            known = rows.filter(pc.equal(rows[TOPIC], identity.topic)).drop_null()
            strange += rows.num_rows - known.num_rows
            of, at = known[PARTITION].to_numpy(), known[OFFSET].to_numpy()
            for partition in np.unique(of).tolist():
                parts.setdefault(partition, []).append(at[of == partition])
        positions = union(ranges_of((identity.topic, p), np.concatenate(some)) for p, some in parts.items())
        count = sum(len(one) for some in parts.values() for one in some)
        return FileRows(positions, count - positions.width, strange)

    def take_files(self, files: Sequence[BranchFile], identity: TopicIdentity) -> None:
        """Add the branch's files to the next commit; files of another partitioning are rewritten.

        A commit adds files of a single partitioning, the table's own. Another schema of the table does no harm:
        rows are read by column ids, and `rows_of` refuses a file whose names belong to other columns now. Checks read
        columns by name: so with checks, files with other names are rewritten, too.
        """
        table = self._there()
        for one in files:
            file: DataFile = one.file
            fits = self._examiner is None or self._has_names_of(table, one)
            if fits and file.spec_id == table.metadata.default_spec_id:
                self._adopted.append(self._with_right_bounds(table, one))
                continue
            for rows in self.rows_of(one):
                self.write(rows, identity)

    def open_branch(self, branch: str) -> None:
        """Make the branch at main's head, if missing."""
        branches.open_branch(self._catalog, self._name, branch)

    def renew_branch(self, branch: str) -> None:
        """Set the branch to main's head, or make the branch."""
        branches.renew_branch(self._catalog, self._name, branch)

    def _there(self) -> Table:
        assert self._table is not None, "without a table there is no branch"
        check_columns(self._table.schema().column_names, self._name)
        return self._table

    def rows_of(self, file: BranchFile, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Yield a file's rows in the table's columns, or in `columns`. Raises BranchFileGone, ColumnsMoved."""
        self._check_columns_of(file)
        table = self._there()
        try:
            yield from read_rows(table.metadata, table.io, FileScanTask(file.file), columns=columns)
        except FileNotFoundError as e:
            raise BranchFileGone(self._name, self._branch, file.path) from e

    def _with_right_bounds(self, table: Table, file: BranchFile) -> DataFile:
        # An engine may have taken the bounds from the files' footers alone, where long values have none.
        try:
            columns = too_narrow(table.io, file.file, table.name_mapping())
        except FileNotFoundError as e:
            raise BranchFileGone(self._name, self._branch, file.path) from e
        return without_bounds(file.file, columns) if columns else file.file

    def _check_columns_of(self, file: BranchFile) -> None:
        """Refuse a file with column names of different columns today. Raises ColumnsMoved."""
        ids = index_by_name(self._there().schema())
        moved = [name for number, name in self._columns_of(file).items() if ids.get(name, number) != number]
        if moved:
            raise ColumnsMoved(self._name, self._branch, file.path, moved)

    def _columns_of(self, file: BranchFile) -> dict[int, str]:
        """Return the columns of a file by id, nested columns included. Raises BranchFileGone."""
        table = self._there()
        form = ds.OrcFileFormat() if file.file.file_format is FileFormat.ORC else ds.ParquetFileFormat()
        try:
            with table.io.new_input(file.path).open() as stream:
                found = form.make_fragment(stream).physical_schema
        except FileNotFoundError as e:
            raise BranchFileGone(self._name, self._branch, file.path) from e
        return index_name_by_id(pyarrow_to_schema(found, table.name_mapping(), downcast_ns_timestamp_to_us=True))

    def _has_names_of(self, table: Table, file: BranchFile) -> bool:
        """Return whether a file has the table's columns under the present names, readable by DuckDB."""
        is_read = file.file.file_format is FileFormat.PARQUET
        return is_read and self._columns_of(file) == index_name_by_id(table.schema())
