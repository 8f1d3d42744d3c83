"""Equality deletes of a table, applied to rows: PyIceberg reads no table that has these."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata

from airflow_lakestream.iceberg.replace.takeout import read_rows
from airflow_lakestream.iceberg.write.files import column_of, value_codes


class EqualityDeletes:
    """Reader of equality deletes, each delete file once.

    The deleted values of all files that were asked for stay in memory.
    """

    def __init__(self, metadata: TableMetadata, io: FileIO) -> None:
        self._metadata, self._io = metadata, io
        self._read = dict[str, list[pa.Array]]()

    def live(self, rows: pa.Table, deletes: Sequence[DataFile]) -> pa.Table:
        """Return the rows that equal no deleted row; NULL equals NULL, and NaN equals NaN.

        :param rows: rows in the table's schema.
        :param deletes: the equality delete files that apply.
        """
        by_columns = defaultdict[tuple[int, ...], list[DataFile]](list)
        for one in deletes:
            by_columns[tuple(one.equality_ids or ())].append(one)
        for ids, files in by_columns.items():
            deleted = [self._values(file, ids) for file in files]
            count = sum(len(one[0]) for one in deleted)
            values = []
            for number, column in enumerate(ids):
                own = column_of(rows, self._metadata.schema(), column)
                values.append(pa.concat_arrays([*(one[number].cast(own.type) for one in deleted), own]))
            codes = value_codes(values, count + rows.num_rows).to_numpy(zero_copy_only=False)
            rows = rows.filter(pa.array(~np.isin(codes[count:], codes[:count])))
        return rows

    def _values(self, file: DataFile, ids: tuple[int, ...]) -> list[pa.Array]:
        """Return the deleted values of each column."""
        if file.file_path not in self._read:
            schema = self._metadata.schema()
            names = [str(schema.find_column_name(one)) for one in ids]
            rows = pa.concat_tables(read_rows(self._metadata, self._io, FileScanTask(file), columns=names))
            self._read[file.file_path] = [column_of(rows, schema, one) for one in ids]
        return self._read[file.file_path]
