"""Reading by workers that may not decide everything themselves: what records bring up is decided between two rounds.

Whether a record may have a new table, or a field a new column, is for the landing's own process to decide. A worker
leaves a chunk that needs a decision, says what for, and goes on. What is left is read again in the next round, by
workers that know. Decisions are made in the order of each partition's offsets, as one process comes to them: the result
does not depend on how records are shared out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.core.sharing.pieces import Piece

# What one worker brings up in one round, in characters of names. It then stops reading: records may bring up anything.
MOST_BROUGHT = 8 * 2**20

# Partition, first offset of the chunk, and place within it.
Place = tuple[int, int, int]


class Undecided(Exception):
    """A signal: a chunk can't be decoded before something is decided.

    `brought` says what about, in the order of the records, with the size of each in characters. Items can be hashed and
    pickled.
    """

    def __init__(self, brought: Mapping[Any, int]) -> None:
        super().__init__(f"{len(brought)} things are to be decided first")
        self.brought = brought


@dataclass
class Left:
    """What a worker has left in this round, and what has to be decided about it, with the first place of each."""

    chunks: list[OffsetRange] = field(default_factory=list)
    brought: dict[Any, Place] = field(default_factory=dict)
    _size: int = 0

    def add(self, chunk: OffsetRange, undecided: Undecided) -> None:
        """Leave a chunk."""
        self.chunks.append(chunk)
        for number, (item, size) in enumerate(undecided.brought.items()):
            self._size += size if item not in self.brought else 0
            _note(self.brought, item, (chunk.partition, chunk.from_offset, number))

    @property
    def is_full(self) -> bool:
        """Whether the worker is to stop reading: what it has not looked at is left to the next round, too."""
        return self._size >= MOST_BROUGHT


@dataclass(frozen=True)
class Answer:
    """What one worker did in a round: a piece, None if it could decode nothing, and what it has left."""

    piece: Piece | None
    left: Left = field(default_factory=Left)


def read_in_rounds(
    ranges: RangeSet,
    read: Callable[[RangeSet], Sequence[Answer]],
    decide: Callable[[Sequence[Any]], object],
    first: RangeSet | None = None,
) -> list[Piece]:
    """Read ranges in as many rounds as it takes, and return the pieces, which cover them.

    :param read: lets workers read ranges.
    :param decide: decides about what they brought up, in order; workers of the next round know the decisions.
    :param first: what the first round reads; default: everything.
    """
    pieces: list[Piece] = []
    while ranges:
        asked, first = first or ranges, None
        answers = read(asked)
        new = [answer.piece for answer in answers if answer.piece is not None]
        done = union(piece.ranges for piece in new)
        left = RangeSet(chunk for answer in answers for chunk in answer.left.chunks)
        brought: dict[Any, Place] = {}
        for answer in answers:
            for item, place in answer.left.brought.items():
                _note(brought, item, place)
        due = _in_order(brought, asked - done - left)
        if not done and not due:
            raise AssertionError(f"the workers read nothing of {asked}, and asked for no decision")
        if due:
            decide(due)
        pieces += new
        ranges -= done
    return pieces


def _in_order(brought: Mapping[Any, Place], unseen: RangeSet) -> list[Any]:
    """Return what is to be decided now: nothing behind records of its partition that nobody has looked at."""
    ends = {partition: unseen.intervals(topic, partition)[0][0] for topic, partition in unseen.partitions}
    in_order = sorted(brought.items(), key=lambda one: one[1])
    return [item for item, (partition, offset, _) in in_order if offset < ends.get(partition, offset + 1)]


def _note(brought: dict[Any, Place], item: Any, place: Place) -> None:
    brought[item] = min(place, brought.get(item, place))
