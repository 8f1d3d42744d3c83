"""Rows written by another tool, with columns of different names for the positions of the records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from airflow_lakestream.audit.books import TableLedgers
from airflow_lakestream.audit.compare import PartitionAudit
from airflow_lakestream.audit.rows import RowPositions
from airflow_lakestream.audit.tally import OffsetTally
from airflow_lakestream.core.ranges import PartitionKey, RangeSet, shown
from airflow_lakestream.tables.positions import PositionColumns, receipts


@dataclass
class AdoptedRows:
    """Adopted offset ranges with rows in the table (`ranges`), and the counts of these rows (`tallies`).

    Rows count only if the adoption's receipt names the columns with the rows' positions.
    """

    ranges: RangeSet = RangeSet()
    tallies: dict[PartitionKey, OffsetTally] = field(default_factory=dict)

    @classmethod
    def find(
        cls,
        ledgers: TableLedgers,
        schema: pa.Schema,
        properties: Mapping[str, str],
        count: Callable[[PositionColumns], RowPositions],
    ) -> AdoptedRows:
        """Count the rows of all adoptions whose receipts name position columns.

        An adoption is left out if its receipt names no columns, or if the table no longer has the columns.

        :param properties: the table's properties, with the receipts.
        :param count: counts the table's rows by the positions in the given columns.
        """
        found = cls()
        for group, identity, entry in ledgers.entries():
            for receipt in receipts(properties, group):
                ranges = receipt.verifiable & entry.adopted
                if receipt.topic != identity.topic or receipt.columns is None or not ranges:
                    continue
                columns = PositionColumns.of_paths(receipt.columns, receipt.topic)
                if not columns.missing(schema):
                    found._take(ranges, count(columns))
        return found

    def within(self, key: PartitionKey) -> OffsetTally:
        """Return the row count of each adopted offset of a partition; empty if the partition has none."""
        return self.tallies.get(key, OffsetTally())

    def counted(self, audits: Iterable[PartitionAudit]) -> tuple[int, int]:
        """Return the number of adopted offsets with a row, and without a row.

        The ledger's counts leave adopted offsets out. Before a comparison, subtract the first number from the rows that
        the audit has found, and the second from the rows that it misses.
        """
        with_row = lacking = 0
        for one in audits:
            key = one.topic, one.partition
            intervals = self.within(key).intervals()
            with_row += sum(end - start for start, end in intervals)
            lacking += (one.missing & self.ranges.of_partition(*key)).width
        return with_row, lacking

    def _take(self, ranges: RangeSet, rows: RowPositions) -> None:
        for key in ranges.partitions:
            tally = rows.tallies.get(key, OffsetTally())
            for start, end in ranges.intervals(*key):
                self.tallies[key] = self.tallies.get(key, OffsetTally()) + tally.window(start, end)
        self.ranges |= ranges


def adopted_lines(ledgers: TableLedgers, properties: Mapping[str, str], verified: RangeSet) -> list[str]:
    """Return a line for each ledger entry with adopted offsets that no row proves.

    :param verified: adopted offsets whose rows were looked for in columns of the other tool; the lines leave them out.
    """
    found = []
    for group, identity, entry in ledgers.entries():
        if ranges := entry.adopted - verified:
            by = shown([str(one) for one in receipts(properties, group) if one.topic == identity.topic], 3, "tools")
            text = shown([str(one) for one in ranges], 10)
            found.append(f"{text}: adopted {by or 'from another tool'}; no row proves it")
    return found
