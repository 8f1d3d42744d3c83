"""An Iceberg table whose next commit takes the files that another engine wrote to a branch of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from airflow_lakestream.core.ledger import TopicIdentity, union
from airflow_lakestream.core.published import Published
from airflow_lakestream.core.publishing.branch import BranchFile, FileRows, Positions, Step
from airflow_lakestream.core.publishing.refusals import BranchFileGone
from airflow_lakestream.iceberg.publishing import branch as branches
from airflow_lakestream.iceberg.replace.takeout import read_rows
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.tables.coordinates import COORDINATES, OFFSET, PARTITION, TOPIC, ranges_of
from airflow_lakestream.tables.guards import check_columns


class PublishingSink(IcebergSink):
    """`core.publishing.branch.BranchSink` on an Iceberg table."""

    _branch = ""

    def news(self, branch: str, marker: Published | None, positions: Positions) -> Sequence[Step] | None:
        """Return what came to the branch since the marker, oldest first; None without such a branch."""
        self._branch = branch
        return None if self._table is None else branches.news(self._table, branch, marker, positions)

    def positions_of(self, file: BranchFile, identity: TopicIdentity) -> FileRows:
        """Read the positions of a file's rows. Raises BranchFileGone."""
        parts: dict[int, list[np.ndarray[tuple[int], np.dtype[np.int64]]]] = {}
        strange = 0
        for rows in self._rows_of(file, COORDINATES):
            known = rows.filter(pc.equal(rows[TOPIC], identity.topic)).drop_null()
            strange += rows.num_rows - known.num_rows
            of, at = known[PARTITION].to_numpy(), known[OFFSET].to_numpy()
            for partition in np.unique(of).tolist():
                parts.setdefault(partition, []).append(at[of == partition])
        positions = union(ranges_of((identity.topic, p), np.concatenate(some)) for p, some in parts.items())
        count = sum(len(one) for some in parts.values() for one in some)
        return FileRows(positions, count - positions.width, strange)

    def take_files(self, files: Sequence[BranchFile], identity: TopicIdentity) -> None:
        """Take the branch's files for the next commit; those of another partitioning are written anew.

        A commit puts files into one partitioning only, the table's own. Another schema of the table does no harm: rows
        are read by the ids of their columns.
        """
        table = self._there()
        for one in files:
            file: DataFile = one.file
            if file.spec_id == table.metadata.default_spec_id:
                self._adopted.append(file)
                continue
            for rows in self._rows_of(one):
                self.write(rows, identity)

    def open_branch(self, branch: str) -> None:
        """Make the branch at main's head, if there is none."""
        branches.open_branch(self._catalog, self._name, branch)

    def renew_branch(self, branch: str) -> None:
        """Set the branch to main's head."""
        branches.renew_branch(self._catalog, self._name, branch)

    def _there(self) -> Table:
        assert self._table is not None, "without a table there is no branch"
        check_columns(self._table.schema().column_names, self._name)
        return self._table

    def _rows_of(self, file: BranchFile, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        table = self._there()
        try:
            yield from read_rows(table.metadata, table.io, FileScanTask(file.file), columns=columns)
        except FileNotFoundError as e:
            raise BranchFileGone(self._name, self._branch, file.path) from e
