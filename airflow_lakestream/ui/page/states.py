"""State of a stream by Airflow's database. Pure functions without a query.

The words are the same as in `lakestream status`. That command asks Kafka and the tables; the facts here are the
newest run, the newest landing, and the last look of `supervise_lakestream`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from airflow_lakestream.ui.page.landings import TaskLanding
from airflow_lakestream.ui.page.runs import TaskTry
from airflow_lakestream.ui.page.supervision import SupervisionResult
from airflow_lakestream.watching.causes import StreamCause

# A cause that only Airflow knows; the other causes are shared with sensors and `lakestream status`.
FAILED_RUN = "failed run"
_FAILED = ("failed", "upstream_failed", "up_for_retry")
_RUNNING = ("running", "deferred", "restarting")
_WAITING = (None, "scheduled", "queued", "up_for_reschedule")


class PageState(StrEnum):
    """Activity of a stream; the worst comes first."""

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
    """Reason for a stream's state. `cause` is a `StreamCause` or FAILED_RUN; empty if no action is needed."""

    text: str
    cause: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return JSON-ready values."""
        return {"text": self.text, "cause": self.cause}


@dataclass(frozen=True, slots=True)
class StateFacts:
    """Facts about a stream."""

    paused: bool
    lasts: bool
    newest: TaskTry | None
    landing: TaskLanding | None
    supervised: SupervisionResult | None


def state_of(seen: StateFacts) -> tuple[PageState, list[StateReason]]:
    """Return a stream's state and the reasons, the worst first."""
    found = [*_of_newest_run(seen), *_of_supervision(seen), *_of_pause(seen), *_of_landing(seen)]
    order = list(PageState)
    found.sort(key=lambda one: order.index(one[0]))
    return found[0][0], [why for _, why in found if why.text]


def _of_newest_run(seen: StateFacts) -> Iterator[tuple[PageState, StateReason]]:
    newest = seen.newest
    if newest is None or newest.state not in _FAILED:
        return
    text = {
        "failed": "The newest run failed. The last line of its log says what to do.",
        "upstream_failed": "A task before it failed in the newest run.",
        "up_for_retry": "The newest run failed, and is tried again.",
    }[newest.state]
    yield PageState.FAILING, StateReason(text, FAILED_RUN)


def _of_supervision(seen: StateFacts) -> Iterator[tuple[PageState, StateReason]]:
    said = seen.supervised
    if said is None:
        return
    unseen = said.unseen()
    for why in dict.fromkeys(unseen.values()):
        yield PageState.UNSEEN, StateReason(why, StreamCause.COULD_NOT_LOOK)
    landing = seen.landing
    # Overdue records of the look have been landed since.
    is_over = landing is not None and landing.at > said.at and landing.lag == 0
    bad = [what for what in said.looks if said.is_bad(what) and what not in unseen and not is_over]
    for what, problem in said.problems.items():
        text = f"What the run {said.run_id} of {said.dag_id} has told of {what} could not be read: {problem}."
        yield PageState.IDLE, StateReason(text)
    if lost := said.value("lag", "lost"):
        yield (
            PageState.FAILING,
            StateReason(f"Kafka no longer has {_count(lost)} that were not landed.", StreamCause.LOST_RECORDS),
        )
    if "retention" in bad:
        left = said.value("retention", "time_left")
        when = "soon" if left is None else f"in {int(left) // 60} minutes"
        yield (
            PageState.BEHIND,
            StateReason(f"Kafka removes the first record that is not landed {when}.", StreamCause.EXPIRING_RECORDS),
        )
    if "freshness" in bad:
        reasons = said.value("freshness", "reasons") or [
            {"cause": StreamCause.STOPPED_CONSUMER, "text": "nothing was landed"}
        ]
        for one in reasons:
            yield PageState.STALLED, StateReason(f"Not fresh: {one.get('text')}.", str(one.get("cause", "")))
    if "lag" in bad and not said.value("lag", "lost"):
        lag = said.value("lag", "lag")
        text = "Records wait for too long." if lag is None else f"{_count(lag)} wait, and for too long."
        yield PageState.BEHIND, StateReason(text, StreamCause.SLOW_CONSUMER)


def _of_pause(seen: StateFacts) -> Iterator[tuple[PageState, StateReason]]:
    if seen.paused and not (seen.newest and seen.newest.state in _RUNNING):
        yield PageState.PAUSED, StateReason("The DAG is paused.", StreamCause.STOPPED_CONSUMER)


def _of_landing(seen: StateFacts) -> Iterator[tuple[PageState, StateReason]]:
    newest, landing = seen.newest, seen.landing
    if landing is not None and landing.problem:
        text = f"What the run {landing.run_id} has told of its landing could not be read: {landing.problem}."
        yield PageState.IDLE, StateReason(text)
    if newest is None and landing is None:
        yield PageState.NEW, StateReason("There was no run yet.")
    elif newest is not None and newest.state in _RUNNING:
        yield PageState.LANDING, StateReason("A run is on.")
    elif newest is not None and newest.state in _WAITING:
        yield PageState.IDLE, StateReason("A run waits for its turn.")
    elif landing is not None and (newest is None or landing.run_id == newest.run_id):
        # Not behind: records that came since may be young. Only a look at Kafka shows whether records are overdue.
        left = 0 if seen.lasts else landing.lag or 0
        yield PageState.LANDING, StateReason(f"The newest run left {_count(left)} for the next one." if left else "")
    else:
        yield PageState.IDLE, StateReason("The newest run found nothing to land." if _ended_well(newest) else "")


def _ended_well(newest: TaskTry | None) -> bool:
    return newest is not None and newest.state in ("success", "skipped")


def _count(offsets: int) -> str:
    return f"{int(offsets):,} offset{'' if offsets == 1 else 's'}"
