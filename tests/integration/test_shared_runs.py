"""A run that several workers share: one snapshot, each record once, whatever fails, runs twice or comes in between."""

from __future__ import annotations

import pytest

from tests.support.lake import Lake, assert_files_are_whole, assert_landed_once, events
from tests.support.shared_run import SharedRun, live_files

pytestmark = pytest.mark.integration

COUNTS = {0: 900, 1: 40, 2: 60}


@pytest.fixture
def name(topic, produce) -> str:
    """Give a topic whose first partition holds nearly all."""
    made = topic(3)
    for partition, count in COUNTS.items():
        produce(made, partition, events(partition, 0, count))
    return made


def test_all_shares_land_in_one_snapshot(lake: Lake, name: str) -> None:
    run = SharedRun(lake, name)
    plan = run.plan(4)
    assert [share.ranges.width for share in plan.shares] == [250] * 4
    before = lake.snapshots()
    pieces = run.read_all(plan)
    assert lake.snapshots() == before
    report = run.commit(plan, pieces)
    assert_landed_once(lake, name, COUNTS)
    assert lake.snapshots() == [*before, *report.snapshot_ids]
    assert len(report.snapshot_ids) == 1
    assert report.counts.read == 1000
    assert report.remaining_lag == 0
    # All of it came from the workers.
    assert live_files(lake) == run.files()
    assert_files_are_whole(lake.table())
    assert lake.committed_offsets(name) == COUNTS
