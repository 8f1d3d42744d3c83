"""All pipelines of a folder, checked; those that have not changed since the last look come from a memory on disk.

Airflow parses a DAG file anew every half minute, in a new process. Reading and checking 500 files takes seconds of a
processor, the memory of them a tenth of one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from airflow_lakestream import __version__
from airflow_lakestream.pipelines.compiled import WHOLE, Compiled
from airflow_lakestream.pipelines.errors import PipelineError, Problem
from airflow_lakestream.pipelines.operator import connector_of

_SUFFIXES = (".yaml", ".yml")
# Larger than any pipeline; a file of that size is something else that ends with .yaml.
_MOST_BYTES = 1 << 20


# The DAG's id, as far as a file that is wrong still says it.
_NAME = re.compile(
    r"""^metadata:[^\S\n]*(?:\{[^}]*?\b|(?:\#.*)?\n(?:(?:[^\S\n].*|\#.*)?\n)*?[^\S\n]+)name:[^\S\n]*["']?([\w.-]{1,250})["']?"""
    r"""[^\S\n]*(?:[,}]|\#|$)""",
    re.ASCII | re.MULTILINE,
)
_NOT_IN_IDS = re.compile(r"[^\w.-]", re.ASCII)


@dataclass(frozen=True)
class Broken:
    """A file that is wrong.

    :param name: the id of its DAG: no other pipeline of the folder has it.
    :param last: what it came to when it was last right; None if nobody remembers.
    :param since: when the file was changed on this machine, in seconds since the epoch.
    """

    file: str
    name: str
    problems: tuple[Problem, ...]
    last: Compiled | None = None
    since: float = 0.0


@dataclass(frozen=True)
class Folder:
    """The pipelines of a folder, in the order of their files, and the files that are wrong."""

    right: tuple[Compiled, ...]
    wrong: tuple[Broken, ...]

    def check(self) -> None:
        """Raise PipelineError with all that is wrong in all files."""
        if self.wrong:
            raise PipelineError([problem for one in self.wrong for problem in one.problems])


def read_folder(folder: Path, lookup: Callable[[str], str], memory: Path | None = None) -> Folder:
    """Read the pipelines of a folder and the folders in it.

    :param lookup: returns what `${NAME}` stands for; see `variables.looked_up`.
    :param memory: file that remembers what was read; default: below AIRFLOW_HOME.

    Raises PipelineError where there is no such folder.
    """
    if not folder.is_dir():
        raise PipelineError([Problem(str(folder), 0, 0, "there is no such folder of pipelines.")])
    remembered = _Memory(memory or _memory_of(folder), lookup)
    found: list[Compiled] = []
    wrong: dict[str, list[Problem]] = {}
    for path in _files(folder):
        name = str(path.relative_to(folder))
        try:
            found.append(remembered.read(path, name))
        except PipelineError as error:
            wrong[name] = error.problems
    for problem in _clashes(sorted(found, key=lambda one: remembered.name_of(one.file) != one.name)):
        wrong.setdefault(problem.file, []).append(problem)
    right = tuple(one for one in found if one.file not in wrong)
    broken = tuple(_broken(folder, wrong, remembered, {one.name for one in right}))
    remembered.write(broken)
    return Folder(right, broken)


def _broken(folder: Path, wrong: Mapping[str, list[Problem]], remembered: _Memory, taken: set[str]) -> Iterator[Broken]:
    for file, problems in sorted(wrong.items()):
        last = remembered.last_of(file)
        said = _name_in(folder / file) or (last.name if last is not None else None)
        if said is None or said in taken:
            said = _NOT_IN_IDS.sub("_", str(Path(file).with_suffix("")))[:250]
            while said in taken:
                said += "_"
        taken.add(said)
        known = last if last is not None and last.name == said else None
        yield Broken(file, said, tuple(problems), known, _changed_at(folder / file))


def _changed_at(path: Path) -> float:
    # The time of the content may be that of another machine, from which the file was copied.
    with suppress(OSError):
        return path.stat().st_ctime
    return 0.0


def _name_in(path: Path) -> str | None:
    """Return the name that a file gives its pipeline; None where it can't be found."""
    with suppress(PipelineError):
        match = _NAME.search(_text(path, path.name))
        return match[1] if match else None
    return None


def _files(folder: Path) -> list[Path]:
    """Return the files of pipelines; hidden ones are none, such as those behind the links of a ConfigMap."""
    found = (one for one in folder.rglob("*") if one.suffix in _SUFFIXES and one.is_file())
    return sorted(one for one in found if not any(part[0] == "." for part in one.relative_to(folder).parts))


def read_file(path: Path, lookup: Callable[[str], str], *, engine: str | None = None) -> Compiled:
    """Return the pipeline of a file. Raises PipelineError.

    :param engine: instead of the file's own.
    """
    return _read(_text(path, str(path)), str(path), lookup, engine)[0]


def _clashes(found: Iterable[Compiled]) -> Iterator[Problem]:
    first: dict[str, Compiled] = {}
    connectors: dict[str, Compiled] = {}
    for one in found:
        other = first.setdefault(one.name, one)
        if other is not one:
            text = f"metadata.name: {one.name!r} is the pipeline of {other.file} already."
            yield Problem(one.file, 1, 1, text)
        for landing in one.landings if one.engine == "connect" else ():
            name = connector_of(one, landing)
            other = connectors.setdefault(name, one)
            if other is not one and other.name != one.name:
                text = f"sinks.{landing.sink}: {name!r} is the connector of {other.file} already."
                yield Problem(one.file, *landing.places[WHOLE], text)


def _text(path: Path, name: str) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PipelineError([Problem(name, 0, 0, f"it can't be read ({error.strerror}).")]) from None
    if len(data) > _MOST_BYTES:
        raise PipelineError([Problem(name, 0, 0, f"it has {len(data):,} bytes; a pipeline has less than a mebibyte.")])
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise PipelineError([Problem(name, 0, 0, f"it is no UTF-8 text (byte {error.start}).")]) from None


def _read(
    text: str, name: str, lookup: Callable[[str], str], engine: str | None = None
) -> tuple[Compiled, frozenset[str]]:
    # Here, since nothing of it is needed for files that are remembered.
    from airflow_lakestream.pipelines.compiling import compile_document
    from airflow_lakestream.pipelines.yaml_file import read_document

    document = read_document(name, text, lookup)
    return compile_document(document, engine), document.variables


def _memory_of(folder: Path) -> Path:
    home = Path(os.environ.get("AIRFLOW_HOME") or Path.home() / "airflow").expanduser()
    return home / "lakestream" / "pipelines" / f"{_digest(str(folder.resolve()))}.json"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


# What was remembered by other code may have other parts.
_VERSION = _digest(__version__, *(one.name for one in fields(Compiled)))


def _seal(content: bytes) -> bytes:
    """Return what a memory begins with that this code has written, and nobody has changed."""
    return hashlib.sha256(_VERSION.encode() + content).hexdigest().encode()


class _Memory:
    """What files came to, by their content and the variables in them. A memory that is damaged is an empty one."""

    def __init__(self, path: Path, lookup: Callable[[str], str]) -> None:
        self._path = path
        self._lookup = lookup
        self._before: Mapping[str, Any] = {}
        self._now: dict[str, Any] = {}
        with suppress(OSError):
            seal, _, content = path.read_bytes().partition(b"\n")
            if seal == _seal(content):
                self._before = json.loads(content)

    def read(self, path: Path, name: str) -> Compiled:
        """Return a file's pipeline. Raises PipelineError."""
        text = _text(path, name)
        entry = self._before.get(name)
        if entry is not None and entry["key"] == self._key(text, entry["variables"]):
            self._now[name] = entry
            return Compiled.of_dict(entry["compiled"])
        compiled, variables = _read(text, name, self._lookup)
        names = sorted(variables)
        self._now[name] = {"key": self._key(text, names), "variables": names, "compiled": compiled.to_dict()}
        return compiled

    def name_of(self, file: str) -> str | None:
        """Return the name of a file's pipeline when it was last right; None if it is not remembered."""
        entry = self._before.get(file)
        return None if entry is None else entry["compiled"]["name"]

    def last_of(self, file: str) -> Compiled | None:
        """Return what a file came to when it was last right; None if it is not remembered."""
        entry = self._before.get(file)
        return None if entry is None else Compiled.of_dict(entry["compiled"])

    def write(self, broken: Iterable[Broken]) -> None:
        """Remember what was read, and of files that are wrong what they came to before.

        Where the disk does not let us, the next parse reads again.
        """
        for one in broken:
            self._now.pop(one.file, None)
            if one.file in self._before:
                self._now[one.file] = self._before[one.file]
        if self._now == self._before:
            return
        content = json.dumps(self._now).encode()
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(_seal(content) + b"\n" + content)
                Path(name).replace(self._path)
            except OSError:
                Path(name).unlink()
                raise

    def _key(self, text: str, variables: list[str]) -> str:
        try:
            return _digest(text, *(f"{name}={self._lookup(name)}" for name in variables))
        except LookupError:
            return ""
