"""Reads in rounds, by workers without decisions: the landing decides the questions between two rounds.

Whether a record may have a new table, or a field a new column, is for the landing's own process to decide. A worker
leaves a chunk that needs a decision, brings up the question, and goes on. Chunks that were left are read again in the
next round, by workers that know the decisions. Decisions are made in the order of each partition's offsets, like in a
single process: the result does not depend on how records are shared out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.core.sharing.pieces import SharePiece

# Questions of a worker in a round, in characters of names. It then stops reading: their number has no bound.
MOST_BROUGHT = 8 * 2**20

# Partition, first offset of the chunk, and place within it.
Place = tuple[int, int, int]


class Undecided(Exception):
    """A signal: a chunk can't be decoded before a decision.

    `brought` has the questions, in the order of the records, with the size of each in characters. They can be hashed
    and pickled.
    """

    def __init__(self, brought: Mapping[Any, int]) -> None:
        super().__init__(f"{len(brought)} things are to be decided first")
        self.brought = brought


@dataclass
class UndecidedChunks:
    """Chunks left by a worker in a round, and the questions, with the first place of each.

    :param chunks: offset ranges to be read again in the next round.
    :param brought: the questions.
    """

    chunks: list[OffsetRange] = field(default_factory=list)
    brought: dict[Any, Place] = field(default_factory=dict)
    _size: int = 0

    def add(self, chunk: OffsetRange, undecided: Undecided) -> None:
        """Leave a chunk to the next round, and note its questions, each with the first place."""
        self.chunks.append(chunk)
        for number, (item, size) in enumerate(undecided.brought.items()):
            self._size += size if item not in self.brought else 0
            _note(self.brought, item, (chunk.partition, chunk.from_offset, number))

    @property
    def is_full(self) -> bool:
        """Whether the worker has to stop reading; unread records are left to the next round, too."""
        return self._size >= MOST_BROUGHT


@dataclass(frozen=True)
class RoundAnswer:
    """Result of a worker in a round: a piece, or None if no record was decoded, and the chunks left."""

    piece: SharePiece | None
    left: UndecidedChunks = field(default_factory=UndecidedChunks)


def read_in_rounds(
    ranges: RangeSet,
    read: Callable[[RangeSet], Sequence[RoundAnswer]],
    decide: Callable[[Sequence[Any]], object],
    first: RangeSet | None = None,
) -> list[SharePiece]:
    """Read ranges in as many rounds as necessary, and return the pieces to cover the ranges.

    :param read: reads ranges by workers, and returns each worker's answer; some of the ranges may stay unread.
    :param decide: decides the workers' questions, in order; workers of the next round know the decisions. The
        returned value is ignored.
    :param first: the ranges of the first round; default: all.
    """
    pieces: list[SharePiece] = []
    while ranges:
        round_ranges, first = first or ranges, None
        answers = read(round_ranges)
        new = [answer.piece for answer in answers if answer.piece is not None]
        done = union(piece.ranges for piece in new)
        undecided = RangeSet(chunk for answer in answers for chunk in answer.left.chunks)
        brought: dict[Any, Place] = {}
        for answer in answers:
            for item, place in answer.left.brought.items():
                _note(brought, item, place)
        questions = _in_order(brought, round_ranges - done - undecided)
        if not done and not questions:
            raise AssertionError(f"the workers read no record of {round_ranges}, and asked for no decision")
        if questions:
            decide(questions)
        pieces += new
        ranges -= done
    return pieces


def _in_order(brought: Mapping[Any, Place], unseen: RangeSet) -> list[Any]:
    """Return the questions to decide now, in the order of their records.

    A question waits if its partition has an unseen record before it, since that record may bring an earlier question.

    :param unseen: offsets of this round that were neither read nor left.
    """
    ends = {partition: unseen.intervals(topic, partition)[0][0] for topic, partition in unseen.partitions}
    in_order = sorted(brought.items(), key=lambda item_and_place: item_and_place[1])
    # In a partition without unseen records the bound is above the question itself, so that it is decided now.
    return [item for item, (partition, offset, _) in in_order if offset < ends.get(partition, offset + 1)]


def _note(brought: dict[Any, Place], item: Any, place: Place) -> None:
    """Note a question with its first place."""
    brought[item] = min(place, brought.get(item, place))
