"""What a look comes to: done, still waiting, or failed; with the reasons by name, and a value for XCom."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal
from airflow_lakestream.kafka.errors import KafkaMisconfigured, KafkaRefused, TopicMissing
from airflow_lakestream.spark.checkpoint import CheckpointDamaged
from airflow_lakestream.watching.causes import Cause, Reason, told

log = logging.getLogger(__name__)


class Missing(StrEnum):
    """What to do while something that a look needs is not there, or its connection does not work."""

    WAIT = "wait"
    FAIL = "fail"


class LookOutcome(StrEnum):
    """What becomes of the sensor. `timed out` is a waiting one whose time was over."""

    DONE = "done"
    WAITING = "waiting"
    FAILED = "failed"
    TIMED_OUT = "timed out"


@dataclass(frozen=True)
class Verdict:
    """One look's result; `value` is ready for JSON. `terminal`: it fails again until somebody changes something."""

    outcome: LookOutcome
    reasons: tuple[Reason, ...] = ()
    value: Mapping[str, Any] | None = None
    terminal: bool = False

    @property
    def text(self) -> str:
        """The reasons, for people."""
        return told(self.reasons)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values: what a trigger hands to its task."""
        return {
            "outcome": self.outcome.value,
            "reasons": [reason.to_dict() for reason in self.reasons],
            "value": None if self.value is None else dict(self.value),
            "terminal": self.terminal,
        }

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Verdict:
        """Read what `to_dict` gave."""
        reasons = tuple(Reason(Cause(one["cause"]), str(one["text"])) for one in value["reasons"])
        return cls(LookOutcome(value["outcome"]), reasons, value["value"], bool(value["terminal"]))


class NotThere(LakestreamError, Terminal):
    """A table, a checkpoint or a consumer group that is to be looked at does not exist, or has nothing yet."""


# Somebody may still make or mend these; all other terminal errors fail a sensor that is told to wait as well.
_MAY_COME = (NotThere, TopicMissing, KafkaRefused, KafkaMisconfigured, CheckpointDamaged)


def verdict_of(error: Exception, missing: Missing) -> Verdict:
    """Return what an error of a look comes to.

    With `missing="wait"` the sensor goes on waiting, and says why: for what is not there, for a connection that can't
    be used, and for everything that a retry may mend. An argument that can't work fails it in any case.
    """
    if not isinstance(error, LakestreamError):
        log.warning("The look failed.", exc_info=error)
    text = str(error) if isinstance(error, LakestreamError) else f"{type(error).__name__}: {error}"
    terminal = isinstance(error, Terminal)
    waits = missing is Missing.WAIT and (not terminal or _may_come(error))
    return Verdict(
        LookOutcome.WAITING if waits else LookOutcome.FAILED, (Reason(Cause.UNUSABLE, text),), terminal=terminal
    )


def _may_come(error: Exception) -> bool:
    if isinstance(error, InvalidArgument):
        return error.argument.endswith("_conn_id")
    return isinstance(error, _MAY_COME)
