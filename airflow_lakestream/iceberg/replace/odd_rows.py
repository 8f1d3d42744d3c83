"""Rows of a topic at impossible positions: a repair removes these rows without a replacement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema

from airflow_lakestream.core.ledger import Ledger
from airflow_lakestream.iceberg.replace.takeout import bounds_of
from airflow_lakestream.tables.coordinates import OFFSET, PARTITION, TOPIC


@dataclass(frozen=True, slots=True)
class RowsOutsideLog:
    """Rows of a topic outside of the partitions' logs, from offset 0 up to each partition's end in `ends`."""

    topic: str
    ends: Mapping[int, int]

    def without_landed(self, ledgers: Iterable[Ledger]) -> RowsOutsideLog:
        """Return a copy without the rows of landed offsets: the log may have grown since the look."""
        ends = dict(self.ends)
        for ledger in ledgers:
            for identity, entry in ledger.topics.items():
                for r in entry.landed if identity.topic == self.topic else ():
                    ends[r.partition] = max(ends.get(r.partition, 0), r.until_offset)
        return RowsOutsideLog(self.topic, ends)

    def holds(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return a mask: True for rows of the topic outside of the partitions' logs; never NULL."""
        has_place = pa.chunked_array([pa.repeat(False, rows.num_rows)])
        there = pc.unique(rows[PARTITION]).to_pylist()
        for partition, end in self.ends.items():
            if partition in there:
                in_log = pc.and_(pc.greater_equal(rows[OFFSET], 0), pc.less(rows[OFFSET], pa.scalar(end, pa.int64())))
                mine = pc.and_(pc.equal(rows[PARTITION], partition), in_log)
                has_place = pc.or_(has_place, pc.fill_null(mine, False))
        of_topic = pc.fill_null(pc.equal(rows[TOPIC], self.topic), False)
        return pc.and_(of_topic, pc.invert(has_place))

    def may_be_in(self, schema: Schema, file: DataFile) -> bool:
        """Return by a data file's statistics whether rows outside of the log are possible; True without statistics."""
        topic, partition, offset = (bounds_of(schema, file, name) for name in (TOPIC, PARTITION, OFFSET))
        if topic is not None and not topic[0] <= self.topic <= topic[1]:
            return False
        nulls = file.null_value_counts or {}
        if any(nulls.get(schema.find_field(name).field_id) != 0 for name in (PARTITION, OFFSET)):
            return True
        if partition is None or offset is None:
            return True
        between = (end for one, end in self.ends.items() if partition[0] <= one <= partition[1])
        lowest_end = min(between, default=0)
        known = {*self.ends} >= {*partition}
        return not known or offset[0] < 0 or offset[1] >= lowest_end
