"""All pipelines of a folder, checked; files unchanged since the last look come from a memory on disk.

Airflow parses a DAG file again every half minute, in a new process. Reading 500 files takes seconds of a processor,
and the check of their SQL many more; reading the memory takes a tenth of a second.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from airflow_lakestream.pipelines.compiled import WHOLE_PART, CompiledPipeline
from airflow_lakestream.pipelines.memory import CheckTime, PipelineMemory, memory_of
from airflow_lakestream.pipelines.operator import connector_of
from airflow_lakestream.pipelines.reading import problems_of, read_file, text_of
from airflow_lakestream.pipelines.yaml_file import FileProblem, PipelineError

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
    """

    file: str
    name: str
    problems: tuple[FileProblem, ...]
    last: CompiledPipeline | None = None
    since: float = 0.0


@dataclass(frozen=True)
class PipelineFolder:
    """The pipelines of a folder, in the order of files, and the wrong files."""

    right: tuple[CompiledPipeline, ...]
    wrong: tuple[BrokenFile, ...]

    def check(self) -> None:
        """Raise PipelineError with all problems of all files, if there are any."""
        if self.wrong:
            raise PipelineError([problem for one in self.wrong for problem in one.problems])


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
            wrong[name] = error.problems
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
    return PipelineFolder(right, tuple(_broken(folder, wrong, remembered, {one.name for one in right})))


def read_path(path: Path, lookup: Callable[[str], str]) -> PipelineFolder:
    """Read and check the pipelines of a folder, or of a single file; wrong files are part of the result."""
    if path.is_dir():
        return read_folder(path, lookup)
    try:
        found = read_file(path, lookup)
        problems = problems_of(found)
    except PipelineError as error:
        problems = error.problems
    return (
        PipelineFolder((), (BrokenFile(str(path), path.stem, tuple(problems)),))
        if problems
        else PipelineFolder((found,), ())
    )


# Ids for the DAGs of wrong files: the name in the file, else the last name, else one made of the path.
def _broken(
    folder: Path, wrong: Mapping[str, list[FileProblem]], remembered: PipelineMemory, taken: set[str]
) -> Iterator[BrokenFile]:
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


# Files with the name or the connector of an earlier file; the order decides which file is wrong.
def _clashes(found: Iterable[CompiledPipeline]) -> Iterator[FileProblem]:
    first: dict[str, CompiledPipeline] = {}
    connectors: dict[str, CompiledPipeline] = {}
    for one in found:
        other = first.setdefault(one.name, one)
        if other is not one:
            text = f"metadata.name: {one.name!r} is the pipeline of {other.file} already."
            yield FileProblem(one.file, 1, 1, text)
        for landing in one.landings if one.engine == "connect" else ():
            name = connector_of(one, landing)
            other = connectors.setdefault(name, one)
            if other is not one and other.name != one.name:
                text = f"sinks.{landing.sink}: {name!r} is the connector of {other.file} already."
                yield FileProblem(one.file, *landing.places[WHOLE_PART], text)
