"""The record at fault in the trace of a failed task."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_lakestream.kafka.java import JavaDamage

# The forms of Iceberg's sink, of Connect's own messages, and of most other sinks.
_PLACES = (
    re.compile(
        r"topic:? '?(?P<topic>[\w.-]+)'?, partition:?,? '?(?P<partition>\d+)'?,?"
        r"(?: and| at)? offset:? '?(?P<offset>\d+)"
    ),
    re.compile(
        r"topic '(?P<topic>[\w.-]+)',? (?:in )?partition (?P<partition>\d+),? (?:and|at) offset (?P<offset>\d+)"
    ),
    re.compile(r"\b(?P<topic>[\w.-]+)-(?P<partition>\d+)(?:@| at offset )(?P<offset>\d+)"),
)
_NESTED = re.compile(r"^Caused by: ", re.MULTILINE)
# Connect's message if a converter or a transformation failed at a record.
_OF_A_RECORD = "Tolerance exceeded in error handler"
# A converter that can't reach its schema registry fails at any record.
_PASSING = re.compile(
    r"RestClientException|IOException|ConnectException: Connection|Socket|Timeout|Retriable|UnknownHost"
)


@dataclass(frozen=True, order=True)
class TraceRecord:
    """A record at which a task failed: with the place, or with the error if the trace has no place."""

    topic: str = ""
    partition: int = -1
    offset: int = -1
    error: str = ""

    @property
    def is_placed(self) -> bool:
        """Whether the record's place is known."""
        return self.offset >= 0

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] offset {self.offset}" if self.is_placed else self.error


def culprit_of(trace: str) -> TraceRecord | None:
    """Return the record at which a task failed; None if the trace blames no record.

    A damaged batch, and an error that may pass, such as a registry without an answer, blame no record. If the trace has
    no place, the result has the error alone.
    """
    if (damage := JavaDamage.of(trace)) is not None and damage.topic:
        return None
    for place in _PLACES:
        if match := place.search(trace):
            return TraceRecord(match["topic"], int(match["partition"]), int(match["offset"]))
    if _OF_A_RECORD in trace and not _PASSING.search(trace):
        return TraceRecord(error=cause_of(trace))
    return None


def cause_of(trace: str) -> str:
    """Return the innermost error of a trace, in a single line."""
    innermost = _NESTED.split(trace)[-1].strip()
    return innermost.splitlines()[0].strip()[:300] if innermost else ""
