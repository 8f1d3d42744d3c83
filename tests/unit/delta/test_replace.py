"""Rows of a Delta table replaced by those read again: one version, or nothing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.delta.protocol import UnfitTable
from tests.support.delta_table import (
    TOPIC,
    a_sink,
    expected,
    land,
    landed,
    landing,
    rows,
    rows_of,
    stray_files,
    versions,
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    name = tmp_path / "clicks"
    land(name, 0, 5)
    land(name, 5, 9)
    return name


def replacing(start: int, end: int) -> Landing:
    made = landing(start, end, run_id="again")
    entry = TopicEntry(replaced=RangeSet.of(TOPIC.topic, 0, start, end), counts=Counts(end - start, end - start))
    return replace(made, topics={TOPIC: entry})


def replace_rows(table: Path, start: int, end: int, **settings: str) -> tuple[int, Landing]:
    sink = a_sink(table, **settings)
    sink.load("again")
    sink.write(rows(start, end, name=[f"new{n}" for n in range(start, end)]), TOPIC)
    try:
        return sink.replace(replacing(start, end))
    except BaseException:
        sink.discard()
        raise


def new(start: int, end: int) -> list[tuple[object, ...]]:
    return [(0, n, n, f"new{n}") for n in range(start, end)]


def test_rows_are_replaced_in_one_version_and_the_others_stay(table: Path) -> None:
    version, done = replace_rows(table, 3, 7)

    assert version == 2
    assert rows_of(table) == sorted([*expected((0, 3), (7, 9)), *new(3, 7)])
    assert landed(table) == "clicks[0] [0,9)"
    assert done.topics[TOPIC].removed == Counts(4, 4)
    assert a_sink(table).load("r").ledger.entry(TOPIC).counts == Counts(9, 9)
    assert not stray_files(table)
    actions = {next(iter(action)) for action in versions(table)[-1]}
    assert actions == {"commitInfo", "metaData", "txn", "remove", "add"}


def test_a_file_that_is_all_hits_goes_whole(table: Path) -> None:
    replace_rows(table, 0, 5)
    assert len([a for a in versions(table)[-1] if "add" in a]) == 1
    assert rows_of(table) == sorted([*expected((5, 9)), *new(0, 5)])


def _append_only(table: Path) -> None:
    DeltaTable(str(table)).alter.set_table_properties({"delta.appendOnly": "true"})


def _change_feed(table: Path) -> None:
    DeltaTable(str(table)).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})


@pytest.mark.parametrize("change", [_append_only, _change_feed], ids=["append-only", "change data feed"])
def test_a_table_that_rows_can_not_be_taken_out_of_is_refused(table: Path, change: Callable[[Path], None]) -> None:
    change(table)
    with pytest.raises(UnfitTable):
        replace_rows(table, 3, 7)
    land(table, 9, 10)
    assert rows_of(table) == expected((0, 10))
