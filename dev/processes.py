"""Processes by id and start time, so that a recycled pid is never taken for ours."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

import psutil

# A start time is computed from the boot time, which moves a little when the clock is corrected.
_SAME_START_S = 2.0


@dataclass(frozen=True)
class ProcessId:
    """One process: its pid and when it started (seconds since the epoch)."""

    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Identify a running process."""
        return cls(pid, psutil.Process(pid).create_time())

    @classmethod
    def own(cls) -> ProcessId:
        """Identify this process."""
        return cls.of(os.getpid())

    @property
    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < _SAME_START_S
            return bool(same and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, to this very process only."""
        if self.alive:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return

    def wait_gone(self, seconds: float) -> bool:
        """Wait until the process is gone; False when it is still there after `seconds`."""
        deadline = time.monotonic() + seconds
        while self.alive:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def stop(self, grace: float) -> None:
        """SIGTERM, then SIGKILL when the process is still there after `grace` seconds."""
        self.signal(signal.SIGTERM)
        if not self.wait_gone(grace):
            self.signal(signal.SIGKILL)
            self.wait_gone(5)
