"""Running a command to its end, with what it and all its children used: time, CPU and memory."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

# Often enough for a peak that lasts. Each look costs: of an extract by three processes, 6% of two cores.
_SAMPLE_S = 0.2
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True)
class Finished:
    """A command that ran to its end. Memory is in bytes; in `peak_pss` pages that are shared count once.

    It is 0 where it was not watched.
    """

    output: str
    seconds: float
    cpu_seconds: float
    peak_rss: int
    peak_pss: int
    watched: bool


class CommandFailed(Exception):
    """A measured command ended with an error, or took too long: in one line, then the end of what it printed."""

    def __init__(self, command: Sequence[str], problem: str, output: str) -> None:
        name = command[2] if command[1:2] == ["-m"] else Path(command[0]).name
        last = output.strip().rpartition("\n")[2]
        super().__init__(f"{name} {problem}: {last}\n{output[-3000:]}")


def run_measured(
    command: Sequence[str], env: Mapping[str, str], timeout: float = 600, *, watch: bool = True
) -> Finished:
    """Run a command, and watch the memory of its process tree until it ends. Raises CommandFailed.

    Whatever happens, nothing of the tree is left running, also when this process is killed.
    """
    with tempfile.TemporaryFile() as printed:
        began = time.perf_counter()
        process = subprocess.Popen(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        peak = PeakMemory(process.pid)
        try:
            code, cpu_seconds = _wait(process, peak if watch else None, timeout)
            seconds = time.perf_counter() - began
        finally:
            _kill_session(process)
        printed.seek(0)
        output = printed.read().decode(errors="replace")
    if code != 0:
        problem = f"took longer than {timeout:.0f} s" if code is None else f"ended with {code}"
        raise CommandFailed(command, problem, output)
    return Finished(output, seconds, cpu_seconds, peak.rss, peak.pss, watch)


def cpu_of_tree(pid: int | None = None) -> float:
    """Return the CPU seconds that a process and its children have used, those that have ended included.

    :param pid: the process; None: this one.
    """
    me = psutil.Process(pid)
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it ended just now, and counts in its parent's times from here on
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _wait(process: subprocess.Popen[bytes], peak: PeakMemory | None, timeout: float) -> tuple[int | None, float]:
    """Wait for the end; return the exit code, None when it took too long, and the CPU seconds of the tree."""
    deadline = time.monotonic() + timeout
    # Readable at the very moment of the end: no polling that would blur short runs.
    end = os.pidfd_open(process.pid)
    try:
        while not select.select([end], [], [], _SAMPLE_S)[0]:
            if peak is not None:
                peak.look()
            if time.monotonic() > deadline:
                return None, 0.0
    finally:
        os.close(end)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the command's session, such as a JVM whose Python has gone."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.returncode is None:
        process.wait()


class PeakMemory:
    """The greatest memory that a process tree had at one time."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self.rss = 0
        self.pss = 0

    def look(self) -> None:
        """Look at what it has now."""
        rss = pss = 0
        try:
            for process in (self._root, *self._root.children(recursive=True)):
                memory = process.memory_full_info()
                rss += memory.rss
                pss += memory.pss
        except psutil.Error:  # a process ended between two looks
            return
        self.rss, self.pss = max(self.rss, rss), max(self.pss, pss)
