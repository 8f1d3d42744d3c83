"""The result of a look: done, waiting, or failed, with named reasons and a value for XCom."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_lakestream.core.policies import Missing as Missing
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal
from airflow_lakestream.kafka.errors import KafkaMisconfigured, KafkaRefused, TopicMissing
from airflow_lakestream.spark.checkpoint import CheckpointDamaged
from airflow_lakestream.watching.causes import Cause, Reason, told

log = logging.getLogger(__name__)


class LookOutcome(StrEnum):
    """The sensor's state after a look. TIMED_OUT: it was still waiting when its time was over."""

    DONE = "done"
    WAITING = "waiting"
    FAILED = "failed"
    TIMED_OUT = "timed out"


@dataclass(frozen=True)
class Verdict:
    """The result of one look; `value` is ready for JSON. `terminal`: it fails until somebody changes something."""

    outcome: LookOutcome
    reasons: tuple[Reason, ...] = ()
    value: Mapping[str, Any] | None = None
    terminal: bool = False

    @property
    def text(self) -> str:
        """The reasons as text."""
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
    """A table, checkpoint or consumer group does not exist, or has nothing yet."""


# Somebody may still create or fix these. Other terminal errors fail a sensor even with `missing="wait"`.
_MAY_COME = (NotThere, TopicMissing, KafkaRefused, KafkaMisconfigured, CheckpointDamaged)


def verdict_of(error: Exception, missing: Missing) -> Verdict:
    """Return the verdict for an error of a look.

    With `missing="wait"` the sensor waits, and says why, for what does not exist, for a connection that can't be used,
    and for whatever a retry may fix. An argument that can't work always fails it.
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
