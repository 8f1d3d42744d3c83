"""A look as a series of questions: a check asks them one by one, and its runner answers.

A worker answers at once. A triggerer answers in a pool of threads, and shares each answer with all who ask the same
question. So both use the same check, and an event loop is never blocked.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from airflow_lakestream.watching.verdict import LookOutcome, Missing, Verdict, verdict_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_lakestream.delta.storage import DeltaStorage


class Places(Protocol):
    """Opens connections. Every call may block; nothing is kept."""

    def kafka(self, conn_id: str) -> tuple[Mapping[str, Any], str]:
        """Return (librdkafka configuration, name of the connection for errors). Raises InvalidArgument."""

    def catalog(self, conn_id: str) -> Catalog:
        """Open a catalog. Raises InvalidArgument, CatalogUnavailable."""

    def store_properties(self, conn_id: str | None) -> Mapping[str, str] | None:
        """Return the properties that open an object store; None without a connection. Raises InvalidArgument."""

    def delta(self, conn_id: str | None) -> DeltaStorage:
        """Open the store of Delta tables. Raises InvalidArgument."""


@dataclass(frozen=True)
class Ask:
    """One question. Equal questions have the same `key`; `answer` may block.

    `keep`: for how many seconds the answer may be shared; None: the runner decides.
    """

    key: tuple[Hashable, ...]
    answer: Callable[[], Any]
    keep: float | None = None


# Yields questions, receives the answers, returns the result. Between two questions it only computes.
Looking = Generator[Ask, Any, Verdict]


class Check(Protocol):
    """What a sensor waits for. Made from the sensor's arguments; holds connection ids, never secrets."""

    missing: Missing

    @property
    def subject(self) -> str:
        """What is looked at: checks of one subject look at the same time."""

    def look(self, places: Places, waited: float) -> Looking:
        """Look once. `waited` are the seconds since the task began."""


def guarded(check: Check, places: Places, waited: float, *, forgiving: bool = False) -> Looking:
    """Look once, with errors turned into verdicts.

    :param forgiving: wait after an error that a retry may fix.
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
