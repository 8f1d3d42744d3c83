"""Rows of a topic at what is no position of it: a repair takes them out, since no record can be put in their place."""

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
class NoPlace:
    """The rows of a topic that are not in one of its partitions, from offset 0 up to where that ends in `ends`."""

    topic: str
    ends: Mapping[int, int]

    def beside(self, ledgers: Iterable[Ledger]) -> NoPlace:
        """Return the same without what a ledger accounts for: the log may have grown since it was looked at."""
        ends = dict(self.ends)
        for ledger in ledgers:
            for identity, entry in ledger.topics.items():
                for r in entry.landed if identity.topic == self.topic else ():
                    ends[r.partition] = max(ends.get(r.partition, 0), r.until_offset)
        return NoPlace(self.topic, ends)

    def holds(self, rows: pa.Table) -> pa.ChunkedArray:
        """Tell for each row whether it is one of them; never NULL."""
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
        """Tell by a data file's statistics whether it may have such rows."""
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
