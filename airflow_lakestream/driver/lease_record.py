"""The record of the driver that holds, or held, a checkpoint's lease."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from airflow_lakestream.driver.process_identity import ProcessIdentity

# A holder without a heartbeat for this long has vanished, if its process can't be seen. Clocks may differ by less.
TTL_SECONDS = 60.0
_NUMBERS = ("taken_at", "beat_at", "ttl")


class DriverOutcome(StrEnum):
    """How a driver ended."""

    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


class LeaseDamaged(ValueError):
    """The content is not a lease: it is cut, empty, or something else."""


class LeaseState(StrEnum):
    """What a lease says about its driver."""

    HELD = "held"
    RELEASED = "released"
    VANISHED = "vanished"


@dataclass(frozen=True)
class LeaseRecord:
    """A lease holder. Times are seconds since 1970 by the holder's clock.

    `terminal` says that the error comes again until somebody changes something.
    `inputs` is what the checkpoint belongs to for good (app, topic, table, group); `fingerprint` identifies the
    submit's configuration. Neither holds a secret.
    """

    generation: int
    fingerprint: str
    holder: str
    process: ProcessIdentity
    inputs: Mapping[str, str] = field(default_factory=dict)
    application_id: str = ""
    ui_url: str = ""
    taken_at: float = 0.0
    beat_at: float = 0.0
    ttl: float = TTL_SECONDS
    outcome: DriverOutcome | None = None
    error: str = ""
    terminal: bool = False

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> LeaseRecord:
        """Read a file's content, ignoring unknown keys. Raises LeaseDamaged."""
        known = {name: value[name] for name in cls.__dataclass_fields__ if name in value}
        try:
            outcome = known.get("outcome")
            times = {name: _number(known[name]) for name in _NUMBERS if name in known}
            process = ProcessIdentity.parse(value["process"])
            inputs = {str(name): str(one) for name, one in dict(known.get("inputs", {})).items()}
            parsed = {"process": process, "inputs": inputs, "outcome": DriverOutcome(outcome) if outcome else None}
            return cls(**known | {"generation": int(known["generation"])} | times | parsed)
        except (KeyError, TypeError, ValueError, OverflowError) as e:
            raise LeaseDamaged from e

    def state(self, now: float | None = None) -> LeaseState:
        """Tell whether the driver is there.

        On this machine the process decides: a dead one has vanished at once, a living one holds the lease even
        without heartbeats. For other machines the heartbeat decides.
        """
        if self.outcome is not None:
            return LeaseState.RELEASED
        alive = self.process.alive
        if alive is None:
            # A heartbeat from the future, by more than clocks differ, counts as none.
            alive = abs((time.time() if now is None else now) - self.beat_at) < self.ttl
        return LeaseState.HELD if alive else LeaseState.VANISHED

    def __str__(self) -> str:
        where = f"pid {self.process.pid} on {self.process.host}"
        return f"{self.holder} ({where}{', ' + self.application_id if self.application_id else ''})"


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def fingerprint_of(inputs: Mapping[str, Any]) -> str:
    """Return a short hash of a mapping of plain values; the order of keys does not matter."""
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
