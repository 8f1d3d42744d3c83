"""Compaction at the end of runs that land from the real broker."""

from __future__ import annotations

import pytest

from airflow_lakestream.run.maintenance import after_landing
from airflow_lakestream.run.topics import land_run
from tests.support.broker import Producing
from tests.support.lake import Lake
from tests.support.lake_reading import one_partition

pytestmark = pytest.mark.integration

name = one_partition


def test_runs_end_with_a_compaction_except_those_that_have_more_to_land(
    lake: Lake, name: str, produce: Producing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(after_landing, "LEAST_FILES", 5)
    monkeypatch.setattr(after_landing, "FURTHER_FILES", 1)

    def run(number: int, **given: object) -> int:
        config = lake.settings(name, schema="n bigint", maintain="auto", **given)
        land_run(config, lake.kafka, lake.catalog(), run_id=f"run {number}")
        return len(list(lake.table().scan().plan_files()))

    produce(name, 0, [f'{{"n": {n}}}' for n in range(6)])
    files = [run(number, max_records=1) for number in range(6)]
    assert files == [1, 2, 3, 4, 5, 6]
    produce(name, 0, ['{"n": 6}'])
    assert run(7) == 1
    assert lake.column("n") == list(range(7))
    lake.assert_whole()
