"""What all services share: a folder, a process under a leash, a state file once it is ready, a way down."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from dev.causes import causes_in
from dev.errors import DiskFull, ServiceFailed
from dev.leash import PIDS_FILE
from dev.processes import ProcessId

CHECKOUT = Path(__file__).resolve().parent.parent

_STATE_FILE = "state.json"
_LEASH_GRACE_S = 10.0
_LEAST_FREE = 1 << 30
# A frozen dataclass with `pid` and `healthy`.
Handle = TypeVar("Handle", bound=Any)


@dataclass(frozen=True)
class Owner:
    """The process that a stack lives and dies with, and the read end of the pipe that it holds open."""

    process: ProcessId
    pipe: int


class ServiceFolder:
    """Everything one service of one stack has on disk; the folder gone is the service down."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.log = path / "service.log"

    def prepare(self) -> None:
        """Begin anew: stop what a killed run left behind, and empty the folder.

        :raises DiskFull: a service on a full disk answers and writes nothing; MinIO's clients only see time-outs.
        """
        self.remove()
        self.path.mkdir(parents=True)
        if (free := shutil.disk_usage(self.path).free) < _LEAST_FREE:
            raise DiskFull(f"{self.name} is not started: its disk has {free >> 20} MiB free, of 1024 MiB; free some.")

    def remove(self, grace: float = _LEASH_GRACE_S) -> None:
        """Stop the service and remove its data; does nothing when it is down."""
        self.stop(grace)
        shutil.rmtree(self.path, ignore_errors=True)

    def stop(self, grace: float = _LEASH_GRACE_S) -> None:
        """Stop the service and leave its folder as it is."""
        leash = self.process("leash")
        if leash is not None:
            # The leash itself escalates to SIGKILL; it gets time for that.
            leash.stop(max(grace, self.orderly_end) + 5)
        service = self.process("service")
        if service is not None:
            service.stop(grace)

    def ready(self, handle: Handle, leash: subprocess.Popen[bytes], seconds: float) -> Handle:
        """Wait until a service is healthy, and record what others need; return it with its process."""
        self.wait_ready(handle.healthy, leash, seconds)
        service = self.process("service")
        assert service is not None, "it is healthy"
        found = replace(handle, pid=service.pid)
        self.write_state(asdict(found))
        return found

    def as_nobody(self, own: Sequence[Path]) -> list[str]:
        """Return what to put before a command so that it does not run as root, and hand it what it is to own."""
        if os.geteuid() != 0:
            return []
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            problem = "does not run as root, and there is no setpriv (Debian: util-linux) to run it as nobody"
            raise ServiceFailed(self.name, problem, self.log)
        nobody = pwd.getpwnam("nobody")
        for path in own:
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
        account = [f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
        reachable = all(above.stat().st_mode & stat.S_IXOTH for above in (self.path, *self.path.parents))
        # Below a folder that is root's alone, as a checkout may be, `nobody` needs this one right of root's to get
        # there; without the first of these, access(2) would not regard it.
        rights = ["--securebits=+no_setuid_fixup", "--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
        rights = [] if reachable else rights
        return [setpriv, *account, *rights, "--"]

    def process(self, which: str) -> ProcessId | None:
        """Identify the recorded "service" or its "leash"; None when none was started."""
        recorded = _read_json(self.path / PIDS_FILE)
        return ProcessId(**recorded[which]) if recorded else None

    @property
    def orderly_end(self) -> float:
        """How many seconds the service may take to end in order; 0 for one that is killed with its owner."""
        return float((_read_json(self.path / PIDS_FILE) or {}).get("grace", 0.0))

    @property
    def running(self) -> bool:
        """Whether the service's process lives."""
        service = self.process("service")
        return service is not None and service.alive

    def read_state(self) -> dict[str, Any] | None:
        """Return what was written when the service became ready; None before."""
        return _read_json(self.path / _STATE_FILE)

    def write_state(self, state: Mapping[str, Any]) -> None:
        """Record, in one step, what others need in order to use the service."""
        scratch = self.path / f".{_STATE_FILE}"
        scratch.touch(mode=0o600)
        scratch.write_text(json.dumps(state, indent=2))
        scratch.replace(self.path / _STATE_FILE)

    def start(
        self,
        command: Sequence[str],
        owner: Owner | None,
        environment: Mapping[str, str],
        grace: float = _LEASH_GRACE_S,
        *,
        orderly: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Start `command` under a leash, its output in the log.

        :param orderly: let it end by itself when the owner is gone, too: it has more to take down than processes.
        """
        leash = [sys.executable, "-m", "dev.leash", "--folder", self.path, "--cwd", self.path, "--grace", str(grace)]
        leash += ["--orderly"] if orderly else []
        if owner is not None:
            leash += ["--owner", str(owner.process.pid), repr(owner.process.started), "--owner-pipe", str(owner.pipe)]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*map(str, leash), "--", *command],
                cwd=CHECKOUT,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=() if owner is None else (owner.pipe,),
            )

    def wait_ready(self, ready: Callable[[], bool], leash: subprocess.Popen[bytes], seconds: float) -> None:
        """Wait until `ready()`; a process that ends before, or never gets ready, is an error with its last words.

        Without success nothing keeps running; the folder stays, for its log.
        """
        try:
            self._wait_ready(ready, leash, seconds)
        except BaseException:
            self.stop(grace=2)
            raise

    def _wait_ready(self, ready: Callable[[], bool], leash: subprocess.Popen[bytes], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not (self.process("service") is not None and ready()):
            if leash.poll() is not None or (self.process("service") is not None and not self.running):
                raise ServiceFailed(self.name, f"ended while starting ({self.last_words()})", self.log)
            if time.monotonic() > deadline:
                raise ServiceFailed(self.name, f"was not ready after {seconds:.0f} s ({self.last_words()})", self.log)
            time.sleep(0.1)

    def last_words(self) -> str:
        """Return what the log complains of."""
        return causes_in(self.log.read_text(errors="replace")) if self.log.exists() else "it logged nothing"


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found


def clean_environment(drop: Sequence[str] = ()) -> dict[str, str]:
    """Copy the environment of this process, without variables that begin with one of the prefixes."""
    return {name: value for name, value in os.environ.items() if not name.startswith(tuple(drop))}
