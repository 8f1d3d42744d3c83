"""Rows that other tools wrote, and that say under other names which records they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from airflow_lakestream.audit.books import Books
from airflow_lakestream.audit.compare import PartitionAudit
from airflow_lakestream.audit.rows import RowsFound
from airflow_lakestream.audit.tally import Tally
from airflow_lakestream.core.ranges import PartitionKey, RangeSet, shown
from airflow_lakestream.tables.adopted import receipts
from airflow_lakestream.tables.positions import PositionColumns


@dataclass
class AdoptedRows:
    """`ranges` are adopted offsets that rows account for, in columns of their own; `tallies` count these rows."""

    ranges: RangeSet = RangeSet()
    tallies: dict[PartitionKey, Tally] = field(default_factory=dict)

    @classmethod
    def find(
        cls,
        books: Books,
        schema: pa.Schema,
        properties: Mapping[str, str],
        count: Callable[[PositionColumns], RowsFound],
    ) -> AdoptedRows:
        """Count the rows of all adoptions that named their columns, as far as the table still has these.

        :param count: counts the table's rows by such columns.
        """
        found = cls()
        for group, identity, entry in books.entries():
            for receipt in receipts(properties, group):
                ranges = receipt.verifiable & entry.adopted
                if receipt.topic != identity.topic or receipt.columns is None or not ranges:
                    continue
                columns = PositionColumns.of_paths(receipt.columns, receipt.topic)
                if not columns.missing(schema):
                    found._take(ranges, count(columns))
        return found

    def within(self, key: PartitionKey) -> Tally:
        """Return the rows of a partition that adoptions account for."""
        return self.tallies.get(key, Tally())

    def counted(self, audits: Iterable[PartitionAudit]) -> tuple[int, int]:
        """Return how many adopted offsets have a row, and how many lack one: the ledger's counts have neither."""
        there = lacking = 0
        for one in audits:
            key = one.topic, one.partition
            intervals = self.within(key).intervals()
            there += sum(end - start for start, end in intervals)
            lacking += (one.missing & self.ranges.of_partition(*key)).width
        return there, lacking

    def _take(self, ranges: RangeSet, rows: RowsFound) -> None:
        for key in ranges.partitions:
            tally = rows.tallies.get(key, Tally())
            for start, end in ranges.intervals(*key):
                self.tallies[key] = self.tallies.get(key, Tally()) + tally.window(start, end)
        self.ranges |= ranges


def adopted_lines(books: Books, properties: Mapping[str, str], verified: RangeSet) -> list[str]:
    """Say which offsets are landed by another tool's word alone."""
    found = []
    for group, identity, entry in books.entries():
        if ranges := entry.adopted - verified:
            by = shown([str(one) for one in receipts(properties, group) if one.topic == identity.topic], 3, "tools")
            text = shown([str(one) for one in ranges], 10)
            found.append(f"{text}: adopted {by or 'from another tool'}; no row says that it is there")
    return found
