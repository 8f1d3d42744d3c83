"""Compiled pipelines, stored on disk by the content of the files and the values of the variables."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from airflow_lakestream import __version__
from airflow_lakestream.pipelines.compiled import CompiledPipeline
from airflow_lakestream.pipelines.reading import problems_of, problems_within, read_text, text_of
from airflow_lakestream.pipelines.yaml_file import FileProblem

# Seconds for one file's DDL and SQL, including the first import of the checkers.
_ENOUGH = 10.0
# In the place of a file's problems, if the check has taken longer: once, as on a machine that is busy, and twice.
_LATE_ONCE, _LATE = "late once", "late"
# Age in seconds from which a temporary file counts as abandoned.
_LEFT = 3600.0


# Seconds on the clock for each second of a processor: a machine that is busy slows checks down, and Airflow ends the
# parse of a DAG file after 30 seconds on the clock.
_BUSY = 3.0


class CheckTime:
    """Time for the checks of a call, in seconds of a processor: of this process, and of its children that have ended.

    On the clock, the time ends after three times as many seconds.
    """

    def __init__(self, seconds: float) -> None:
        self._until = _processor_seconds() + seconds
        self._until_on_clock = _clock_seconds() + seconds * _BUSY

    @property
    def is_left(self) -> bool:
        """Whether another check may begin."""
        return _processor_seconds() < self._until and _clock_seconds() < self._until_on_clock


def _clock_seconds() -> float:
    return time.monotonic()


def _processor_seconds() -> float:
    return sum(os.times()[:4])


def memory_of(folder: Path) -> Path:
    """Return the path of the memory of a folder, below AIRFLOW_HOME. The path depends on the folder's absolute path."""
    home = Path(os.environ.get("AIRFLOW_HOME") or Path.home() / "airflow").expanduser()
    return home / "lakestream" / "pipelines" / f"{_digest(str(folder.resolve()))}.json"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


# Other versions of the code may have stored other fields.
_VERSION = _digest(__version__, "files", "checked", *(one.name for one in fields(CompiledPipeline)))


def _seal(content: bytes) -> bytes:
    """Return the first line of a memory with this content.

    A memory with another first line counts as empty: another version of the code wrote it, or it is damaged.
    """
    return hashlib.sha256(_VERSION.encode() + content).hexdigest().encode()


class PipelineMemory:
    """Compiled pipelines of files, by content and variables. A damaged memory counts as empty.

    `read` and `checked` collect the entries of the current load; only `write` stores them, in place of the earlier
    entries.

    :param path: the file of the memory.
    :param lookup: returns the value of a variable, see `variables.looked_up`.
    """

    def __init__(self, path: Path, lookup: Callable[[str], str]) -> None:
        self._path = path
        self._lookup = lookup
        self._before: Mapping[str, Any] = {}
        self._now: dict[str, Any] = {}
        # Problems of DDL and SQL, by file and content.
        self._checked_before: Mapping[str, Any] = {}
        self._checked: dict[str, Any] = {}
        with suppress(OSError):
            seal, _, content = path.read_bytes().partition(b"\n")
            if seal == _seal(content):
                found = json.loads(content)
                self._before, self._checked_before = found["files"], found["checked"]

    def read(self, path: Path, name: str) -> CompiledPipeline:
        """Return a file's pipeline, from the memory if content and variables are unchanged. Raises PipelineError.

        :param name: the file's path in the folder: its name in the memory and in errors.
        """
        text = text_of(path, name)
        entry = self._before.get(name)
        if entry is not None and entry["key"] == self._key(text, entry["variables"]):
            self._now[name] = entry
            return CompiledPipeline.of_dict(entry["compiled"])
        compiled, variables = read_text(text, name, self._lookup)
        names = sorted(variables)
        self._now[name] = {"key": self._key(text, names), "variables": names, "compiled": compiled.to_dict()}
        return compiled

    def checked(self, compiled: CompiledPipeline, time_left: CheckTime | None) -> list[FileProblem]:
        """Return the problems of a pipeline that `read` has returned; empty if it is correct or not checked yet.

        A check that takes more than ten seconds is given up and noted. After two of them it is not tried again for the
        same content.

        :param time_left: once it is over, only known problems are returned. None: check without a limit, also after a
            check that was given up.
        """
        key = _digest(compiled.file, self._now[compiled.file]["key"])
        known = self._checked_before.get(key)
        if time_left is None and known in (None, _LATE_ONCE, _LATE):
            known = [asdict(one) for one in problems_of(compiled)]
        elif known in (None, _LATE_ONCE) and time_left is not None and time_left.is_left:
            try:
                found = problems_within(_ENOUGH, compiled)
                known = None if found is None else [asdict(one) for one in found]
            except TimeoutError:
                known = _LATE if known == _LATE_ONCE else _LATE_ONCE
        if known is not None:
            self._checked[key] = known
        return [] if known in (None, _LATE_ONCE, _LATE) else [FileProblem(**one) for one in known]

    def name_of(self, file: str) -> str | None:
        """Return the name of a file's last correct pipeline, or None if it is not remembered."""
        entry = self._before.get(file)
        return None if entry is None else entry["compiled"]["name"]

    def last_of(self, file: str) -> CompiledPipeline | None:
        """Return a file's last correct pipeline, or None if it is not remembered."""
        entry = self._before.get(file)
        return None if entry is None else CompiledPipeline.of_dict(entry["compiled"])

    def write(self, wrong: Iterable[str]) -> None:
        """Store the loaded pipelines, and the last correct versions of wrong files; forget files that are gone.

        If the disk can't be written, the next parse reads the files again.

        :param wrong: names of the wrong files.
        """
        for name in wrong:
            self._now.pop(name, None)
            if name in self._before:
                self._now[name] = self._before[name]
        if (self._now, self._checked) == (self._before, self._checked_before):
            return
        content = json.dumps({"files": self._now, "checked": self._checked}).encode()
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, made = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(_seal(content) + b"\n" + content)
                Path(made).replace(self._path)
            except BaseException:
                Path(made).unlink()
                raise
            self._sweep()

    def _sweep(self) -> None:
        """Remove temporary files of processes killed during a write."""
        for one in self._path.parent.glob(f"{self._path.name}?*"):
            if time.time() - one.stat().st_mtime > _LEFT:
                one.unlink()

    # The empty key fits no entry: the file is then read again, and the error of the missing variable raised.
    def _key(self, text: str, variables: list[str]) -> str:
        try:
            return _digest(text, *(f"{name}={self._lookup(name)}" for name in variables))
        except LookupError:
            return ""
