"""When a run commits."""

from __future__ import annotations

import pytest

from airflow_lakestream.core.landing.batch import EARLY_BYTES, Batch, DecodedChunk, RunLimits
from airflow_lakestream.core.landing.plan import Plan, TopicState
from airflow_lakestream.core.ledger import Counts, TopicIdentity
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.core.records import DecodedBatch

MIB = 2**20
LIMITS = RunLimits(max_batch_bytes=256 * MIB, checkpoint_interval=3600)


def read(planned: int, size: int, *, early: bool, records: int = 100) -> Batch:
    """Return a batch that has read `size` bytes in `records` of as many as planned."""
    state = TopicState(TopicIdentity("t", "id", "cluster"), {})
    batch = Batch(Plan(state, RangeSet([OffsetRange("t", 0, 0, planned)])), early=early)
    outcome = DecodedBatch([None] * records, Counts(read=records, written=records))
    batch.add(DecodedChunk(OffsetRange("t", 0, 0, records), range(records), size, outcome))
    return batch


@pytest.mark.parametrize(
    ("planned", "size", "early", "due"),
    [
        (10_000, EARLY_BYTES, True, True),
        (10_000, EARLY_BYTES - 1, True, False),
        (10_000, EARLY_BYTES, False, False),
        # All of it goes into one commit.
        (1_500, EARLY_BYTES, True, False),
        (1_500, 256 * MIB, True, True),
    ],
)
def test_only_a_run_of_several_commits_makes_the_first_one_early(
    planned: int, size: int, *, early: bool, due: bool
) -> None:
    assert read(planned, size, early=early).is_due(LIMITS) is due


def test_what_other_processes_have_read_counts_too() -> None:
    batch = read(10_000, 0, early=True)
    assert not batch.is_due(LIMITS, EARLY_BYTES - 1, 100)
    assert batch.is_due(LIMITS, EARLY_BYTES, 100)
    assert not batch.is_due(LIMITS, EARLY_BYTES, 1_000_000)


def test_most_records_bound_what_is_to_come() -> None:
    batch = read(10**9, EARLY_BYTES, early=True)
    assert not batch.is_due(RunLimits(max_records=1_000, max_batch_bytes=256 * MIB))
    assert batch.is_due(RunLimits(max_records=10_000, max_batch_bytes=256 * MIB))


def test_after_the_first_commit_none_is_early() -> None:
    assert not read(10_000, 0, early=True).next().is_due(LIMITS, EARLY_BYTES, 100)
