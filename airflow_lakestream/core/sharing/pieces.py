"""Shares of a plan for several workers, and the pieces handed over for the commit.

A share has the offsets for one worker to read. A piece is part of a share that was read and written: its offsets, its
counts and its files, never rows. Both travel as versioned JSON. Pure values, no I/O.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, TypeVar

from airflow_lakestream.core.bad_records import BadRecords
from airflow_lakestream.core.codec import decode_ranges, encode_ranges
from airflow_lakestream.core.column_use import ColumnUse
from airflow_lakestream.core.landing.plan import Plan, TopicState
from airflow_lakestream.core.ledger import Counts, CountsDoNotAddUp, FunctionRows, TopicIdentity, union
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.exceptions import LakestreamError, Terminal

log = logging.getLogger(__name__)

# The version of the JSON form.
VERSION = 5
Read = TypeVar("Read")

# Metadata of files from the sink of a worker to the committing sink; the core only passes it on.
Files = Mapping[str, Any]


class UnreadablePiece(LakestreamError, Terminal):
    """A share or a piece has a form unknown to this version."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"what another task handed over can't be read: {problem}. "
            "Do all workers have the same version of airflow-lakestream? Clear the group's tasks to run them again."
        )


@dataclass(frozen=True, slots=True)
class PlanShare:
    """Offset ranges for a worker to read; the epochs are the plan's, see `core.landing.plan.Plan`."""

    identity: TopicIdentity
    ranges: RangeSet
    epochs: Mapping[int, int] = field(default_factory=dict)
    known_epochs: Mapping[int, int] = field(default_factory=dict)
    known_until: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, ranges: RangeSet) -> PlanShare:
        """Return a share of a plan."""
        return cls(plan.state.identity, ranges, plan.epochs, plan.known_epochs, plan.known_until)

    @property
    def plan(self) -> Plan:
        """The plan for the share's reader: without watermarks and ledger facts, which only the commit needs."""
        return Plan(
            TopicState(self.identity, {}),
            self.ranges,
            epochs=self.epochs,
            known_epochs=self.known_epochs,
            known_until=self.known_until,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the share as JSON-ready values."""
        return {
            **_heading(self.identity, self.ranges),
            "epochs": _numbers(self.epochs),
            "known_epochs": _numbers(self.known_epochs),
            "known_until": _numbers(self.known_until),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PlanShare:
        """Parse a share. Raises UnreadablePiece."""
        numbers = ("epochs", "known_epochs", "known_until")
        return _read(data, lambda: cls(*_head(data), *(_mapping(data[name]) for name in numbers)))


@dataclass(frozen=True, slots=True)
class SharePiece:
    """Offsets read and files written by a worker. `epochs` are the leader epochs from before the read.

    `made`: see `core.ledger.Landing`; it does not travel, since only the driver of Spark knows it.
    """

    identity: TopicIdentity
    ranges: RangeSet
    by_partition: Mapping[int, Counts]
    epochs: Mapping[int, int]
    files: Files
    bad: BadRecords = BadRecords()
    made: FunctionRows | None = None
    use: ColumnUse = ColumnUse()

    @property
    def counts(self) -> Counts:
        """The counts of all partitions."""
        return sum(self.by_partition.values(), Counts())

    def to_dict(self) -> dict[str, Any]:
        """Return the piece as JSON-ready values, without `made`."""
        return {
            **_heading(self.identity, self.ranges),
            "counts": {str(partition): list(astuple(counts)) for partition, counts in self.by_partition.items()},
            "epochs": _numbers(self.epochs),
            "files": dict(self.files),
            "bad": self.bad.to_dict(),
            "use": self.use.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SharePiece:
        """Parse a piece. Raises UnreadablePiece."""
        return _read(
            data,
            lambda: cls(
                *_head(data),
                _counts(data["counts"]),
                _mapping(data["epochs"]),
                dict(data["files"]),
                BadRecords.from_dict(data["bad"]),
                use=ColumnUse.from_dict(data["use"]),
            ),
        )


class HandedPieces:
    """Pieces handed to the committing run; each look decides again on the usable pieces."""

    def __init__(self, pieces: Iterable[SharePiece] = ()) -> None:
        self._pieces = tuple(pieces)
        self._taken: set[int] = set()

    def usable(
        self, identity: TopicIdentity, in_ledger: RangeSet, misfit: Callable[[Files], str | None]
    ) -> list[SharePiece]:
        """Return the pieces fit for a commit; the offsets of unfit pieces are read again if still missing.

        Logs a warning of each unfit piece, except pieces that this run has committed itself.

        :param in_ledger: offsets that no longer need landing; a piece that overlaps them was landed by another run.
        :param misfit: returns the reason why files can't go into the table as it is now, or None.
        """
        usable_pieces: list[SharePiece] = []
        for number, piece in enumerate(self._pieces):
            reason = self._unfit_reason(piece, identity, in_ledger, misfit)
            if reason is None:
                usable_pieces.append(piece)
                in_ledger |= piece.ranges
            elif number not in self._taken:
                log.warning("Files of %s are not used: %s.", piece.ranges, reason)
        return usable_pieces

    def take(self, pieces: Iterable[SharePiece]) -> None:
        """Mark pieces as committed by this run: `usable` then gives no warning of their landed offsets."""
        ids = set(map(id, pieces))
        self._taken |= {number for number, piece in enumerate(self._pieces) if id(piece) in ids}

    def _unfit_reason(
        self, piece: SharePiece, identity: TopicIdentity, in_ledger: RangeSet, misfit: Callable[[Files], str | None]
    ) -> str | None:
        """Return the reason against a piece, or None; see `usable`."""
        if piece.identity != identity:
            return "they were read from another incarnation of the topic"
        if overlap := piece.ranges & in_ledger:
            return f"{overlap} is landed already"
        return misfit(piece.files)


def split(ranges: RangeSet, most: int, least_width: int = 1) -> list[RangeSet]:
    """Cut a set of offsets into at most `most` disjoint shares of nearly equal width, at least `least_width` each.

    Partitions are put end to end and cut once a share is full: a large partition goes to several workers, several
    small ones go to one. A set narrower than `least_width` is a single share; an empty set has no share.
    """
    width = ranges.width
    count = min(most, max(1, width // max(1, least_width))) if width else 0
    shares: list[list[OffsetRange]] = [[] for _ in range(count)]
    position = number = 0
    for r in ranges:
        start = r.from_offset
        while start < r.until_offset:
            # Share `number` ends at this multiple of the mean width, counted over all partitions.
            until = min(r.until_offset, start + width * (number + 1) // count - position)
            shares[number].append(OffsetRange(r.topic, r.partition, start, until))
            position += until - start
            start = until
            number += position == width * (number + 1) // count
    return [RangeSet(share) for share in shares]


def at_most_offsets(ranges: RangeSet, most: int) -> RangeSet:
    """Return `most` offsets: the first of each partition, in proportion to the partitions' widths.

    A narrower set is returned unchanged.
    """
    width = ranges.width
    if width <= most:
        return ranges
    sets = [ranges.of_partition(*key) for key in ranges.partitions]
    quotas = [part.width * most // width for part in sets]
    remaining = most - sum(quotas)
    # Rounding down left some offsets over: one more for each of the first partitions.
    for number, part in enumerate(sets):
        if remaining and quotas[number] < part.width:
            quotas[number] += 1
            remaining -= 1
    return union(_beginning(part, quota) for part, quota in zip(sets, quotas, strict=True))


def ranges_to_dict(identity: TopicIdentity, ranges: RangeSet) -> dict[str, Any]:
    """Return ranges of a topic as JSON-ready values."""
    return _heading(identity, ranges)


def ranges_from_dict(data: Mapping[str, Any]) -> RangeSet:
    """Parse ranges. Raises UnreadablePiece."""
    return _read(data, lambda: _head(data)[1])


def _beginning(ranges: RangeSet, width: int) -> RangeSet:
    """Return the first `width` offsets."""
    first_ranges = []
    for r in ranges:
        if width > 0:
            until = min(r.until_offset, r.from_offset + width)
            first_ranges.append(OffsetRange(r.topic, r.partition, r.from_offset, until))
            width -= until - r.from_offset
    return RangeSet(first_ranges)


def _heading(identity: TopicIdentity, ranges: RangeSet) -> dict[str, Any]:
    """Return the version, topic and ranges of a share or a piece as JSON-ready values."""
    return {
        "version": VERSION,
        "topic": identity.topic,
        "id": identity.topic_id,
        "cluster": identity.cluster_id,
        "ranges": encode_ranges(ranges, identity.topic),
    }


def _head(data: Mapping[str, Any]) -> tuple[TopicIdentity, RangeSet]:
    """Parse the topic and the ranges from the values of `_heading`."""
    identity = TopicIdentity(data["topic"], data["id"], data["cluster"])
    return identity, decode_ranges(data["ranges"], identity.topic)


def _read(data: Mapping[str, Any], make: Callable[[], Read]) -> Read:
    """Check the version of `data`, and return the object that `make` parses. Raises UnreadablePiece."""
    try:
        if data["version"] != VERSION:
            raise UnreadablePiece(f"its version is {data['version']}, this one reads {VERSION}")
        return make()
    except (KeyError, TypeError, ValueError, AttributeError, CountsDoNotAddUp) as e:
        raise UnreadablePiece(f"{e!r} in {json.dumps(data, default=str)[:200]}") from e


def _numbers(values: Mapping[int, int]) -> dict[str, int]:
    return {str(key): value for key, value in values.items()}


def _counts(values: Mapping[str, Sequence[int]]) -> dict[int, Counts]:
    return {int(partition): Counts(*counts) for partition, counts in values.items()}


def _mapping(values: Mapping[str, int]) -> dict[int, int]:
    return {int(key): value for key, value in values.items()}
