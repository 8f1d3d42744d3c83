"""Shares of a plan, and pieces that travel as JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.core.landing.batch import Batch
from airflow_lakestream.core.landing.plan import Plan, TopicState
from airflow_lakestream.core.ledger import Counts, LandingEngine, TopicIdentity, union
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.core.sharing.pieces import (
    Files,
    HandedPieces,
    PlanShare,
    SharePiece,
    UnreadablePiece,
    at_most_offsets,
    ranges_from_dict,
    ranges_to_dict,
    split,
)
from airflow_lakestream.core.source_types import LedgerTypes
from tests.support.core_strategies import IDENTITY, TOPIC, by_partition, counts, range_sets

FILES = {"files": [{"file_path": "s3://a/b", "partition": [None, {"float": "nan"}]}]}


def of(*ranges: tuple[int, int, int]) -> RangeSet:
    return RangeSet(OffsetRange(TOPIC, *r) for r in ranges)


def piece(*ranges: tuple[int, int, int], identity: TopicIdentity = IDENTITY, epoch: int | None = None) -> SharePiece:
    read = of(*ranges).width
    epochs = {} if epoch is None else {0: epoch}
    return SharePiece(identity, of(*ranges), {0: Counts(read, read)}, epochs, {"files": []})


@given(range_sets(), st.integers(1, 9), st.integers(1, 12))
def test_shares_are_disjoint_balanced_and_together_the_plan(ranges: RangeSet, most: int, least: int) -> None:
    shares = split(ranges, most, least)
    assert union(shares) == ranges
    assert sum(share.width for share in shares) == ranges.width
    widths = [share.width for share in shares]
    assert len(shares) <= most
    assert max(widths, default=0) - min(widths, default=0) <= 1
    # As many as are worth it: one more would make them too small.
    if ranges and len(shares) < most:
        assert ranges.width // (len(shares) + 1) < least
    assert len(shares) == 1 or all(width >= least for width in widths)


def test_a_hot_partition_goes_to_several_workers_and_small_ones_share_one() -> None:
    shares = split(of((0, 1000, 1900), (1, 0, 50), (2, 7, 57)), 4)
    assert shares == [
        of((0, 1000, 1250)),
        of((0, 1250, 1500)),
        of((0, 1500, 1750)),
        of((0, 1750, 1900), (1, 0, 50), (2, 7, 57)),
    ]


def test_nothing_makes_no_shares() -> None:
    assert split(RangeSet(), 4) == []


@given(range_sets(), st.integers(0, 60))
def test_so_many_offsets_are_the_beginnings_of_the_partitions(ranges: RangeSet, most: int) -> None:
    kept = at_most_offsets(ranges, most)
    assert kept.width == min(most, ranges.width)
    assert not kept - ranges
    for key in ranges.partitions:
        mine, all_of_it = kept.of_partition(*key), ranges.of_partition(*key)
        # In proportion, and nothing left out before what is kept.
        assert abs(mine.width - min(1, most / ranges.width) * all_of_it.width) <= 1
        last = max((r.until_offset for r in mine), default=0)
        assert all(r.from_offset >= last for r in all_of_it - mine)


@given(range_sets(), by_partition(), by_partition(), by_partition())
def test_a_share_survives_json(
    ranges: RangeSet, epochs: dict[int, int], known: dict[int, int], until: dict[int, int]
) -> None:
    share = PlanShare(IDENTITY, ranges, epochs, known, until)
    assert PlanShare.from_dict(json.loads(json.dumps(share.to_dict()))) == share
    assert ranges_from_dict(json.loads(json.dumps(ranges_to_dict(IDENTITY, ranges)))) == ranges


@given(range_sets(), st.dictionaries(st.integers(0, 9), counts()), by_partition())
def test_a_piece_survives_json(ranges: RangeSet, read: dict[int, Counts], epochs: dict[int, int]) -> None:
    handed = SharePiece(IDENTITY, ranges, read, epochs, FILES)
    assert SharePiece.from_dict(json.loads(json.dumps(handed.to_dict()))) == handed


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"version": 6}, "version is 6"),
        ({"bad": {"count": 1}}, "kinds"),
        ({"use": {"columns": ["n"]}}, "foreign"),
        ({"counts": {"0": [2, 1]}}, "counts"),
        ({"ranges": "0"}, "ranges"),
        ({"files": 3}, "files"),
    ],
    ids=["newer", "bad", "use", "counts", "ranges", "files"],
)
def test_what_another_version_wrote_is_refused(change: dict[str, object], what: str) -> None:
    with pytest.raises(UnreadablePiece, match=what) as caught:
        SharePiece.from_dict(piece((0, 0, 5)).to_dict() | change)
    assert "Clear the group's tasks" in str(caught.value)


def fits(files: Files) -> None:
    return None


def test_only_pieces_that_fit_the_ledger_and_each_other_are_used(caplog: pytest.LogCaptureFixture) -> None:
    good, twice = piece((0, 0, 10), (1, 5, 6)), piece((1, 5, 7))
    landed, other = piece((2, 0, 10)), piece((3, 0, 1), identity=TopicIdentity(TOPIC, "another", "cluster-id"))
    handed = HandedPieces([good, twice, landed, other])
    assert handed.usable(IDENTITY, of((2, 9, 12)), fits) == [good]
    assert f"{TOPIC}[2] [9,10) is landed already" in caplog.text
    assert f"{TOPIC}[1] [5,6) is landed already" in caplog.text
    assert "another incarnation of the topic" in caplog.text


def test_a_piece_that_was_committed_is_not_complained_about(caplog: pytest.LogCaptureFixture) -> None:
    mine = piece((0, 0, 10))
    handed = HandedPieces([mine])
    handed.take([mine])
    assert handed.usable(IDENTITY, of((0, 0, 10)), fits) == []
    assert not caplog.records


def test_a_piece_whose_files_do_not_fit_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    handed = HandedPieces([piece((0, 0, 10))])
    assert handed.usable(IDENTITY, RangeSet(), lambda files: "the table's schema was changed") == []
    assert "schema was changed" in caplog.text


def test_a_landing_adds_pieces_up_and_keeps_the_epochs_before_they_were_read() -> None:
    plan = Plan(TopicState(IDENTITY, {}), RangeSet(), epochs={0: 7, 1: 3})
    batch = Batch(plan)
    batch.take(piece((0, 0, 10), epoch=6))
    batch.take(piece((1, 0, 5)))
    entry = batch.landing("run", LandingEngine.EXTRACT, frozenset(), LedgerTypes()).topics[IDENTITY]
    assert entry.landed == of((0, 0, 10), (1, 0, 5))
    assert entry.counts == Counts(15, 15)
    assert entry.epochs == {0: 6, 1: 3}
