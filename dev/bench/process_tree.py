"""Running a command, and the greatest memory that it and all its children shared out between them."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

_SAMPLE_S = 0.1


@dataclass(frozen=True)
class Finished:
    """A command that ran to its end. `peak_pss` is in bytes: shared pages count once."""

    output: str
    peak_pss: int


class CommandFailed(Exception):
    """A measured command ended with an error; the message holds the end of what it printed."""


def run_measured(command: Sequence[str], env: Mapping[str, str], timeout: float = 600) -> Finished:
    """Run a command; sample the PSS of its process tree until it ends. Raises CommandFailed."""
    with subprocess.Popen(
        command, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        peak = _Peak(process.pid)
        peak.start()
        try:
            output, _ = process.communicate(timeout=timeout)
        finally:
            peak.stop()
    if process.returncode:
        raise CommandFailed(f"{' '.join(command)} ended with {process.returncode}:\n{output[-3000:]}")
    return Finished(output, peak.bytes)


class _Peak(threading.Thread):
    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._root = psutil.Process(pid)
        self._stop_sampling = threading.Event()
        self.bytes = 0

    def run(self) -> None:
        while not self._stop_sampling.wait(_SAMPLE_S):
            self.bytes = max(self.bytes, self._sample())

    def stop(self) -> None:
        self._stop_sampling.set()
        self.join()

    def _sample(self) -> int:
        total = 0
        try:
            for process in (self._root, *self._root.children(recursive=True)):
                total += process.memory_full_info().pss
        except psutil.Error:  # a process ended between two looks
            return 0
        return total
