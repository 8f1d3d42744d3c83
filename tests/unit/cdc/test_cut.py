"""A cut through several topics: random transactions, delivered and landed up to anywhere, of both kinds of log."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.cdc.cut import (
    EVENT_COLUMNS,
    CutObstacle,
    DatabaseCut,
    PartitionTransactions,
    find_cut,
    take_events,
)
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.values.outcome import DecoderResult
from airflow_lakestream.run.mirror_tag import position_of

PARTITIONS = [("a", 0), ("b", 0), ("b", 1), ("c", 0)]


@dataclass(frozen=True)
class Sent:
    """An event in a partition: its transaction, and its position as the decoder has it."""

    transaction: int
    position: int


@dataclass
class Log:
    """Events of a connector: the partition of each event, and its transaction."""

    in_binlog: bool
    by_partition: dict[tuple[str, int], list[Sent]] = field(default_factory=lambda: {key: [] for key in PARTITIONS})
    # How long each partition was before a transaction, and where it ends in the database's log.
    lengths: list[dict[tuple[str, int], int]] = field(default_factory=list)
    ends: list[int] = field(default_factory=lambda: [100])

    def commit(self, events: list[int], width: int) -> None:
        """Send a transaction; it is numbered."""
        self.lengths.append({key: len(found) for key, found in self.by_partition.items()})
        begin = self.ends[-1]
        for number, at in enumerate(events):
            position = begin + 1 + number if self.in_binlog else begin
            self.by_partition[PARTITIONS[at]].append(Sent(len(self.lengths) - 1, position))
        self.ends.append(begin + len(events) + width)

    def send_again(self, first: int) -> None:
        """Send all transactions from this one on once more, as a connector that was killed."""
        for key, before in self.lengths[first].items():
            self.by_partition[key] += self.by_partition[key][before:]


@st.composite
def logs(draw: st.DrawFn) -> Log:
    log = Log(draw(st.booleans()))
    steps = st.lists(
        st.tuples(st.lists(st.integers(0, len(PARTITIONS) - 1), max_size=5), st.integers(1, 9)), min_size=1
    )
    for events, width in draw(steps):
        log.commit(events, width)
        if draw(st.integers(0, 9)) == 0:
            log.send_again(draw(st.integers(0, len(log.lengths) - 1)))
    return log


def read(log: Log, key: tuple[str, int], landed: int, seen: int, back: int) -> PartitionTransactions:
    found = PartitionTransactions(*key, landed, max(0, landed - back), in_binlog=log.in_binlog)
    for offset, event in enumerate(log.by_partition[key][:seen]):
        if offset >= found.at:
            found.add(offset, event.position, f"0-1-{event.transaction}" if log.in_binlog else str(event.position))
    found.at = seen
    return found


@given(logs(), st.data())
def test_a_cut_has_whole_transactions_and_nothing_that_is_still_to_come(log: Log, data: st.DataObject) -> None:
    behind = st.one_of(st.just(0), st.integers(0, 9))
    seen = {key: max(0, len(found) - data.draw(behind)) for key, found in log.by_partition.items()}
    landed = {key: data.draw(st.integers(0, end)) if data.draw(st.booleans()) else 0 for key, end in seen.items()}
    stored, back = None, data.draw(st.integers(1, 4))
    if data.draw(st.booleans()):
        # The connector's offset after these transactions: all of them are in Kafka.
        stored_until = data.draw(st.integers(0, len(log.lengths)))
        stored = log.ends[stored_until]
        for key, found in log.by_partition.items():
            last = max((n + 1 for n, event in enumerate(found) if event.transaction < stored_until), default=0)
            seen[key] = max(seen[key], last)
    partitions = [read(log, key, landed[key], seen[key], back) for key in PARTITIONS]
    tops = {key: max((e.position for e in found[: landed[key]]), default=-1) for key, found in log.by_partition.items()}
    floors = {topic: max(top for key, top in tops.items() if key[0] == topic) for topic, _ in PARTITIONS}

    cut = find_cut(partitions, stored, floors)

    if isinstance(cut, CutObstacle):
        return
    whole = {n for n in range(len(log.lengths)) if log.ends[n + 1] <= cut.position}
    for key, end in cut.ends.items():
        assert landed[key] <= end <= seen[key]
        # Events may be there twice: sent again by a connector that was killed.
        events = log.by_partition[key]
        assert {*events[:end]} == {event for event in events if event.transaction in whole}


def at(topic: str, landed: int, *positions: int, stop: int | None = None) -> PartitionTransactions:
    found = PartitionTransactions(topic, 0, landed, 0)
    for offset, position in enumerate(positions):
        found.add(offset, position, str(position))
    found.at = len(positions) if stop is None else stop
    return found


def test_a_load_on_all_tables_is_cut_below_the_slowest_topic() -> None:
    found = find_cut([at("a", 1, 10, 20, 30), at("b", 0, 10, 20), at("c", 1, 10, 30, 40)])
    assert found == DatabaseCut(20, "0/14", {("a", 0): 1, ("b", 0): 1, ("c", 0): 1})


def test_a_transaction_that_began_in_another_topic_stays_out_as_a_whole() -> None:
    begun, ends_here = PartitionTransactions("a", 0, 0, 0), PartitionTransactions("b", 0, 0, 0)
    for offset, (position, gtid) in enumerate([(5, "0-1-1"), (10, "0-1-2"), (12, "0-1-2"), (40, "0-1-3")]):
        begun.add(offset, position, gtid)
    ends_here.add(0, 20, "0-1-2")
    assert find_cut([begun, ends_here]) == DatabaseCut(10, "0/A", {("a", 0): 1, ("b", 0): 0})


@pytest.mark.parametrize(("floor", "is_cut"), [(19, True), (20, False)])
def test_rows_of_a_mirror_are_below_the_cut_also_if_their_events_are_gone(floor: int, is_cut: bool) -> None:
    found = find_cut([at("a", 1, 10, 20), at("b", 1, 10, 20)], floors={"a": floor})
    assert isinstance(found, DatabaseCut) is is_cut


@pytest.mark.parametrize(
    ("partitions", "stored", "problem"),
    [
        ([at("a", 3, 10, 20, 30), at("b", 0, 10, 20)], None, "a is beyond position 0/14, and b[0] up to offset 2"),
        ([at("a", 0, 10), at("b", 0, stop=7)], None, "b[0] up to offset 7 has no transaction"),
        ([at("a", 1, 10), at("b", 0)], 10, "a is beyond position 0/A"),
    ],
)
def test_without_a_cut_the_slowest_topic_is_named(
    partitions: list[PartitionTransactions], stored: int | None, problem: str
) -> None:
    found = find_cut(partitions, stored)
    assert isinstance(found, CutObstacle)
    assert problem in found.text


def source(**values: Any) -> dict[str, Any]:
    return dict.fromkeys(one.name for one in EVENT_COLUMNS.field("_source").type) | values


def taken(*events: tuple[str | None, dict[str, Any] | None]) -> tuple[PartitionTransactions, set[str]]:
    found = PartitionTransactions("a", 0, 0, 0)
    rows = pa.Table.from_pylist([{"_op": op, "_source": one} for op, one in events], schema=EVENT_COLUMNS)
    batch = RawBatch("a", 0, range(5, 5 + len(events)), [0] * len(events), pa.nulls(len(events), pa.binary()))
    return found, take_events(found, batch, DecoderResult(rows))


def test_events_of_postgresql_have_the_commit_before_them_and_snapshots_the_place_where_they_were_read() -> None:
    found, names = taken(
        ("r", source(name="shop", lsn=70, sequence='[null,"70"]', snapshot="last")),
        # The first transaction after a snapshot follows no commit.
        ("u", source(name="shop", lsn=80, sequence='[null,"80"]')),
        ("u", source(name="shop", lsn=95, sequence='["90","95"]')),
        ("d", source(name="shop", lsn=96, sequence='["90","96"]')),
        (None, None),
        ("r", source(name="shop", lsn=97, sequence='["98","97"]', snapshot="incremental")),
    )
    assert (names, found.alone_at, found.in_binlog) == ({"shop"}, 80, False)
    assert [(one.offset, one.position) for one in found.starts] == [(7, 90), (10, 98)]
    # A row that was read above the cut may have later changes, and of what follows no commit more may be to come.
    assert (found.is_ahead(79), found.is_ahead(80)) == (True, False)
    read, _ = taken(("r", source(name="shop", lsn=70, sequence='[null,"70"]', snapshot="last")))
    assert (read.is_ahead(69), read.is_ahead(70)) == (True, False)


def in_binlog(pos: int, gtid: str | None, file: str = "bin.000003") -> tuple[str, dict[str, Any]]:
    return "u", source(name="shop", file=file, pos=pos, row=0, gtid=gtid)


def test_a_transaction_of_a_binary_log_begins_with_a_gtid_and_another_log_is_named() -> None:
    found, _ = taken(in_binlog(10, "0-1-7"), in_binlog(20, "0-1-7"), in_binlog(30, "0-1-8"), in_binlog(10, "0-1-7"))
    assert [(one.offset, one.position - 3 * 2**32) for one in found.starts] == [(5, 10), (7, 30)]
    assert find_cut([found]).text == "binary log 3, byte 30"
    later, _ = taken(in_binlog(40, "0-1-8"), in_binlog(10, "0-2-9"))
    assert find_cut([later]) == CutObstacle("another binary log begins at a[0] offset 6: land the mirrors past it")
    unnamed, _ = taken(in_binlog(40, None))
    assert "offset 0 has no GTID" in find_cut([unnamed]).text


@pytest.mark.parametrize(
    ("offset", "position"),
    [
        ({"lsn_proc": 120, "lsn_commit": 110, "lsn": 120, "txId": 5}, 110),
        ({"lsn": 120, "snapshot": "INITIAL", "lsn_commit": 110}, None),
        ({"lsn": 120}, None),
        ({"file": "mariadb-bin.000002", "pos": 345, "gtids": "0-1-7", "event": 2}, 2 * 2**32 + 345),
        ({"file": "mariadb-bin.000002", "pos": 345, "snapshot": True}, None),
        (None, None),
        ({"position": json.dumps({"file": 1})}, None),
    ],
)
def test_the_stored_offset_of_a_connector_is_the_end_of_whole_transactions(offset: Any, position: int | None) -> None:
    assert position_of(offset) == position
