"""Rows from records that may lack fields: each field gets the value of the last record that has the field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import DELETED, GIVEN, MARK, OFFSET, OP, PARTITION, VERSION, order_columns
from airflow_lakestream.cdc.events.presence import given_mask
from airflow_lakestream.cdc.keys.identity import by_place, greatest_of_each, places
from airflow_lakestream.cdc.merge.snapshots import is_gone, is_later
from airflow_lakestream.decode.connect.unavailable import Mask
from airflow_lakestream.tables.row_buffer import one_array


@dataclass(frozen=True)
class PartialRecords:
    """The records of a batch in the order of versions, of which only the last one of each key is a row.

    :param records: with `GIVEN`, the columns that each record gives.
    :param key: the columns of the mirror's key.
    """

    records: pa.Table
    key: tuple[str, ...]

    def complete(self, rows: pa.Table, old: pa.Table | None, dead: Mask) -> pa.Table:
        """Return the rows of the last records with the values of absent fields.

        An absent field gets the value of the last earlier record that has the field, else of the table's row, else
        null. Records count if they are later than the table's row and than the last deletion.

        :param rows: the last record of each key, without operations.
        :param old: the table's rows of these keys, or None.
        :param dead: a mask of those of `records` for whose key the memory has a later deletion.
        """
        of_keys = np.flatnonzero(places(self.records, rows, self.key) >= 0)
        records = self.records.take(pa.array(of_keys))
        row_of, counts = places(records, rows, self.key), ~dead[of_keys]
        of_table = np.full(len(rows), -1, np.int64) if old is None else places(rows, old, self.key)
        # 1. Records before the table's row, and before the memory's last deletion, do not count.
        with_old = np.flatnonzero(of_table[row_of] >= 0)
        if old is not None and len(with_old):
            old_versions = old.select(VERSION).take(pa.array(of_table[row_of[with_old]]))
            counts[with_old] &= is_later(records.take(pa.array(with_old)), old_versions)
        # 2. A deletion ends a row. If deleted rows stay, a deletion leaves the values as they are.
        numbers, gone = np.arange(len(records)), is_gone(records)
        deletes = gone | pc.fill_null(pc.equal(records[OP], MARK), False).to_numpy(zero_copy_only=False)
        last_upsert, last_deletion = np.full(len(rows), -1, np.int64), np.full(len(rows), -1, np.int64)
        upserts = np.flatnonzero(counts & ~gone)
        np.maximum.at(last_upsert, row_of[upserts], upserts)
        ended = np.flatnonzero(counts & deletes & (numbers < last_upsert[row_of]))
        np.maximum.at(last_deletion, row_of[ended], ended)
        counts &= (numbers > last_deletion[row_of]) & ~gone
        base_row = np.where(last_deletion < 0, of_table, -1)
        if old is not None and DELETED in old.column_names:
            is_marked = pc.fill_null(old[DELETED], False).to_numpy(zero_copy_only=False)
            base_row[(last_upsert >= 0) & (of_table >= 0) & is_marked[of_table]] = -1
        # 3. Fill each column by the number of the record with the value; the table's rows are numbered after records.
        for name in rows.column_names:
            if name in self.key or name in order_columns(rows.column_names):
                continue
            given = np.flatnonzero(given_mask(records[GIVEN], name) & counts)
            value_of = np.full(len(rows), -1, np.int64)
            np.maximum.at(value_of, row_of[given], given)
            values = [one_array(records[name])]
            if old is not None and name in old.column_names:
                value_of = np.where(value_of < 0, np.where(base_row < 0, -1, base_row + len(records)), value_of)
                values.append(one_array(old[name]).cast(values[0].type))
            column = pa.concat_arrays(values).take(pa.array(value_of, mask=value_of < 0))
            rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), column)
        return rows


def without_late(records: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the records without late ones, for whose key a record at an earlier offset has a later version.

    A late record changes nothing if it is landed by itself, so it must not change a field within a batch either.

    :param records: in the order of versions.
    """
    if not len(records):
        return records
    by_offset = [(PARTITION, "ascending"), (OFFSET, "ascending")]
    order = pc.sort_indices(records.select([PARTITION, OFFSET]), sort_keys=by_offset).to_numpy().astype(np.int64)
    # The number of each record's key and partition, and its place in the order of versions.
    of_key = by_place(records, key).append_column("partition", records[PARTITION])
    names = of_key.rename_columns([f"key {number}" for number in range(of_key.num_columns)])
    (group_ends,) = greatest_of_each(names, np.arange(len(records)))
    group = places(names, names.take(pa.array(group_ends)), names.column_names)[order]
    by_group = np.argsort(group, kind="stable")
    rank = order[by_group] + group[by_group] * len(records)
    late = rank < np.maximum.accumulate(rank)
    kept = np.sort(order[by_group[~late]])
    return records if len(kept) == len(records) else records.take(pa.array(kept))
