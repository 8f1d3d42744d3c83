"""The record of the present or last driver with a checkpoint's lease."""

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ProcessIdentity:
    """A process, identified by pid, start time, machine and pid namespace.

    :param session: id of the process's session; 0 if unknown.
    :param started: start time in ticks since the boot; 0 if unknown.
    :param machine: id of boot and pid namespace, see `_machine`.
    """

    pid: int
    session: int
    started: int
    host: str
    machine: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """Identify a process of this machine; unknown values are 0 or empty."""
        try:
            session = os.getsid(pid)
        except OSError:
            session = 0
        return cls(pid, session, _started(pid), socket.gethostname(), _machine())

    @classmethod
    def parse(cls, value: Any) -> ProcessIdentity:
        """Read a mapping of the fields. Raises TypeError or KeyError."""
        return cls(
            int(value["pid"]), int(value["session"]), int(value["started"]), str(value["host"]), str(value["machine"])
        )

    @property
    def is_local(self) -> bool:
        """Whether the pid is of this machine."""
        return bool(self.machine) and self.machine == _machine()

    @property
    def alive(self) -> bool | None:
        """Whether exactly this process still runs; None on another machine."""
        if not self.is_local:
            return None
        return self.started != 0 and _started(self.pid) == self.started


def _machine() -> str:
    """Return a text that differs for each boot and for each container; empty outside Linux."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> int:
    """Return a process's start time in ticks since the boot; 0 without the process, or for a zombie."""
    try:
        # Fields after the command, which is in parentheses and may itself have some: state is the 1st, start the 20th.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


# Seconds without a heartbeat after which a holder on another machine has vanished. Clocks may differ by less.
TTL_SECONDS = 60.0
_NUMBERS = ("taken_at", "beat_at", "ttl")


class DriverOutcome(StrEnum):
    """The outcome of a driver."""

    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


class LeaseDamaged(ValueError):
    """Error of a file without a lease: cut, empty, or with other content."""


class LeaseState(StrEnum):
    """The state of a driver by its lease: at work, ended with an outcome, or ended without an outcome."""

    HELD = "held"
    RELEASED = "released"
    VANISHED = "vanished"


@dataclass(frozen=True)
class LeaseRecord:
    """A lease holder. Times are seconds since 1970 by the holder's clock.

    :param fingerprint: fingerprint of the submit's configuration, without secrets.
    :param inputs: the inputs that the checkpoint keeps for ever (app, topic, table, group), without secrets.
    :param ttl: seconds without a heartbeat after which the holder counts as vanished.
    :param terminal: whether the error repeats until a user changes the cause.
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
        """Read the content of a lease's file; unknown keys are ignored. Raises LeaseDamaged."""
        known = {name: value[name] for name in cls.__dataclass_fields__ if name in value}
        try:
            outcome = known.get("outcome")
            times = {name: _number(known[name]) for name in _NUMBERS if name in known}
            process = ProcessIdentity.parse(value["process"])
            inputs = {str(name): str(text) for name, text in dict(known.get("inputs", {})).items()}
            parsed = {"process": process, "inputs": inputs, "outcome": DriverOutcome(outcome) if outcome else None}
            return cls(**known | {"generation": int(known["generation"])} | times | parsed)
        except (KeyError, TypeError, ValueError, OverflowError) as e:
            raise LeaseDamaged from e

    def state(self, now: float | None = None) -> LeaseState:
        """Return the state of the driver.

        :param now: seconds since 1970; None for the present time.

        On this machine the process decides: a dead process has vanished at once, a living process holds the lease even
        without heartbeats. For other machines the heartbeat decides.
        """
        if self.outcome is not None:
            return LeaseState.RELEASED
        alive = self.process.alive
        if alive is None:
            # `abs`: a heartbeat far in the future comes from a wrong clock, and would never be old.
            alive = abs((time.time() if now is None else now) - self.beat_at) < self.ttl
        return LeaseState.HELD if alive else LeaseState.VANISHED

    def __str__(self) -> str:
        where = f"pid {self.process.pid} on {self.process.host}"
        return f"{self.holder} ({where}{', ' + self.application_id if self.application_id else ''})"


def _number(value: Any) -> float:
    """Return a finite number. Raises ValueError, TypeError."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def fingerprint_of(inputs: Mapping[str, Any]) -> str:
    """Return a short hash of a mapping of plain values; the order of keys does not matter."""
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
