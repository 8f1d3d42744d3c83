"""Advice for each cause, in the runbook's words: a test compares both texts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from airflow_lakestream.ui.page.states import FAILED_RUN, StateReason
from airflow_lakestream.watching.causes import StreamCause


@dataclass(frozen=True, slots=True)
class RunbookAdvice:
    """A section of the runbook, with steps."""

    title: str
    steps: tuple[str, ...]

    @property
    def anchor(self) -> str:
        """Anchor of the section in the runbook."""
        return self.title.lower().replace(",", "").replace(" ", "-")

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {"title": self.title, "anchor": self.anchor, "steps": list(self.steps)}


NOTHING_LANDS = RunbookAdvice(
    "Nothing lands",
    (
        "Is the DAG paused? Unpause it.",
        "Do its runs fail? Read the error in the task's log: it says what to do.",
        "Do its runs wait? Look at the pool, max_active_runs, and free worker slots.",
    ),
)
A_RUN_FAILED = RunbookAdvice(
    "Nothing lands",
    ("Read the error in the task's log: it says what to do.", "Is the DAG paused? Unpause it."),
)
TOO_SLOWLY = RunbookAdvice(
    "It lands, but too slowly",
    (
        "Does each run end at a limit? max_records leaves the rest for the next run: raise it, or schedule more often.",
        "Is the worker busy? More processors help, since one process reads for each, up to parallelism.",
        "Is one run too much for one worker? Share it, or take Spark.",
    ),
)
RECORDS_GONE = RunbookAdvice(
    "Records are gone from Kafka",
    (
        "Is there a copy: a mirrored cluster, a backup, the producer's database? Land it first, if so.",
        'To go on without them, run once with on_data_loss="record".',
        "Then find out why the stream was late.",
    ),
)
THE_QUERY = RunbookAdvice(
    "The Spark query",
    (
        "failed: the last line says what to do. After the repair clear the task.",
        "vanished: its machine or container is gone. The next try starts a new one; the ledger keeps each record from "
        "landing twice.",
    ),
)

_OF_CAUSE: dict[str, RunbookAdvice] = {
    FAILED_RUN: A_RUN_FAILED,
    StreamCause.STOPPED_CONSUMER: NOTHING_LANDS,
    StreamCause.NO_LANDING: NOTHING_LANDS,
    StreamCause.SLOW_CONSUMER: TOO_SLOWLY,
    StreamCause.LATE_PARTITION: TOO_SLOWLY,
    StreamCause.EXPIRING_RECORDS: TOO_SLOWLY,
    StreamCause.LOST_RECORDS: RECORDS_GONE,
    StreamCause.STOPPED_QUERY: THE_QUERY,
    StreamCause.FAILED_QUERY: THE_QUERY,
    StreamCause.VANISHED_QUERY: THE_QUERY,
    StreamCause.STUCK_QUERY: THE_QUERY,
}


def with_advice(reasons: Iterable[StateReason]) -> list[dict[str, Any]]:
    """Return reasons as JSON-ready values, with sections of the runbook.

    If several reasons have the same section, only the first reason gets it; a cause without a section has None.
    """
    titles: set[str] = set()
    reasons_with_advice = []
    for one in reasons:
        advice = _OF_CAUSE.get(one.cause)
        new = advice is not None and advice.title not in titles
        if advice is not None:
            titles.add(advice.title)
        reasons_with_advice.append(
            {**one.to_dict(), "advice": advice.to_dict() if advice is not None and new else None}
        )
    return reasons_with_advice
