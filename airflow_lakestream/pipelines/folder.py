"""All pipelines of a folder, checked; files unchanged since the last look come from a memory on disk.

Airflow parses a DAG file again every half minute, in a new process. Reading 500 files takes seconds of a processor,
and the check of their SQL many more; reading the memory takes a tenth of a second.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from airflow_lakestream import __version__
from airflow_lakestream.pipelines.compiled import WHOLE_PART, CompiledPipeline
from airflow_lakestream.pipelines.operator import connector_of
from airflow_lakestream.pipelines.reading import (
    all_problems,
    problems_of,
    problems_within,
    read_file,
    read_text,
    text_of,
)
from airflow_lakestream.pipelines.yaml_file import FileProblem, PipelineError

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


_SUFFIXES = (".yaml", ".yml")
# The DAG's id, if a wrong file still contains it.
_NAME = re.compile(
    r"""^metadata:[^\S\n]*(?:\{[^}]*?\b|(?:\#.*)?\n(?:(?:[^\S\n].*|\#.*)?\n)*?[^\S\n]+)name:[^\S\n]*["']?([\w.-]{1,250})["']?"""
    r"""[^\S\n]*(?:[,}]|\#|$)""",
    re.ASCII | re.MULTILINE,
)
_NOT_IN_IDS = re.compile(r"[^\w.-]", re.ASCII)


@dataclass(frozen=True)
class BrokenFile:
    """A wrong file of a folder.

    :param name: the id of its DAG, unique in the folder.
    :param last: its last correct version; None if it is not remembered, or if it had another name.
    :param since: when the file was changed on this machine, in seconds since the epoch; 0 if unknown.
    :param is_partial: whether the problems keep checks of DDL, SQL and columns from the file.
    """

    file: str
    name: str
    problems: tuple[FileProblem, ...]
    last: CompiledPipeline | None = None
    since: float = 0.0
    is_partial: bool = False


@dataclass(frozen=True)
class PipelineFolder:
    """The pipelines of a folder, in the order of files, and the wrong files."""

    right: tuple[CompiledPipeline, ...]
    wrong: tuple[BrokenFile, ...]


def read_folder(
    folder: Path, lookup: Callable[[str], str], memory: Path | None = None, *, patience: float | None = None
) -> PipelineFolder:
    """Read and check the pipelines of a folder and all subfolders; update the memory on disk.

    Wrong files are part of the result. PipelineError is raised only if the folder does not exist.

    :param lookup: returns the value of `${NAME}`; see `variables.looked_up`.
    :param memory: file with the memory of compiled pipelines; default: below AIRFLOW_HOME.
    :param patience: seconds of a processor for the check of DDL and SQL that was not checked before; on the clock, at
        most three times as many. Files not checked by then are accepted, and checked by the next call; a check that
        takes longer is left to the run. None: check all files.
    """
    if not folder.is_dir():
        raise PipelineError([FileProblem(str(folder), 0, 0, "there is no such folder of pipelines.")])
    time_left = None if patience is None else CheckTime(patience)
    remembered = PipelineMemory(memory or memory_of(folder), lookup)
    found: list[CompiledPipeline] = []
    wrong: dict[str, list[FileProblem]] = {}
    for path in _files(folder):
        name = str(path.relative_to(folder))
        try:
            found.append(remembered.read(path, name))
        except PipelineError as error:
            wrong[name] = all_problems(error) if time_left is None else error.problems
    partial = set(wrong)
    try:
        wrong |= {one.file: problems for one in found if (problems := remembered.checked(one, time_left))}
        found = [one for one in found if one.file not in wrong]
        # A name belongs to the file that had it at the last call, so a new file with the same name is the wrong one.
        for problem in _clashes(sorted(found, key=lambda one: remembered.name_of(one.file) != one.name)):
            wrong.setdefault(problem.file, []).append(problem)
    finally:
        # Checks are kept even if Airflow ends a parse that takes too long.
        remembered.write(wrong)
    right = tuple(one for one in found if one.file not in wrong)
    broken = _broken(folder, wrong, remembered, {one.name for one in right})
    return PipelineFolder(right, tuple(replace(one, is_partial=one.file in partial) for one in broken))


def read_path(path: Path, lookup: Callable[[str], str]) -> PipelineFolder:
    """Read and check the pipelines of a folder, or of a single file; wrong files are part of the result."""
    if path.is_dir():
        return read_folder(path, lookup)
    try:
        found = read_file(path, lookup)
    except PipelineError as error:
        return PipelineFolder((), (BrokenFile(str(path), path.stem, tuple(all_problems(error)), is_partial=True),))
    if problems := problems_of(found):
        return PipelineFolder((), (BrokenFile(str(path), path.stem, tuple(problems)),))
    return PipelineFolder((found,), ())


def _broken(
    folder: Path, wrong: Mapping[str, list[FileProblem]], remembered: PipelineMemory, taken: set[str]
) -> Iterator[BrokenFile]:
    """Yield wrong files with ids of their DAGs: the name in the file, else the last name, else a name from the path."""
    for file, problems in sorted(wrong.items()):
        last = remembered.last_of(file)
        name = _name_in(folder / file) or (last.name if last is not None else None)
        if name is None or name in taken:
            name = _NOT_IN_IDS.sub("_", str(Path(file).with_suffix("")))[:250]
            while name in taken:
                name += "_"
        taken.add(name)
        known = last if last is not None and last.name == name else None
        yield BrokenFile(file, name, tuple(problems), known, _changed_at(folder / file))


def _changed_at(path: Path) -> float:
    # The time of the content may come from another machine, from which the file was copied.
    with suppress(OSError):
        return path.stat().st_ctime
    return 0.0


def _name_in(path: Path) -> str | None:
    """Return the pipeline's name from a wrong file, found by a pattern; None if it is not found."""
    with suppress(PipelineError):
        match = _NAME.search(text_of(path, path.name))
        return match[1] if match else None
    return None


def _files(folder: Path) -> list[Path]:
    """Return the paths of pipeline files, sorted, without files in hidden folders and hidden files.

    A mounted ConfigMap has each file twice: as a link, and in a hidden folder.
    """
    found = (one for one in folder.rglob("*") if one.suffix in _SUFFIXES and one.is_file())
    return sorted(one for one in found if not any(part[0] == "." for part in one.relative_to(folder).parts))


def _clashes(found: Iterable[CompiledPipeline]) -> Iterator[FileProblem]:
    """Yield files with the name or the connector of an earlier file: the order decides which file is wrong."""
    first: dict[str, CompiledPipeline] = {}
    connectors: dict[str, CompiledPipeline] = {}
    for one in found:
        for name in (each.name for each in one.dags):
            if (other := first.setdefault(name, one)) is not one:
                text = f"metadata.name: {name!r} is the pipeline of {other.file} already."
                yield FileProblem(one.file, 1, 1, text)
        for landing in one.landings if one.engine == "connect" else ():
            name = connector_of(one, landing)
            other = connectors.setdefault(name, one)
            if other is not one and other.name != one.name:
                text = f"sinks.{landing.sink}: {name!r} is the connector of {other.file} already."
                yield FileProblem(one.file, *landing.places[WHOLE_PART], text)
