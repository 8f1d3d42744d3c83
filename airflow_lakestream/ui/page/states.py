"""State of a stream, decided from facts in Airflow's database. Pure functions: nothing is queried here.

The words are the same as in `lakestream status`, which asks Kafka and the tables. The facts here are the newest run,
the newest landing, and the last look of the bundled DAG `supervise_lakestream`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_lakestream.ui.page.landings import TaskLanding
from airflow_lakestream.ui.page.newest import TaskTry
from airflow_lakestream.ui.page.supervision import SupervisionResult
from airflow_lakestream.watching.causes import StreamCause

# A cause that only Airflow knows; the other causes are shared with sensors and `lakestream status`.
FAILED_RUN = "failed run"
# Causes about the content of a table, and not about its age.
_ABOUT_CONTENT = (StreamCause.SILENT_COLUMNS, StreamCause.STALE_COLUMNS)
# Airflow's states of a task; None: not scheduled yet.
_FAILED = ("failed", "upstream_failed", "up_for_retry")
_RUNNING = ("running", "deferred", "restarting")
_WAITING = (None, "scheduled", "queued", "up_for_reschedule")


class PageState(StrEnum):
    """Activity of a stream; the worst comes first."""

    BROKEN = "broken"
    FAILING = "failing"
    STALLED = "stalled"
    UNSEEN = "could not look"
    BEHIND = "behind"
    PAUSED = "paused"
    NEW = "new"
    LANDING = "landing"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class StateReason:
    """Reason for a stream's state. `cause` is a `StreamCause` or FAILED_RUN, or empty if nothing has to be done."""

    text: str
    cause: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return JSON-ready values."""
        return {"text": self.text, "cause": self.cause}


@dataclass(frozen=True, slots=True)
class StateFacts:
    """Facts about a stream.

    :param paused: whether the stream's runs wait until the DAG is unpaused.
    :param lasts: whether a run never ends by itself.
    :param newest: the task in the newest run, or None.
    :param landing: the newest landing, or None.
    :param supervised: the last looks, or None.
    :param broken: the first problem of the pipeline's file, or None.
    """

    paused: bool
    lasts: bool
    newest: TaskTry | None
    landing: TaskLanding | None
    supervised: SupervisionResult | None
    broken: str | None = None


def state_of(facts: StateFacts) -> tuple[PageState, list[StateReason]]:
    """Return a pair: the worst state that the facts show, and all reasons, the worst first."""
    states = [*_of_file(facts), *_of_newest_run(facts), *_of_supervision(facts), *_of_pause(facts), *_of_landing(facts)]
    order = list(PageState)
    states.sort(key=lambda state_and_reason: order.index(state_and_reason[0]))
    return states[0][0], [reason for _, reason in states if reason.text]


def _of_file(facts: StateFacts) -> Iterator[tuple[PageState, StateReason]]:
    if facts.broken is not None:
        text = f"The pipeline's file is broken, and no run of it is scheduled: {facts.broken}"
        yield PageState.BROKEN, StateReason(text)


def _of_newest_run(facts: StateFacts) -> Iterator[tuple[PageState, StateReason]]:
    newest = facts.newest
    if newest is None or newest.state not in _FAILED:
        return
    text = {
        "failed": "The newest run failed: the error in its log has the remedy.",
        "upstream_failed": "A task before it failed in the newest run.",
        "up_for_retry": "The newest run failed, and is tried again.",
    }[newest.state]
    yield PageState.FAILING, StateReason(text, FAILED_RUN)


def _of_supervision(facts: StateFacts) -> Iterator[tuple[PageState, StateReason]]:
    """Yield the states that the last looks of `supervise_lakestream` show."""
    result = facts.supervised
    if result is None:
        return
    unseen = result.unseen()
    for reason in dict.fromkeys(unseen.values()):
        yield PageState.UNSEEN, StateReason(reason, StreamCause.COULD_NOT_LOOK)
    landing = facts.landing
    # A later landing has left no record: the records that were overdue are landed.
    is_over = landing is not None and landing.at > result.at and landing.lag == 0
    bad = [kind for kind in result.looks if result.is_bad(kind) and kind not in unseen and not is_over]
    for kind, problem in result.problems.items():
        text = f"The {kind} that the run {result.run_id} of {result.dag_id} reported could not be read: {problem}."
        yield PageState.IDLE, StateReason(text)
    if lost := result.value("lag", "lost"):
        yield (
            PageState.FAILING,
            StateReason(f"Kafka no longer has {_count(lost)} that were not landed.", StreamCause.LOST_RECORDS),
        )
    if "retention" in bad:
        left = result.value("retention", "time_left")
        when = "soon" if left is None else f"in {int(left) // 60} minutes"
        yield (
            PageState.BEHIND,
            StateReason(f"Kafka removes the first record that is not landed {when}.", StreamCause.EXPIRING_RECORDS),
        )
    if "freshness" in bad:
        reasons = result.value("freshness", "reasons") or [
            {"cause": StreamCause.STOPPED_CONSUMER, "text": "nothing was landed"}
        ]
        for sensor_reason in reasons:
            cause, reason_text = str(sensor_reason.get("cause", "")), str(sensor_reason.get("text"))
            text = f"{reason_text}." if cause in _ABOUT_CONTENT else f"Not fresh: {reason_text}."
            yield PageState.STALLED, StateReason(text[0].upper() + text[1:], cause)
    if "lag" in bad and not result.value("lag", "lost"):
        lag = result.value("lag", "lag")
        text = "Records wait for too long." if lag is None else f"{_count(lag)} wait, and for too long."
        yield PageState.BEHIND, StateReason(text, StreamCause.SLOW_CONSUMER)


def _of_pause(facts: StateFacts) -> Iterator[tuple[PageState, StateReason]]:
    if facts.paused and not (facts.newest and facts.newest.state in _RUNNING):
        yield PageState.PAUSED, StateReason("The DAG is paused.", StreamCause.STOPPED_CONSUMER)


def _of_landing(facts: StateFacts) -> Iterator[tuple[PageState, StateReason]]:
    """Yield the state that the newest run and the newest landing show."""
    newest, landing = facts.newest, facts.landing
    if landing is not None and landing.problem:
        text = f"The report of the run {landing.run_id} could not be read: {landing.problem}."
        yield PageState.IDLE, StateReason(text)
    if newest is None and landing is None:
        yield PageState.NEW, StateReason("There was no run yet.")
    elif newest is not None and newest.state in _RUNNING:
        yield PageState.LANDING, StateReason("A run is in progress.")
    elif newest is not None and newest.state in _WAITING:
        yield PageState.IDLE, StateReason("A run waits for its turn.")
    elif landing is not None and (newest is None or landing.run_id == newest.run_id):
        # The state is not BEHIND: only a look at Kafka shows whether the records that the run left are overdue.
        left = 0 if facts.lasts else landing.lag or 0
        yield PageState.LANDING, StateReason(f"The newest run left {_count(left)} for the next one." if left else "")
    else:
        ended_well = newest is not None and newest.state in ("success", "skipped")
        yield PageState.IDLE, StateReason("The newest run found nothing to land." if ended_well else "")


def _count(offsets: int) -> str:
    return f"{int(offsets):,} offset{'' if offsets == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class RunbookAdvice:
    """A section of docs/runbook.md, with its first steps."""

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
        "Do runs fail? The error in the task's log has the remedy.",
        "Do runs wait? Look at the pool, max_active_runs, and free worker slots.",
    ),
)
A_RUN_FAILED = RunbookAdvice(
    "Nothing lands", ("The error in the task's log has the remedy.", "Is the DAG paused? Unpause it.")
)
TOO_SLOWLY = RunbookAdvice(
    "It lands, but too slowly",
    (
        "Does each run end at a limit? max_records leaves the rest for the next run: raise the limit, or schedule more "
        "often.",
        "Is the worker busy? More processors help, up to parallelism.",
        "Is one run too much for one worker? Share it, or take Spark.",
    ),
)
RECORDS_GONE = RunbookAdvice(
    "Records are gone from Kafka",
    (
        "If a copy exists (a mirrored cluster, a backup, the producer's database), land the copy first.",
        'To go on without these records, run once with on_data_loss="record".',
        "Then find out why the stream was late.",
    ),
)
THE_QUERY = RunbookAdvice(
    "The Spark query",
    (
        "failed: the last line has the remedy. Then clear the task.",
        "vanished: the driver's machine or container is gone. The next try starts a new driver; no record lands twice.",
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
    """Return reasons as JSON-ready values, each with a section of the runbook as `advice`, or None.

    If several reasons have the same section, only the first reason gets the section.
    """
    titles: set[str] = set()
    reasons_with_advice = []
    for reason in reasons:
        advice = _OF_CAUSE.get(reason.cause)
        new = advice is not None and advice.title not in titles
        if advice is not None:
            titles.add(advice.title)
        reasons_with_advice.append(
            {**reason.to_dict(), "advice": advice.to_dict() if advice is not None and new else None}
        )
    return reasons_with_advice
