"""Programs that Go builds from their sources, once, in a folder of all stacks."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dev.errors import JarsUnavailable
from dev.locks import file_lock
from dev.progress import Say


@dataclass(frozen=True)
class Program:
    """A program: `steps` are the arguments of Go, one list for each call, after which it is there as `made`.

    :param name: its file, with the version in it.
    :param source: becomes main.go of a new module, in which Go is called.
    """

    name: str
    steps: Sequence[Sequence[str]]
    made: str
    source: Path | None = None


def have(program: Program, folder: Path, say: Say) -> Path:
    """Have a program in a folder, built when it is not there yet; safe for several processes at once."""
    target = folder / program.name
    if target.is_file():
        return target
    if (go := shutil.which("go")) is None:
        raise JarsUnavailable(f"No Go, which {program.made} is built with: install Go 1.26 or newer.")
    folder.mkdir(parents=True, exist_ok=True)
    with file_lock(folder / f".{program.made}.lock"):
        if not target.is_file():
            say(f"{program.made}: building (one to three minutes, the first time)")
            _build(go, program, target)
    return target


def _build(go: str, program: Program, target: Path) -> None:
    scratch = Path(tempfile.mkdtemp(prefix=f".{program.made}-", dir=target.parent)).resolve()
    flags = f"{os.environ.get('GOFLAGS', '')} -trimpath -buildvcs=false".strip()
    environment = {**os.environ, "GOBIN": str(scratch), "GOFLAGS": flags}
    try:
        if program.source is not None:
            shutil.copyfile(program.source, scratch / "main.go")
        for step in program.steps:
            done = subprocess.run(
                [go, *step], env=environment, cwd=scratch, capture_output=True, text=True, check=False
            )
            if done.returncode:
                said = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
                problem = f"{program.made} could not be built ({said}): check the network, then run it again."
                raise JarsUnavailable(problem)
        # The rename is what makes it complete.
        (scratch / program.made).replace(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
