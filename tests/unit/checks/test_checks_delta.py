"""Checks of Delta tables: what does not pass is in no version, and nothing of it is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.core.checks import ChecksFailed
from airflow_lakestream.core.ledger import TopicEntry
from airflow_lakestream.delta.ledger_store import read_ledger
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.exceptions import InvalidArgument
from tests.support.given_records import GROUP, TOPIC, GivenLake, Record

SCHEMA = "id bigint, name string, day date"
NO_BAD = {"not_null": "name"}
REPLACE: dict[str, Any] = {"mode": "ranges", "ranges": [[0, 0, 2]], "replace": True}


def record(number: int, name: str | None = "good", day: str | None = "2026-01-01") -> Record:
    named, told = ("null" if one is None else f'"{one}"' for one in (name, day))
    return Record(f'{{"id": {number}, "name": {named}, "day": {told}}}'.encode())


@pytest.fixture
def lake(tmp_path: Path) -> GivenLake:
    return GivenLake(tmp_path, "delta")


def ids(lake: GivenLake) -> list[int]:
    return [row["id"] for row in lake.rows()]


def entry(lake: GivenLake) -> TopicEntry:
    return read_ledger(DeltaStorage().open(lake.name), GROUP).entry(TOPIC)


def on_disk(lake: GivenLake) -> set[str]:
    return {path.name for path in Path(lake.name).rglob("*.parquet")}


def in_table(lake: GivenLake) -> set[str]:
    return {Path(path).name for path in lake.files()}


@pytest.mark.parametrize("told", [{}, {"schema": SCHEMA}], ids=["inferred", "given"])
def test_rows_that_do_not_pass_are_nowhere(lake: GivenLake, told: dict[str, Any]) -> None:
    records = [record(1), record(2, None), record(3)]
    with pytest.raises(ChecksFailed) as caught:
        lake.land(records, checks=NO_BAD, **told)
    assert "given[0] offset 1: name=NULL" in str(caught.value)
    assert "no branch that could keep the rows" in str(caught.value)
    # Where the group begins is settled all the same.
    assert (entry(lake).held.width, dict(entry(lake).origin)) == (0, {0: 0})
    assert (ids(lake), on_disk(lake)) == ([], set())
    lake.land(records, checks={"unique": "id", "not_null": ["day"]}, **told)
    assert (ids(lake), entry(lake).held.width) == ([1, 2, 3], 3)
    with pytest.raises(ChecksFailed, match=r"given\[0\] offset 4: name=NULL"):
        lake.land([*records, record(4), record(5, None)], checks=NO_BAD, **told)
    assert (ids(lake), on_disk(lake)) == ([1, 2, 3], in_table(lake))


def test_columns_that_make_partitions_are_checked_too(lake: GivenLake) -> None:
    told = {"schema": SCHEMA, "partition_by": ["name", "day"]}
    records = [record(1, "it's"), record(2, "b", None), record(3, "b", "2026-01-02"), record(4, "b", "2026-01-02")]
    statements = [
        "SELECT * FROM landing WHERE day > DATE '2026-01-01' AND id > 3",
        "SELECT id FROM landing WHERE name LIKE '%''%'",
    ]
    with pytest.raises(ChecksFailed) as caught:
        lake.land(records, checks={"not_null": "day", "unique": ["name", "day"], "sql": statements}, **told)
    null, twice, late, quote = map(str, caught.value.findings)
    assert "not_null: day: NULL in 1 of the rows\n    given[0] offset 1: day=NULL" in null
    assert "equal values in 2 of the rows" in twice
    assert "id=4" in late
    assert "    id=1" in quote
    lake.land(records, checks={"unique": "id", "not_null": "name", "row_count": {"max": 4}}, **told)
    assert entry(lake).held.width == 4


def test_a_replace_that_does_not_pass_leaves_the_rows_as_they_were(lake: GivenLake) -> None:
    lake.land([record(1), record(2)])
    with pytest.raises(ChecksFailed, match=r"the rows of given\[0\] \[0,2\) did not pass"):
        lake.land([record(1), record(5, None)], checks=NO_BAD, **REPLACE)
    with pytest.raises(ChecksFailed, match="0 rows, fewer than 1"):
        lake.land([Record(None)] * 2, checks={"row_count": {"min": 1}}, tombstones="skip", **REPLACE)
    assert (ids(lake), on_disk(lake)) == ([1, 2], in_table(lake))
    lake.land([record(1), record(5)], checks=NO_BAD, **REPLACE)
    assert ids(lake) == [1, 5]


def test_the_last_week_tells_how_many_rows_are_usual(lake: GivenLake) -> None:
    records = [record(number) for number in range(10)]
    lake.land(records, checks={"row_count": {"min_of_week": 5}})
    lake.land([*records, record(10), record(11)])
    with pytest.raises(ChecksFailed, match="20 rows, more than 2 times the last week's mean of 6"):
        lake.land([record(number) for number in range(32)], checks={"row_count": {"max_of_week": 2}})


def test_a_column_that_is_not_there_is_said_before_anything_is_read(lake: GivenLake) -> None:
    lake.land([record(1)])
    for told in ({}, {"schema": SCHEMA.replace("date", "string")}):
        with pytest.raises(InvalidArgument, match=r"checks\.not_null: there is no column 'nme'"):
            lake.land([record(1), Record(b"not read")], checks={"not_null": "nme"}, on_error="fail", **told)
