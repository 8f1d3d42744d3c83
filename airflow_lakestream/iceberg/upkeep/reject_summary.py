"""Summary of a reject table for people: number of records by stage and reason, with examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.core.bad_records import kind_of
from airflow_lakestream.core.printable import printable
from airflow_lakestream.tables.coordinates import COORDINATES

COLUMNS = ("stage", "error", "value", "run_id", "rejected_at")
# Characters of a record's value in a line.
_MOST_SHOWN = 80


@dataclass(frozen=True, slots=True)
class RejectExample:
    """Rejected record in a summary."""

    topic: str
    partition: int
    offset: int
    error: str
    value: bytes | None
    run_id: str

    def to_dict(self) -> dict[str, Any]:
        """Return values for JSON; the record's value as text, with escapes for bytes outside of UTF-8."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "error": self.error,
            "value": None if self.value is None else self.value.decode(errors="backslashreplace"),
            "run_id": self.run_id,
        }

    @property
    def text(self) -> str:
        """The record as a line of text."""
        value = "null" if self.value is None else self.value[: _MOST_SHOWN + 1].decode(errors="backslashreplace")
        value = value if len(value) <= _MOST_SHOWN else f"{value[:_MOST_SHOWN]}..."
        return printable(f"{self.topic}[{self.partition}] offset {self.offset}: {self.error}: {value}")


@dataclass
class RejectReason:
    """Number and examples of rejected records with the same group, stage and kind of reason."""

    consumer_group: str
    stage: str
    kind: str
    count: int = 0
    examples: list[RejectExample] = field(default_factory=list)


def by_reason(parts: Iterable[pa.Table], examples: int) -> list[RejectReason]:
    """Return rejected records by group, stage and kind of reason, the most frequent first.

    :param parts: tables of rejected records, with the columns of `PLACE` and COLUMNS.
    :param examples: the number of examples of each reason, at most.
    """
    reasons: dict[tuple[str, str, str], RejectReason] = {}
    for part in parts:
        counted = part.group_by(["consumer_group", "stage", "error"]).aggregate([([], "count_all")])
        for row in counted.to_pylist():
            reason = _reason(reasons, row)
            reason.count += row["count_all"]
            if len(reason.examples) < examples:
                reason.examples += _examples(part, row, examples - len(reason.examples))
    return sorted(reasons.values(), key=lambda r: (-r.count, r.consumer_group, r.stage, r.kind))


def _reason(reasons: dict[tuple[str, str, str], RejectReason], row: dict[str, Any]) -> RejectReason:
    key = row["consumer_group"], row["stage"], kind_of(row["error"])
    return reasons.setdefault(key, RejectReason(*key))


def _examples(part: pa.Table, row: dict[str, Any], most: int) -> Iterator[RejectExample]:
    same = pc.and_(pc.equal(part["error"], row["error"]), pc.equal(part["stage"], row["stage"]))
    same = pc.and_(same, pc.equal(part["consumer_group"], row["consumer_group"]))
    for record in part.filter(same).slice(0, most).to_pylist():
        topic, partition, offset = (record[name] for name in COORDINATES)
        yield RejectExample(topic, partition, offset, record["error"], record["value"], record["run_id"])
