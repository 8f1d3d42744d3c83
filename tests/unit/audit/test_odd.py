"""Rows of another writer, at whatever positions: the audit never raises, and calls each of them unexpected."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.audit.books import TableLedgers
from airflow_lakestream.audit.log import LogRecords
from airflow_lakestream.audit.quick import look_at_files
from airflow_lakestream.audit.result import AuditResult, AuditVerdict
from airflow_lakestream.audit.rows import AdoptedRows, RowPositions
from airflow_lakestream.audit.run import judge_topic
from airflow_lakestream.audit.statistics import FileFacts, TableFiles, partly
from airflow_lakestream.audit.tally import OffsetTally
from airflow_lakestream.core.ledger import Counts, Ledger, TopicEntry, TopicIdentity
from airflow_lakestream.core.ranges import RangeSet

GREATEST = 2**63 - 1
T = TopicIdentity("t", "id", "c")
LANDED = [("t", 0, n) for n in range(10)]
LEDGER = Ledger("g", {T: TopicEntry(RangeSet.of("t", 0, 0, 10), counts=Counts(10, 10), origin={0: 0})})
BOOKS = TableLedgers("g", {"g": LEDGER})

EXTREMES = st.sampled_from([-(2**63), -1, 10, 11, 2**31, GREATEST - 1, GREATEST]) | st.integers(10, 99)
PARTITIONS = st.sampled_from([-(2**31), -1, 0, 1, 2**31 - 1])
POSITIONS = st.tuples(
    st.sampled_from(["t", "t", "another", None]), st.none() | PARTITIONS, st.none() | EXTREMES | st.integers()
).filter(lambda one: one[2] is None or -(2**63) <= one[2] <= GREATEST)


def rows(positions: list) -> pa.RecordBatch:
    columns = list(zip(*positions, strict=True))
    kinds = {"_kafka_topic": pa.string(), "_kafka_partition": pa.int32(), "_kafka_offset": pa.int64()}
    pairs = zip(kinds.items(), columns, strict=True)
    return pa.record_batch({name: pa.array(values, kind) for (name, kind), values in pairs})


def facts(number: int, positions: list) -> FileFacts:
    """Return what a writer's statistics say of a file of these rows."""
    columns = [[value for value in column if value is not None] for column in zip(*positions, strict=True)]
    bounds = [(min(values), max(values)) if values else None for values in columns]
    nulls = [len(positions) - len(values) for values in columns]
    return FileFacts(f"f{number}", len(positions), nulls[2], *bounds, partly=partly(nulls))


def empty(*, full: bool) -> AuditResult:
    return AuditResult("lake.t", "g", 1, full)


@given(files=st.lists(st.lists(POSITIONS, min_size=1, max_size=8), min_size=1, max_size=3))
def test_no_row_of_another_writer_escapes_or_ends_the_full_audit(files: list[list]) -> None:
    found, result = RowPositions(), empty(full=True)
    for file in (LANDED, *files):
        found.add(rows(file))
    result.impossible += found.impossible
    log = LogRecords(T, {("t", 0): OffsetTally([(0, 10)])}, RangeSet.of("t", 0, 0, 10))
    for topic in ("t", "another"):
        judge_topic(result, BOOKS, found, RowPositions(), AdoptedRows(), topic, log if topic == "t" else None)

    strangers = [one for file in files for one in file]
    impossible: dict = defaultdict(list)
    for topic, partition, offset in strangers:
        if (topic, partition, offset) == (None, None, None) or (topic, partition, offset) in LANDED:
            continue
        if None in (topic, partition, offset) or partition < 0 or not 0 <= offset < GREATEST:
            impossible[topic, partition].append(offset)
        else:
            [audited] = [one for one in result.partitions if (one.topic, one.partition) == (topic, partition)]
            assert audited.unexpected & RangeSet.of(topic, partition, offset, offset + 1)
    assert {one.key: one.rows for one in result.impossible} == {
        key: len(offsets) for key, offsets in impossible.items()
    }
    for one in result.impossible:
        known = [offset for offset in impossible[one.key] if offset is not None]
        assert (one.low, one.high) == ((min(known), max(known)) if known else (None, None))
    assert found.without_position == strangers.count((None, None, None))
    result.to_dict()
    result.render()


@given(files=st.lists(st.lists(POSITIONS, min_size=1, max_size=8), min_size=1, max_size=3))
def test_nor_the_quick_one(files: list[list]) -> None:
    result = empty(full=False)
    told = [facts(number, file) for number, file in enumerate([LANDED, *files])]
    look_at_files(result, BOOKS, TableFiles(told), ("t",))
    assert result.verdict is not AuditVerdict.COULD_NOT_LOOK
    # Statistics see a row without an offset only where another column of its file has fewer NULLs.
    if any(None not in one for file in files for one in file):
        assert result.verdict is AuditVerdict.DAMAGE, result.render()
    result.to_dict()
