"""Rounds of reading: what is brought up is decided in order, and each offset is read to its end once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.core.ledger import Counts, union
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.core.sharing import rounds
from airflow_lakestream.core.sharing.pieces import SharePiece, split
from airflow_lakestream.core.sharing.rounds import RoundAnswer, Undecided, UndecidedChunks, read_in_rounds
from tests.support.core_strategies import IDENTITY, TOPIC

# Each record brings up a name; of two partitions.
RECORDS = st.lists(st.lists(st.sampled_from("abcdef"), max_size=12), min_size=1, max_size=2)
Read = Callable[[RangeSet], Sequence[RoundAnswer]]


def ranges_of(records: list[list[str]]) -> RangeSet:
    return union(RangeSet.of(TOPIC, partition, 0, len(names)) for partition, names in enumerate(records))


def workers(records: list[list[str]], decided: dict[str, int], tasks: int, width: int) -> Read:
    """Return workers that read chunks of so many records, each the partitions in turn."""

    def work(share: RangeSet) -> RoundAnswer:
        done, left = list[OffsetRange](), UndecidedChunks()
        for r in share:
            for start in range(r.from_offset, r.until_offset, width):
                chunk = OffsetRange(TOPIC, r.partition, start, min(start + width, r.until_offset))
                names = records[r.partition][chunk.from_offset : chunk.until_offset]
                if left.is_full:
                    continue
                if unknown := {name: 1 for name in names if name not in decided}:
                    left.add(chunk, Undecided(unknown))
                else:
                    done.append(chunk)
        covered = RangeSet(done)
        counts = Counts(covered.width, covered.width)
        return RoundAnswer(SharePiece(IDENTITY, covered, {0: counts}, {}, {}) if done else None, left)

    return lambda ranges: [work(share) for share in split(ranges, tasks)]


@given(RECORDS, st.integers(1, 4), st.integers(1, 5), st.integers(1, 20))
def test_names_are_decided_on_in_the_order_of_each_partition(
    records: list[list[str]], tasks: int, width: int, most: int
) -> None:
    decided: dict[str, int] = {}

    def decide(names: Sequence[str]) -> None:
        for name in names:
            assert name not in decided, "decided on twice"
            decided[name] = len(decided)

    ranges = ranges_of(records)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rounds, "MOST_BROUGHT", most)
        pieces = read_in_rounds(ranges, workers(records, decided, tasks, width), decide)
    assert union(piece.ranges for piece in pieces) == ranges
    assert sum(piece.ranges.width for piece in pieces) == ranges.width
    if len(records) == 1:
        assert list(decided) == list(dict.fromkeys(records[0]))
    if tasks == 1 and most >= 20:
        assert list(decided) == list(dict.fromkeys(name for names in records for name in names))
    for names in records:
        own = [name for name in decided if name in names]
        # But for those that another partition has brought up first.
        others = {name for other in records if other is not names for name in other}
        assert [n for n in own if n not in others] == [n for n in dict.fromkeys(names) if n not in others]


def test_the_first_round_may_be_a_small_one() -> None:
    asked: list[RangeSet] = []
    read = workers([list("aaaaaaab")], {"a": 0, "b": 1}, 1, 2)

    def noting(ranges: RangeSet) -> Sequence[RoundAnswer]:
        asked.append(ranges)
        return read(ranges)

    whole, first = RangeSet.of(TOPIC, 0, 0, 8), RangeSet.of(TOPIC, 0, 0, 3)
    pieces = read_in_rounds(whole, noting, lambda names: None, first)
    assert asked == [first, RangeSet.of(TOPIC, 0, 3, 8)]
    assert union(piece.ranges for piece in pieces) == whole


def test_workers_that_do_not_get_on_are_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="asked for no decision"):
        read_in_rounds(RangeSet.of(TOPIC, 0, 0, 3), lambda ranges: [RoundAnswer(None)], lambda names: None)
