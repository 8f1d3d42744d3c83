"""The bad records among those that were read: how many, why, with examples, and how many a run may have.

A bad record is one that can't become a row without loss: it is rejected, or skipped where `on_error="skip"` says so.
What is known of them goes from the decoder, by way of other processes, to who commits. Pure values, no I/O.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_lakestream.exceptions import LakestreamError, Terminal

# Of each run so many kinds of reasons are kept, the most frequent ones, and so many examples of each.
MOST_KINDS = 5
MOST_EXAMPLES = 2
MOST_CAUSES = 5
# How many kinds of reasons an error shows.
_SHOWN = 3
# Reasons name values; without them they are kinds of reasons.
_VALUES = re.compile(r"'[^']*'|\"[^\"]*\"|-?\d[\d.,:eE+-]*")


def kind_of(reason: str) -> str:
    """Return a reason without the values that it names."""
    return _VALUES.sub("...", reason)


@dataclass(frozen=True, slots=True)
class Kind:
    """Bad records with one kind of reason, found at one stage; the examples are told in words."""

    stage: str
    reason: str
    count: int
    examples: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.count} at stage {self.stage}: {'; '.join(self.examples) or self.reason}"


@dataclass(frozen=True, slots=True)
class BadRecords:
    """How many records are bad, and why, as far as it is known.

    `kinds` are the most frequent kinds of reasons. `causes` says of how many of those records that were looked at
    which cause is likely; the empty text stands for no cause.
    """

    count: int = 0
    kinds: tuple[Kind, ...] = ()
    causes: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: BadRecords) -> BadRecords:
        if not other.count:
            return self
        causes = Counter(self.causes) + Counter(other.causes)
        return BadRecords(
            self.count + other.count,
            _most_frequent((*self.kinds, *other.kinds)),
            dict(causes.most_common(MOST_CAUSES)),
        )

    def __str__(self) -> str:
        shown = self.kinds[:_SHOWN]
        others = self.count - sum(kind.count for kind in shown)
        return "; ".join([*map(str, shown), *([f"{others} others"] if shown and others else [])])

    @property
    def reasons(self) -> str:
        """The most frequent kinds of reasons, without values, for the log of a run that goes on."""
        return "; ".join(f"{kind.count} at stage {kind.stage}: {kind.reason}" for kind in self.kinds[:_SHOWN])

    @property
    def likely_cause(self) -> str | None:
        """What is likely behind most of those that were looked at; None where nothing is."""
        cause, count = max(self.causes.items(), key=lambda item: item[1], default=("", 0))
        return cause if cause and 2 * count > sum(self.causes.values()) else None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        kinds = [[kind.stage, kind.reason, kind.count, list(kind.examples)] for kind in self.kinds]
        return {"count": self.count, "kinds": kinds, "causes": dict(self.causes)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> BadRecords:
        """Read what `to_dict` gave. Raises KeyError, TypeError and ValueError."""
        kinds = tuple(Kind(stage, reason, int(n), tuple(texts)) for stage, reason, n, texts in data["kinds"])
        return cls(int(data["count"]), kinds, dict(data["causes"]))


def _most_frequent(kinds: Iterable[Kind]) -> tuple[Kind, ...]:
    """Return kinds, each once, the most frequent first, and no more than `MOST_KINDS`."""
    found: dict[tuple[str, str], Kind] = {}
    for kind in kinds:
        key = kind.stage, kind.reason
        known = found.get(key, Kind(*key, 0))
        found[key] = Kind(*key, known.count + kind.count, (*known.examples, *kind.examples)[:MOST_EXAMPLES])
    return tuple(sorted(found.values(), key=lambda kind: -kind.count)[:MOST_KINDS])


class TooManyRejected(LakestreamError, Terminal):
    """More records are bad than the run may have."""

    def __init__(self, table: str, read: int, bad: BadRecords, limit: str, landed: int) -> None:
        self.table, self.read, self.bad, self.landed = table, read, bad, landed
        cause = f" Likely cause: {bad.likely_cause}." if bad.likely_cause else ""
        reasons = f" Bad records: {bad}." if bad.kinds else ""
        earlier = f" The {landed} records that it had committed before stay landed." if landed else ""
        super().__init__(
            f"{table}: {bad.count} of {read} records of this run are bad, {limit}.{cause}{reasons} What the run had "
            f"not committed yet was discarded; the next run reads it again.{earlier} Correct format, schema or the "
            "producer. If so many bad records are expected, give max_rejected: a count, a share such as 0.9, or 1.0 "
            'for any number; with on_error="reject" they are kept beside the table, and `lakestream rejects show` '
            "shows them."
        )


@dataclass(frozen=True, slots=True)
class RejectLimit:
    """How many bad records a run may have: a count, or a share of those that it read.

    A share counts only where there are at least `least` bad records.
    """

    count: int | None = None
    share: float | None = None
    least: int = 0

    def allows(self, read: int, bad: int, *, at_commit: bool) -> bool:
        """Tell whether so many are borne. A share is looked at before each commit only."""
        if self.count is not None and bad > self.count:
            return False
        if not at_commit or self.share is None or bad < max(1, self.least):
            return True
        # Divided, 29 of 100 is not more than 0.29; multiplied, it would be.
        return bad / read <= self.share

    def check(self, table: str, read: int, bad: BadRecords, landed: int, *, at_commit: bool) -> None:
        """Raise TooManyRejected where there are more. `landed` records of those read were committed before."""
        if not self.allows(read, bad.count, at_commit=at_commit):
            raise TooManyRejected(table, read, bad, self._exceeded, landed)

    @property
    def _exceeded(self) -> str:
        share = "" if self.share is None else f"{self.share:.4%}".rstrip("0%").rstrip(".") + "%"
        if self.least:
            return f"more than {share} of them, and max_rejected is not given"
        return f"more than max_rejected={share if self.count is None else self.count}"


# What holds where nothing is said. Up to half bad may be a producer that went wrong; beyond it, that what the run was
# told of the topic is wrong is likelier. Fewer than ten say nothing of a topic: a few records sent by hand, say.
USUAL = RejectLimit(share=0.5, least=10)
