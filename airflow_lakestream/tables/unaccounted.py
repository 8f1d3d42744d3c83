"""Search of a table's files for rows not accounted for by any ledger. Uses Arrow only, for every table format.

The files' statistics decide first. If the statistics of a file decide nothing, its three metadata columns are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as arrow

from airflow_lakestream.core.landing.unaccounted import (
    OFFSETS_END,
    ForeignRowQuery,
    RowBounds,
    RowFate,
    UnaccountedRows,
)
from airflow_lakestream.core.ranges import Interval
from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.tables.coordinates import COORDINATES, OFFSET, PARTITION, TOPIC, is_within

# Reading releases the interpreter lock, and mostly waits for the store.
FILES_AT_ONCE = 8


class FileUnreadable(LakestreamError, Terminal):
    """Unreadable data file, needed to decide whether a landing would double rows."""

    def __init__(self, table: str, path: str, cause: Exception) -> None:
        super().__init__(
            f"{table}: whether the data file {path} holds rows that this run would land a second time is unknown: "
            f"{cause}. Nothing was landed. `lakestream audit` reports which files of a table are gone."
        )


@dataclass(frozen=True, slots=True)
class CandidateFile:
    """Live data file, with the bounds of its three metadata columns in `topic`, `partition` and `offset`.

    Bounds are the least and the greatest value, or None if unknown. They may include deleted rows.

    :param is_whole: all rows have values in the three columns, and no row is deleted.
    :param read: yields the three columns of the live rows.
    """

    path: str
    rows: int
    topic: tuple[str, str] | None
    partition: Interval | None
    offset: Interval | None
    is_whole: bool
    read: Callable[[], Iterable[pa.Table]]


def keeps_positions(schema: pa.Schema) -> bool:
    """Return whether a table has the three metadata columns, with types for positions."""
    kinds = {TOPIC: (arrow.is_string, arrow.is_large_string)} | dict.fromkeys((PARTITION, OFFSET), (arrow.is_integer,))
    return all(
        name in schema.names and any(is_(schema.field(name).type) for is_ in kinds[name]) for name in COORDINATES
    )


def find(table: str, files: Iterable[CandidateFile], query: ForeignRowQuery) -> UnaccountedRows:
    """Search the files for the topic's rows whose offsets are in no ledger. Raises FileUnreadable.

    Files are judged by their bounds if possible. All further files are read, several at a time.

    :param query: the topic, the offsets in ledgers, and the offsets to land.
    """
    boxes: list[tuple[RowFate, RowBounds]] = []
    to_read: list[CandidateFile] = []
    for file in files:
        if file.topic is not None and not file.topic[0] <= query.topic <= file.topic[1]:
            continue
        by_bounds = _by_bounds(file, query)
        if by_bounds is None:
            to_read.append(file)
        else:
            boxes.append(by_bounds)

    def read(file: CandidateFile) -> list[tuple[RowFate, RowBounds]]:
        try:
            return [box for rows in file.read() for box in _by_rows(rows, query)]
        except (OSError, pa.ArrowException) as e:
            raise FileUnreadable(table, file.path, e) from e

    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="lakestream-look") as pool:
        for file_boxes in pool.map(read, to_read):
            boxes += file_boxes
    return UnaccountedRows.of(box for box in boxes if box[0] is not RowFate.ACCOUNTED)


def _by_bounds(file: CandidateFile, query: ForeignRowQuery) -> tuple[RowFate, RowBounds] | None:
    """Return the fate and the bounds of all rows of a file, or None if the file must be read."""
    if not file.is_whole or file.partition is None or file.offset is None:
        return None
    fate = query.fate(file.partition, file.offset)
    # The accounted positions are of the query's topic. Rows of another topic at such positions do no harm here.
    if fate is None or (fate is not RowFate.ACCOUNTED and file.topic != (query.topic, query.topic)):
        return None
    return fate, RowBounds(file.partition, file.offset, file.rows)


def _by_rows(rows: pa.Table, query: ForeignRowQuery) -> Iterator[tuple[RowFate, RowBounds]]:
    """Yield the bounds of the topic's rows that no ledger accounts for, by partition and fate."""
    of_topic = rows.filter(pc.fill_null(pc.equal(rows[TOPIC], query.topic), False)).drop_null()
    offsets = of_topic[OFFSET].cast(pa.int64())
    # Kafka gives no record an impossible position, so such rows are in no landing's way.
    is_possible = pc.and_(pc.greater_equal(offsets, 0), pc.less(offsets, OFFSETS_END))
    of_topic = of_topic.filter(pc.and_(is_possible, pc.greater_equal(of_topic[PARTITION], 0)))
    for partition in pc.unique(of_topic[PARTITION]).to_pylist():
        offsets_here = of_topic.filter(pc.equal(of_topic[PARTITION], partition))[OFFSET].cast(pa.int64())
        offsets_here = offsets_here.filter(pc.invert(is_within(offsets_here, query.accounted(partition))))
        in_the_way = is_within(offsets_here, query.in_the_way(partition))
        for fate, some in (
            (RowFate.IN_THE_WAY, offsets_here.filter(in_the_way)),
            (RowFate.OUTSIDE, offsets_here.filter(pc.invert(in_the_way))),
        ):
            if len(some):
                ends = pc.min_max(some)
                yield fate, RowBounds((partition, partition), (ends["min"].as_py(), ends["max"].as_py()), len(some))
