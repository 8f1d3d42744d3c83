"""Bad records of a run, with counts, reasons and examples, and the limit of a run.

A bad record cannot become a row without loss: it is rejected, or skipped with `on_error="skip"`.
The figures go from the decoder, through other processes, to the committing run. Pure values, no I/O.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_lakestream.exceptions import LakestreamError, Terminal

# Limits of what a run keeps: the most frequent kinds of reasons, the examples of each, and the likely causes.
MOST_KINDS = 5
MOST_EXAMPLES = 2
MOST_CAUSES = 5
# How many kinds of reasons an error shows.
_SHOWN = 3
# Reasons quote values; without the values, reasons of one kind are equal.
_VALUES = re.compile(r"'[^']*'|\"[^\"]*\"|-?\d[\d.,:eE+-]*")


def kind_of(reason: str) -> str:
    """Return a reason without quoted values."""
    return _VALUES.sub("...", reason)


@dataclass(frozen=True, slots=True)
class ReasonKind:
    """Bad records of a stage with a kind of reason; `examples` are texts."""

    stage: str
    reason: str
    count: int
    examples: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.count} at stage {self.stage}: {'; '.join(self.examples) or self.reason}"


@dataclass(frozen=True, slots=True)
class BadRecords:
    """Number of bad records and the most frequent reasons, as far as known.

    `kinds` are the most frequent kinds of reasons. `causes` counts the likely causes of the records that were
    examined; the empty text means no cause.
    """

    count: int = 0
    kinds: tuple[ReasonKind, ...] = ()
    causes: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: BadRecords) -> BadRecords:
        if not other.count:
            return self
        causes = Counter(self.causes) + Counter(other.causes)
        return BadRecords(
            self.count + other.count, _most_frequent((*self.kinds, *other.kinds)), dict(causes.most_common(MOST_CAUSES))
        )

    def __str__(self) -> str:
        shown = self.kinds[:_SHOWN]
        remaining = self.count - sum(kind.count for kind in shown)
        return "; ".join([*map(str, shown), *([f"{remaining} others"] if shown and remaining else [])])

    @property
    def reasons(self) -> str:
        """The most frequent kinds of reasons, without values, for the log of a continuing run."""
        return "; ".join(f"{kind.count} at stage {kind.stage}: {kind.reason}" for kind in self.kinds[:_SHOWN])

    @property
    def likely_cause(self) -> str | None:
        """The likely cause of most examined records, or None."""
        cause, count = max(self.causes.items(), key=lambda item: item[1], default=("", 0))
        return cause if cause and 2 * count > sum(self.causes.values()) else None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        kinds = [[kind.stage, kind.reason, kind.count, list(kind.examples)] for kind in self.kinds]
        return {"count": self.count, "kinds": kinds, "causes": dict(self.causes)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> BadRecords:
        """Parse the values of `to_dict`. Raises KeyError, TypeError and ValueError."""
        kinds = tuple(ReasonKind(stage, reason, int(n), tuple(texts)) for stage, reason, n, texts in data["kinds"])
        return cls(int(data["count"]), kinds, dict(data["causes"]))


def _most_frequent(kinds: Iterable[ReasonKind]) -> tuple[ReasonKind, ...]:
    """Return the `MOST_KINDS` most frequent kinds, each once, the most frequent first."""
    by_key: dict[tuple[str, str], ReasonKind] = {}
    for kind in kinds:
        key = kind.stage, kind.reason
        earlier = by_key.get(key, ReasonKind(*key, 0))
        by_key[key] = ReasonKind(*key, earlier.count + kind.count, (*earlier.examples, *kind.examples)[:MOST_EXAMPLES])
    return tuple(sorted(by_key.values(), key=lambda kind: -kind.count)[:MOST_KINDS])


class TooManyRejected(LakestreamError, Terminal):
    """The run has more bad records than the limit allows."""

    def __init__(self, table: str, read: int, bad: BadRecords, limit: str, landed: int) -> None:
        self.table, self.read, self.bad, self.landed = table, read, bad, landed
        cause = f" Likely cause: {bad.likely_cause}." if bad.likely_cause else ""
        reasons = f" Bad records: {bad}." if bad.kinds else ""
        earlier = f" The {landed} records that it committed before stay landed." if landed else ""
        super().__init__(
            f"{table}: {bad.count} of {read} records of this run are bad, {limit}.{cause}{reasons} Uncommitted "
            f"records were discarded; the next run reads them again.{earlier} Correct format, schema or the "
            "producer. If you expect this number of bad records, set max_rejected: a count, a share such as 0.9, "
            'or 1.0 for any number. With on_error="reject" they are kept next to the table; `lakestream rejects show` '
            "shows them."
        )


@dataclass(frozen=True, slots=True)
class RejectLimit:
    """Limit of bad records of a run: a count, or a share of the records read.

    A share counts only from `least` bad records on.
    """

    count: int | None = None
    share: float | None = None
    least: int = 0

    def allows(self, read: int, bad: int, *, at_commit: bool) -> bool:
        """Return whether the run may have `bad` bad records of `read` records.

        A count is a limit at any time. A share is checked only if `at_commit`, just before a commit, and only from
        `least` bad records on.
        """
        if self.count is not None and bad > self.count:
            return False
        if not at_commit or self.share is None or bad < max(1, self.least):
            return True
        # Division, since 29 / 100 <= 0.29 holds, while 0.29 * 100 is less than 29.
        return bad / read <= self.share

    def check(self, table: str, read: int, bad: BadRecords, landed: int, *, at_commit: bool) -> None:
        """Raise TooManyRejected above the limit. `landed` of the records read were committed before."""
        if not self.allows(read, bad.count, at_commit=at_commit):
            raise TooManyRejected(table, read, bad, self._exceeded, landed)

    @property
    def _exceeded(self) -> str:
        """The limit in words, for the error."""
        share = "" if self.share is None else f"{self.share:.4%}".rstrip("0%").rstrip(".") + "%"
        if self.least:
            return f"more than {share} of them, and max_rejected is not given"
        return f"more than max_rejected={share if self.count is None else self.count}"


# The default. Up to half bad may be a faulty producer; beyond that a wrong argument of the run is likelier. Fewer than
# ten bad records do not show a topic's state: somebody may have sent them by hand.
USUAL = RejectLimit(share=0.5, least=10)
