"""Identity of a process and its machine, distinct for recycled pids and for containers of the same name."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ProcessIdentity:
    """A process: its pid, its start time (in kernel ticks), and the machine and pid namespace of the pid."""

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
        """Read the result of `vars`. Raises TypeError or KeyError."""
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
    """Return a text, different for each boot and for each container; empty outside Linux."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> int:
    """Return a process's start time in ticks since the boot; 0 without the process, or for a zombie."""
    try:
        # Fields after the command (in parentheses, may hold anything): state is the 1st, start time the 20th.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])
