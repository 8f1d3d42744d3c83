"""How a look is taken apart: a check asks its questions one by one, and whoever runs it gets the answers.

A worker asks at once. A triggerer asks in a pool of threads, and gives one answer to all who ask the same question.
So there is one check for both, and nothing of it blocks an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_lakestream.watching.places import Places
from airflow_lakestream.watching.verdict import LookOutcome, Missing, Verdict, verdict_of


@dataclass(frozen=True)
class Ask:
    """One question. `key` is the same for the same question; `answer` may block.

    `keep` is for how many seconds an answer serves others too; None: for as long as the one who runs the looks says.
    """

    key: tuple[Hashable, ...]
    answer: Callable[[], Any]
    keep: float | None = None


# Yields questions, is sent their answers, returns what it makes of them. Between two questions it only computes.
Looking = Generator[Ask, Any, Verdict]


class Check(Protocol):
    """What a sensor waits for. It is made of the sensor's arguments, and holds ids of connections, never secrets."""

    missing: Missing

    @property
    def subject(self) -> str:
        """What is looked at: checks of the same subject are due at the same time."""

    def look(self, places: Places, waited: float) -> Looking:
        """Look once. `waited` are the seconds since the task began."""


def guarded(check: Check, places: Places, waited: float, *, forgiving: bool = False) -> Looking:
    """Look once, with errors as verdicts.

    :param forgiving: what a retry may mend is waited for.
    """
    try:
        verdict = yield from check.look(places, waited)
    except Exception as e:  # noqa: BLE001  # whatever went wrong is told by the verdict, in every mode alike
        verdict = verdict_of(e, check.missing)
    if forgiving and verdict.outcome is LookOutcome.FAILED and not verdict.terminal:
        return Verdict(LookOutcome.WAITING, verdict.reasons, verdict.value)
    return verdict


def look_now(looking: Looking) -> Verdict:
    """Run a look in this thread."""
    verdict: Verdict = run_now(looking)
    return verdict


def run_now(looking: Generator[Ask, Any, Any]) -> Any:
    """Run a look, or a part of one, in this thread; return what it returns."""
    try:
        ask = next(looking)
        while True:
            try:
                answer = ask.answer()
            except Exception as e:  # noqa: BLE001  # the look decides what becomes of it
                ask = looking.throw(e)
            else:
                ask = looking.send(answer)
    except StopIteration as end:
        return end.value
