"""The program `lakestream`: commands are forks of one process, which has imported the libraries of all commands.

The process has no Airflow: the first command of a fork imports it where the program does, so that Airflow's own lines
are seen.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# Of all that Airflow, PyIceberg and the package need, those that take long to import.
LIBRARIES = (
    "airflow_lakestream.audit.run",
    "airflow_lakestream.run.replay",
    "cryptography.fernet",
    "httpx",
    "jinja2.sandbox",
    "jsonschema",
    "libcst",
    "opentelemetry.sdk.metrics",
    "opentelemetry.sdk.trace.export",
    "pathspec.patterns",
    "pyiceberg.catalog.sql",
    "requests",
    "sqlalchemy.dialects.mysql",
    "sqlalchemy.dialects.postgresql",
    "sqlalchemy.ext.asyncio",
    "structlog",
    "upath.extensions",
)


KEPT, UNREAD, FULL, CLOSED = "kept", "unread", "full", "closed"
# Where stdout and stderr lead.
Ends = tuple[str, str]


class ForkedProgram:
    """The process, and its answers."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, home: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command in this folder, which is Airflow's home, too."""
        return self.run_all(home, [arguments], **more)[0]

    def run_all(
        self, home: Path, commands: Sequence[Sequence[str]], ends: Ends = (KEPT, KEPT), **more: str
    ) -> list[subprocess.CompletedProcess[str]]:
        """Run commands in this folder, one after the other in one fork, which imports Airflow once.

        :param ends: where stdout and stderr lead, by the names of `_opened`.
        """
        environment = {"AIRFLOW_HOME": str(home), **more}
        asked = {"home": str(home), "commands": commands, "ends": ends, "environment": environment}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        ended = json.loads(self._process.stdout.readline())
        return [subprocess.CompletedProcess(one, *end) for one, end in zip(commands, ended, strict=True)]


@contextmanager
def forked_program(**environment: str) -> Iterator[ForkedProgram]:
    """Have the process within the block; none of its libraries prints a line while it is imported."""
    with tempfile.TemporaryFile("w+") as problems:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=problems,
            encoding="utf-8",
            env={**os.environ, **environment},
        )
        with process:
            yield ForkedProgram(process)
        problems.seek(0)
        assert (process.returncode, problems.read()) == (0, "")


def main() -> None:
    for library in LIBRARIES:
        importlib.import_module(library)
    importlib.import_module("airflow_lakestream.cli.app")
    assert "airflow" not in sys.modules
    for line in sys.stdin:
        asked = json.loads(line)
        with tempfile.TemporaryFile("w+") as ends:
            if not (child := os.fork()):
                os.chdir(asked["home"])
                os.environ.update(asked["environment"])
                json.dump([ended(arguments, asked["ends"]) for arguments in asked["commands"]], ends)
                ends.flush()
                os._exit(0)
            os.waitpid(child, 0)
            ends.seek(0)
            print(ends.read(), flush=True)


def _opened(end: str) -> int:
    """Return a file for what the program writes: a file, a pipe that nobody reads, or a full device."""
    if end == UNREAD:
        reader, writer = os.pipe()
        os.close(reader)
        return writer
    return os.open("/dev/full", os.O_WRONLY) if end == FULL else os.memfd_create(end)


def ended(arguments: Sequence[str], ends: Ends) -> list[int | str]:
    """Run a command in this process; return its exit code, and the texts of its two streams."""
    from airflow_lakestream.cli.app import main as program

    sys.argv = ["lakestream", *arguments]
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    files = [_opened(end) for end in ends]
    for number, (file, name) in enumerate(zip(files, ("stdout", "stderr"), strict=True), 1):
        os.dup2(file, number)
        if ends[number - 1] == CLOSED:
            # The default of Python.
            setattr(sys, name, None)
    code: int | str | None = 0
    try:
        program()
    except SystemExit as e:
        code = e.code
    # As Python does at its end, with its exit code if that fails.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = 120
    return [
        0 if code is None else code,
        *(_text(file) if end == KEPT else "" for file, end in zip(files, ends, strict=True)),
    ]


def _text(file: int) -> str:
    with os.fdopen(file, "rb") as opened:
        opened.seek(0)
        return opened.read().decode()


if __name__ == "__main__":
    main()
