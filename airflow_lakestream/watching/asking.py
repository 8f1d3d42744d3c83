"""A look as a series of questions, with a result: done, waiting, or failed, with named reasons and a value for XCom.

A check asks the questions one by one, and its runner answers. A worker answers at once. A triggerer answers in a pool
of threads, and shares each answer with all who ask the same question. So both use the same check, and an event loop is
never blocked.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Generator, Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from airflow_lakestream.core.policies import MissingPolicy as MissingPolicy
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal, UnknownValue
from airflow_lakestream.kafka.errors import KafkaMisconfigured, KafkaRefused, TopicMissing
from airflow_lakestream.spark.checkpoint import CheckpointDamaged
from airflow_lakestream.watching.causes import StreamCause, StreamReason, join_reasons

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_lakestream.delta.storage import DeltaStorage


log = logging.getLogger(__name__)


class LookOutcome(StrEnum):
    """State of a sensor after a look. TIMED_OUT: the sensor was still waiting when its timeout ended."""

    DONE = "done"
    WAITING = "waiting"
    FAILED = "failed"
    TIMED_OUT = "timed out"


@dataclass(frozen=True)
class Verdict:
    """Result of a look.

    `reasons` are for people. `value` is JSON-ready, for the task's XCom; None after an error. `terminal` is True if any
    further look fails in the same way, until a person changes something.
    """

    outcome: LookOutcome
    reasons: tuple[StreamReason, ...] = ()
    value: Mapping[str, Any] | None = None
    terminal: bool = False

    @property
    def text(self) -> str:
        """The reasons as text."""
        return join_reasons(self.reasons)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values, for a trigger's event to the task."""
        return {
            "outcome": self.outcome.value,
            "reasons": [reason.to_dict() for reason in self.reasons],
            "value": None if self.value is None else dict(self.value),
            "terminal": self.terminal,
        }

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Verdict:
        """Return the verdict with the values of `to_dict`."""
        reasons = tuple(StreamReason(StreamCause(reason["cause"]), str(reason["text"])) for reason in value["reasons"])
        return cls(LookOutcome(value["outcome"]), reasons, value["value"], bool(value["terminal"]))


class NotThere(LakestreamError, Terminal):
    """A table, checkpoint or consumer group that does not exist, or is still empty."""


# Terminal errors whose cause a person may remove while a sensor waits. With `missing="wait"` only these let it wait.
_CURABLE = (NotThere, TopicMissing, KafkaRefused, KafkaMisconfigured, CheckpointDamaged)


def verdict_of(error: Exception, missing: MissingPolicy) -> Verdict:
    """Return the verdict for an error of a look: waiting, or failed.

    With `missing="wait"` the sensor waits if the watched object does not exist, if a connection can't be used, or if a
    retry may help; any other error, such as an impossible argument, fails the sensor. With `missing="fail"` each error
    fails the sensor. An error of another class than LakestreamError is logged with its traceback.
    """
    if not isinstance(error, LakestreamError):
        log.warning("The look failed.", exc_info=error)
    text = str(error) if isinstance(error, LakestreamError) else f"{type(error).__name__}: {error}"
    terminal = isinstance(error, Terminal)
    waits = missing is MissingPolicy.WAIT and (not terminal or _is_curable(error))
    return Verdict(
        LookOutcome.WAITING if waits else LookOutcome.FAILED,
        (StreamReason(StreamCause.UNUSABLE, text),),
        terminal=terminal,
    )


def _is_curable(error: Exception) -> bool:
    # A connection can be corrected in Airflow while the sensor waits. Any other argument needs a change of the DAG.
    if isinstance(error, InvalidArgument):
        return error.argument.endswith("_conn_id")
    return isinstance(error, _CURABLE)


class LookConnections(Protocol):
    """Opener of connections. Every call may block, and opens a new connection."""

    def kafka(self, conn_id: str) -> tuple[Mapping[str, Any], str]:
        """Return (librdkafka configuration, name of the connection for errors). Raises InvalidArgument."""

    def catalog(self, conn_id: str) -> Catalog:
        """Open a catalog. Raises InvalidArgument, CatalogUnavailable."""

    def store_properties(self, conn_id: str | None) -> Mapping[str, str] | None:
        """Return the properties for opening the object store of a checkpoint.

        :param conn_id: the connection. None or an empty text means a local checkpoint: the method returns None.

        Raises InvalidArgument if the connection is missing or unusable.
        """

    def delta(self, conn_id: str | None) -> DeltaStorage:
        """Open the store of Delta tables. Raises InvalidArgument.

        :param conn_id: the connection; None: the credentials are in the worker's environment.
        """


@dataclass(frozen=True)
class LookQuestion:
    """A question of a look. Equal questions have the same `key`; `answer` gets the answer, and may block.

    `share_seconds` is the time for which looks may share the answer. None: the runner decides. 0: only looks that wait
    for the answer at the same moment share the answer. The runner forgets answers with `share_seconds` early if a look
    ends by an error.
    """

    key: tuple[Hashable, ...]
    answer: Callable[[], Any]
    share_seconds: float | None = None


# A part of a look: yields questions, receives the answers, returns a result.
Step = Generator[LookQuestion, Any, Any]
# A generator that yields questions, receives the answers and returns the verdict. It never blocks by itself.
Looking = Generator[LookQuestion, Any, Verdict]


class LookCheck(Protocol):
    """Condition of a sensor, made from the sensor's arguments: with the ids of connections, and without secrets."""

    missing: MissingPolicy

    @property
    def subject(self) -> str:
        """Name of the watched object. The looks of checks with the same subject begin at the same time."""

    def look(self, connections: LookConnections, waited: float) -> Looking:
        """Look once at the watched object: yield each question to an outside system, return the verdict.

        The caller gets the answer of each question (`LookQuestion.answer`), and sends the answer, or throws its error,
        into this generator.

        :param waited: seconds since the task began.

        Any error may be raised: `look_safely` turns errors into verdicts.
        """


def look_safely(check: LookCheck, connections: LookConnections, waited: float, *, forgiving: bool = False) -> Looking:
    """Look once, with errors turned into verdicts by `verdict_of`.

    :param forgiving: turn a failed verdict that is not terminal into a waiting verdict: the sensor then goes on after
        an error that a retry may fix, and after a failure of the check itself.
    """
    try:
        verdict = yield from check.look(connections, waited)
    except Exception as e:  # noqa: BLE001  # in every mode alike, the verdict reports the error
        verdict = verdict_of(e, check.missing)
    if forgiving and verdict.outcome is LookOutcome.FAILED and not verdict.terminal:
        return Verdict(LookOutcome.WAITING, verdict.reasons, verdict.value)
    return verdict


def look_now(looking: Looking) -> Verdict:
    """Run a look in this thread, and return the verdict."""
    verdict: Verdict = run_now(looking)
    return verdict


def run_now(looking: Step) -> Any:
    """Run a look, or a part of a look, in this thread, and return the result.

    An error of an answer is raised inside the look, at the question. An error that the look does not handle is raised
    here.
    """
    try:
        question = next(looking)
        while True:
            try:
                answer = question.answer()
            except Exception as e:  # noqa: BLE001  # the look decides about the error
                question = looking.throw(e)
            else:
                question = looking.send(answer)
    except StopIteration as end:
        return end.value


CHECKS = {
    "checkpoint_lag": "airflow_lakestream.watching.lag.check.LagCheck",
    "freshness": "airflow_lakestream.watching.freshness.FreshnessCheck",
    "retention_risk": "airflow_lakestream.watching.lag.risk.RiskCheck",
}


def make_check(name: str, arguments: Mapping[str, Any]) -> LookCheck:
    """Make the check with a name in `CHECKS` from a sensor's rendered arguments.

    Raises UnknownValue for another name, and InvalidArgument if the arguments can't work.
    """
    if name not in CHECKS:
        raise UnknownValue("check", name, CHECKS)
    module, _, class_name = CHECKS[name].rpartition(".")
    check: LookCheck = getattr(importlib.import_module(module), class_name)(**arguments)
    return check
