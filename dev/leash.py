"""Runs one service as its only child, and takes it down, with all its descendants, when the time has come.

With an owner (a test session, the demo) the time has come when the owner is gone, however it died: then the service's
data goes as well. It is killed at once, or asked to end first where it has more to take down than processes. Without an
owner the service runs until SIGTERM. `python -m dev.leash` is started by `dev.service`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from dev.processes import ProcessId

PIDS_FILE = "pids.json"

_LOOK_EVERY_S = 0.5
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Leash:
    """The child, the owner at the other end of the pipe (if any), and what to do when either goes."""

    def __init__(
        self, folder: Path, owner: ProcessId | None, owner_pipe: int | None, grace: float, *, is_orderly: bool
    ) -> None:
        self.folder = folder
        self.owner = owner
        self.owner_pipe = owner_pipe
        self.grace = grace
        self.is_orderly = is_orderly
        self.exit_code: int | None = None
        self._child = 0
        self._asked_to_stop = False

    def run(self, command: list[str], cwd: Path) -> int:
        """Run the service to its end, or to ours; return its exit code."""
        wakeup = _wake_on_signals(self._ask_to_stop)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._start(command, cwd)
        while not self._asked_to_stop:
            self._reap()
            if self._owner_gone(wakeup):
                if self.is_orderly:
                    self._end_child()
                self._kill_all()
                _remove_data(self.folder)
                return 0
            # With an owner, data and log of a service that died stay readable as long as the owner lives.
            if self.exit_code is not None and self.owner is None:
                break
        self._end_child()
        self._kill_all()
        return self.exit_code or 0

    def _ask_to_stop(self) -> None:
        self._asked_to_stop = True

    def _start(self, command: list[str], cwd: Path) -> None:
        child = subprocess.Popen(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            # Should the leash itself be killed, Linux takes the child along.
            preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
        )
        self._child = child.pid
        pids: dict[str, Any] = {"leash": vars(ProcessId.own()), "service": vars(ProcessId.of(child.pid))}
        if self.is_orderly:
            pids["grace"] = self.grace
        scratch = self.folder / f".{PIDS_FILE}"
        scratch.write_text(json.dumps(pids))
        scratch.replace(self.folder / PIDS_FILE)

    def _owner_gone(self, wakeup: int) -> bool:
        watched = [wakeup] if self.owner_pipe is None else [wakeup, self.owner_pipe]
        readable, _, _ = select.select(watched, [], [], _LOOK_EVERY_S)
        if self.owner_pipe in readable:
            return True
        # A forked child of the owner holds the pipe open as well: the owner's own life is what counts.
        return self.owner is not None and not self.owner.alive

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._child:
                self.exit_code = os.waitstatus_to_exitcode(status)

    def _end_child(self) -> None:
        if self.exit_code is None:
            os.killpg(self._child, signal.SIGTERM)
        deadline = time.monotonic() + self.grace
        while self.exit_code is None and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.05)

    def _kill_all(self) -> None:
        # As a subreaper the leash inherits every orphan, also those that moved to a session of their own.
        while descendants := psutil.Process().children(recursive=True):
            for process in descendants:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            self._reap()
            time.sleep(0.02)


def _wake_on_signals(ask_to_stop: Callable[[], None]) -> int:
    """Call `ask_to_stop` on SIGTERM and SIGINT; the returned descriptor wakes a select() then."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ask_to_stop())
    return reader


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _remove_data(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    # The last service of the stack takes the stack's own folder along.
    if not any(folder.parent.glob(f"*/{PIDS_FILE}")):
        shutil.rmtree(folder.parent, ignore_errors=True)


def main() -> int:
    """Parse the command line of `dev.service` and run."""
    parser = argparse.ArgumentParser(prog="python -m dev.leash", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="the service's folder, removed with the owner")
    parser.add_argument("--cwd", type=Path, required=True, help="where the service runs")
    parser.add_argument("--grace", type=float, default=10, help="seconds between SIGTERM and SIGKILL")
    parser.add_argument("--owner", nargs=2, metavar=("PID", "STARTED"), help="the process to live and die with")
    parser.add_argument("--owner-pipe", type=int, help="read end of a pipe that the owner holds open")
    parser.add_argument("--orderly", action="store_true", help="ask it to end, too, when the owner is gone")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="after --: what to run")
    args = parser.parse_args()
    owner = ProcessId(int(args.owner[0]), float(args.owner[1])) if args.owner else None
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    return Leash(args.folder, owner, args.owner_pipe, args.grace, is_orderly=args.orderly).run(command, args.cwd)


if __name__ == "__main__":
    sys.exit(main())
