"""Positions of a table's rows: the Kafka record of each row, also of rows written by another tool."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import Table

from airflow_lakestream.audit.books import TableLedgers
from airflow_lakestream.audit.compare import ImpossibleRows, PartitionAudit, sorted_impossible
from airflow_lakestream.audit.tally import OffsetTally
from airflow_lakestream.core.landing.unaccounted import OFFSETS_END
from airflow_lakestream.core.ranges import PartitionKey, RangeSet, shown
from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.iceberg.reject_table import counting_rows
from airflow_lakestream.tables.coordinates import COORDINATES, OFFSET, PARTITION, TOPIC
from airflow_lakestream.tables.positions import OWN_COLUMNS, PositionColumns, receipts
from airflow_lakestream.tables.rejects.settlement import PLACE

# PyIceberg warns of each requested dictionary of a column that the table keeps as text.
logging.getLogger("pyiceberg.io.pyarrow").addFilter(lambda record: "a dictionary type" not in record.getMessage())


class NoPositions(LakestreamError, Terminal):
    """The rows lack the positions of records; `missing` names the missing columns."""

    def __init__(self, table: str, missing: Sequence[str]) -> None:
        self.missing = tuple(missing)
        super().__init__(
            f"{table} has no column {', '.join(missing)}, so the rows do not show their records. Land with the "
            'metadata_columns "topic", "partition" and "offset" (they are among the defaults).'
        )


class UnreadableRows(LakestreamError, Terminal):
    """The table's rows, or the files in its store, can't be read for an audit."""

    def __init__(self, table: str, cause: Exception) -> None:
        super().__init__(
            f"the rows of {table} can't be read: {cause}. If these are equality deletes, rewrite the data files "
            "with the engine that wrote them (Spark: CALL system.rewrite_data_files), then try again."
        )


@dataclass
class RowPositions:
    """Number of rows of each offset, by topic and partition.

    `without_position` counts rows with neither topic, partition nor offset. `impossible` are rows with only a part of a
    position, or with a position that no record can have.
    """

    tallies: dict[PartitionKey, OffsetTally] = field(default_factory=dict)
    without_position: int = 0
    _impossible: dict[tuple[str | None, int | None], ImpossibleRows] = field(default_factory=dict)

    @property
    def impossible(self) -> list[ImpossibleRows]:
        """Rows with impossible positions, by topic and partition."""
        return sorted_impossible(self._impossible)

    @classmethod
    def of(cls, parts: Iterable[pa.RecordBatch | pa.Table]) -> RowPositions:
        """Count the rows of parts of a table.

        A pyarrow Table may have more columns than topic, partition and offset; a RecordBatch has only these.
        """
        positions = cls()
        for part in parts:
            for batch in part.select(COORDINATES).to_batches() if isinstance(part, pa.Table) else [part]:
                positions.add(batch)
        return positions

    def add(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Count the rows of a batch that has only the columns topic, partition and offset.

        Rows without a position, or with an impossible one, are counted separately.
        """
        complete = batch.drop_null()
        if len(complete) < len(batch):
            self._count_lacking(batch)
        if not _are_positions(complete):
            is_position = _is_position(complete)
            self._count_impossible(complete.filter(pc.invert(is_position)))
            complete = complete.filter(is_position)
        for topic, of_topic in _split(complete, TOPIC):
            for partition, rows in _split(of_topic, PARTITION):
                offsets = rows.column(OFFSET).cast(pa.int64())
                self.tallies.setdefault((str(topic), int(str(partition))), OffsetTally()).add_offsets(offsets)

    def _count_lacking(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Count the rows of a batch without a position, and those with a part of a position."""
        nulls = [pc.is_null(batch.column(name)) for name in COORDINATES]
        lacks_all = pc.and_(pc.and_(nulls[0], nulls[1]), nulls[2])
        lacks_part = pc.and_(pc.or_(pc.or_(nulls[0], nulls[1]), nulls[2]), pc.invert(lacks_all))
        self.without_position += pc.sum(lacks_all).as_py()
        self._count_impossible(batch.filter(lacks_part))

    def _count_impossible(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Count rows that all have an impossible position."""
        columns = zip(COORDINATES, (pa.string(), pa.int64(), pa.int64()), strict=True)
        rows = pa.table({name: batch.column(name).cast(kind) for name, kind in columns})
        by_key = rows.group_by([TOPIC, PARTITION]).aggregate([(OFFSET, "min"), (OFFSET, "max"), ([], "count_all")])
        for group in by_key.to_pylist():
            low, high = group[f"{OFFSET}_min"], group[f"{OFFSET}_max"]
            self.add_impossible(ImpossibleRows(group[TOPIC], group[PARTITION], low, high, group["count_all"]))

    def add_impossible(self, rows: ImpossibleRows) -> None:
        """Count rows with an impossible position."""
        before = self._impossible.get(rows.key)
        self._impossible[rows.key] = rows if before is None else before + rows


def check_positions(table: Table, columns: PositionColumns = OWN_COLUMNS) -> None:
    """Raise NoPositions if the table lacks any position column.

    Raises InvalidArgument if the type of a position column can't hold positions.
    """
    if missing := columns.missing(table.schema().as_arrow()):
        raise NoPositions(".".join(table.name()), missing)


def count_rows(
    table: Table,
    snapshot_id: int | None,
    topic: str | None = None,
    without: Collection[str] = (),
    columns: PositionColumns = OWN_COLUMNS,
) -> RowPositions:
    """Count a snapshot's rows by position, for a topic, or for all if `topic` is None.

    :param snapshot_id: None for a table without a snapshot; the result is then empty.
    :param without: paths of data files to leave out.
    :param columns: the columns with the positions. If they are another tool's, `topic` is ignored: rows of all topics
        count.

    Reads one data file after another, only the position columns, with deletes applied. Raises NoPositions and
    UnreadableRows.
    """
    check_positions(table, columns)
    try:
        return RowPositions.of(() if snapshot_id is None else _rows(table, snapshot_id, topic, without, columns))
    except (OSError, pa.ArrowException) as e:
        raise UnreadableRows(".".join(table.name()), e) from e


def _rows(
    table: Table, snapshot_id: int, topic: str | None, without: Collection[str], columns: PositionColumns
) -> Iterator[pa.RecordBatch | pa.Table]:
    """Yield the positions of a snapshot's rows; see `count_rows`."""
    # Topic names contain no quotes.
    row_filter = AlwaysTrue() if topic is None or not columns.is_own else f"{TOPIC} == '{topic}'"
    selected = tuple(columns.paths.values())
    scan = table.scan(row_filter=row_filter, selected_fields=selected, snapshot_id=snapshot_id)
    try:
        tasks = list(scan.plan_files())
    except (ValueError, NotImplementedError) as e:
        # PyIceberg's error for delete files that it can't apply: no damage, but nothing can be counted.
        raise UnreadableRows(".".join(table.name()), e) from e
    # Topics repeat, so read them as a dictionary; Arrow can't read a dictionary within a struct.
    dictionaries = (TOPIC,) if columns.is_own else ()
    arrow_scan = ArrowScan(
        table.metadata, table.io, scan.projection(), scan.row_filter, dictionary_columns=dictionaries
    )
    for task in (task for task in tasks if task.file.file_path not in without):
        # One file at a time: given all, PyIceberg reads ahead without a bound.
        for batch in arrow_scan.to_record_batches([task]):
            yield batch if columns.is_own else columns.of(batch)


def count_rejected(rejects: Table, main: Table, groups: Iterable[str], topic: str | None = None) -> RowPositions:
    """Count, by position, the rejected records that count for any of the groups. Raises UnreadableRows.

    :param main: the main table, whose ledgers decide which records count.
    """
    try:
        return RowPositions.of(
            rows for group in groups for rows in counting_rows(rejects, main, group, topic=topic, columns=PLACE)
        )
    except (ValueError, NotImplementedError) as e:
        # PyIceberg's error for delete files that it can't apply.
        raise UnreadableRows(".".join(rejects.name()), e) from e


def _are_positions(rows: pa.RecordBatch | pa.Table) -> bool:
    """Return whether all rows have possible positions; only the minimum and maximum of the columns are compared."""
    if not len(rows):
        return True
    offsets = pc.min_max(rows.column(OFFSET)).as_py()
    return bool(pc.min(rows.column(PARTITION)).as_py() >= 0) and 0 <= offsets["min"] <= offsets["max"] < OFFSETS_END


def _is_position(rows: pa.RecordBatch | pa.Table) -> pa.Array | pa.ChunkedArray:
    """Return a mask of the rows with a possible partition and offset."""
    offsets = rows.column(OFFSET)
    is_offset = pc.and_(pc.greater_equal(offsets, 0), pc.less(offsets, pa.scalar(OFFSETS_END, pa.int64())))
    return pc.and_(is_offset, pc.greater_equal(rows.column(PARTITION), 0))


def _split(rows: pa.RecordBatch, name: str) -> Iterator[tuple[object, pa.RecordBatch]]:
    """Yield each value of a column, with the rows that have the value."""
    column = rows.column(name)
    values = pc.unique(column).to_pylist()
    if len(values) == 1:
        yield values[0], rows
        return
    for value in values:
        yield value, rows.filter(pc.equal(column, pa.scalar(value)))


@dataclass
class AdoptedRows:
    """Adopted offset ranges whose rows an audit can read (`ranges`), and the counts of these rows (`tallies`).

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
        adopted = cls()
        for group, identity, entry in ledgers.entries():
            for receipt in receipts(properties, group):
                ranges = receipt.verifiable & entry.adopted
                if receipt.topic != identity.topic or receipt.columns is None or not ranges:
                    continue
                columns = PositionColumns.of_paths(receipt.columns, receipt.topic)
                if not columns.missing(schema):
                    adopted._add(ranges, count(columns))
        return adopted

    def within(self, key: PartitionKey) -> OffsetTally:
        """Return the row count of each adopted offset of a partition; empty if the partition has none."""
        return self.tallies.get(key, OffsetTally())

    def counted(self, audits: Iterable[PartitionAudit]) -> tuple[int, int]:
        """Return the number of adopted offsets with a row, and without a row.

        The ledger's counts leave adopted offsets out. Before a comparison, subtract the first number from the rows that
        the audit has found, and the second from the rows that it misses.
        """
        with_row = without_row = 0
        for audit in audits:
            key = audit.topic, audit.partition
            intervals = self.within(key).intervals()
            with_row += sum(end - start for start, end in intervals)
            without_row += (audit.missing & self.ranges.of_partition(*key)).width
        return with_row, without_row

    def _add(self, ranges: RangeSet, rows: RowPositions) -> None:
        """Add adopted ranges, with those of the rows that are in the ranges."""
        for key in ranges.partitions:
            tally = rows.tallies.get(key, OffsetTally())
            for start, end in ranges.intervals(*key):
                self.tallies[key] = self.tallies.get(key, OffsetTally()) + tally.window(start, end)
        self.ranges |= ranges


def adopted_lines(ledgers: TableLedgers, properties: Mapping[str, str], verified: RangeSet) -> list[str]:
    """Return a line for each ledger entry with adopted offsets that no row proves.

    :param verified: adopted offsets whose rows were looked for in columns of the other tool; the lines leave them out.
    """
    lines = []
    for group, identity, entry in ledgers.entries():
        if ranges := entry.adopted - verified:
            tools = shown(
                [str(receipt) for receipt in receipts(properties, group) if receipt.topic == identity.topic], 3, "tools"
            )
            text = shown([str(offsets) for offsets in ranges], 10)
            lines.append(f"{text}: adopted {tools or 'from another tool'}; no row proves it")
    return lines
