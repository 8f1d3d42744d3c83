"""The choice of suites: the files of a change, the suites that can feel them, and the shortest way to each."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dev.errors import UnknownBase
from dev.suites.table import EVERYTHING, READ, SUITES, Suite

if TYPE_CHECKING:
    from dev.suites.graph import UsesGraph

BASE = "LAKESTREAM_BASE"


@dataclass(frozen=True)
class Reach:
    """The way from a changed file to a suite: from a file of its own over others to the changed file, or by a rule.

    :param own: the files of the suite that can feel the change; none where a rule names the suite.
    """

    changed: str
    way: tuple[str, ...] = ()
    rule: str = ""
    own: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.changed}: {self.rule or ' -> '.join(self.way)}"


class Choice:
    """The suites that a change reaches.

    :param changed: paths relative to the checkout; those that are gone as well.
    """

    def __init__(self, graph: UsesGraph, changed: Iterable[str]) -> None:
        self._graph, self.changed = graph, sorted(changed)
        self._files = {suite.name: _files_of(suite, graph) for suite in SUITES}
        self.reaches: dict[str, list[Reach]] = {suite.name: [] for suite in SUITES}
        for path in self.changed:
            found = dict(self._reaches_of(path))
            # A linter reads each file, and proves nothing of what it does.
            if not found.keys() - {"lint"}:
                found = {suite.name: Reach(path, rule="no rule knows who uses it") for suite in SUITES}
            for name, reach in found.items():
                self.reaches[name].append(reach)

    @property
    def names(self) -> list[str]:
        """The names of the suites that are reached."""
        return [name for name, reaches in self.reaches.items() if reaches]

    def files(self, name: str) -> list[str]:
        """Return the files of a suite that can feel the change; all of them where a rule says so."""
        reaches = self.reaches[name]
        by_rule = any(not reach.own for reach in reaches)
        return sorted(self._files[name]) if by_rule else sorted({path for reach in reaches for path in reach.own})

    def has_what_reaches(self, suite: Suite) -> bool:
        """Whether a changed file has a suite run that is otherwise run by hand."""
        return any(fnmatchcase(path, glob) for path in self.changed for glob in suite.reached_by)

    def lines(self, every: bool = False) -> Iterator[str]:
        """Yield a line for each suite: why it is reached, or that it is not; or a line for each changed file."""
        for name, reaches in self.reaches.items():
            if not reaches:
                target = self.changed[0] if len(self.changed) == 1 else f"the {len(self.changed)} changed files"
                yield f"{name:<12} not reached: no import path from its files to {target}"
            for reach in sorted(reaches, key=lambda one: len(one.way))[: None if every else 1]:
                size = f" (files: {len(self.files(name))} of {len(self._files[name])})"
                yield f"{name:<12} reached by {reach}{'' if every else size}"

    def _reaches_of(self, path: str) -> Iterator[tuple[str, Reach]]:
        """Yield the suites that a changed file reaches; a shorter way comes after a longer one, a rule last."""
        if path in self._graph.files:
            yield from self._by_graph(path)
            for glob, names, reason in READ:
                if fnmatchcase(path, glob):
                    yield from ((name, Reach(path, rule=reason)) for name in names)
        reason = next((why for glob, why in EVERYTHING.items() if fnmatchcase(path, glob)), "")
        if reason:
            yield from ((suite.name, Reach(path, rule=reason)) for suite in SUITES)

    def _by_graph(self, path: str) -> Iterator[tuple[str, Reach]]:
        ways = self._graph.ways_from(path)
        near = {path, *self._graph.loaders_of(path)}
        for suite in SUITES:
            own = self._files[suite.name] & ways.keys()
            if not suite.follows:
                own &= near
            if own:
                way = min((tuple(self._graph.way(ways, file)) for file in sorted(own)), key=len)
                yield suite.name, Reach(path, way, own=tuple(sorted(own)))


@cache
def _files_of(suite: Suite, graph: UsesGraph) -> frozenset[str]:
    return frozenset(
        path
        for path in graph.files
        if any(fnmatchcase(path, glob) for glob in suite.globs)
        and (not suite.containing or (path.endswith(".py") and suite.containing in graph.text(path)))
    )


def base_of(root: Path, given: str | None) -> str | None:
    """Return the commit that a change began at; None where nobody knows.

    :param given: a revision; else that of LAKESTREAM_BASE, else origin/main if HEAD is another commit.
    """
    if given := given or os.environ.get(BASE):
        if (found := _git(root, "merge-base", given, "HEAD")) is None:
            raise UnknownBase(f"No common commit of {given} and HEAD: fetch it, or choose all suites with --all.")
        return found
    found, head = _git(root, "merge-base", "origin/main", "HEAD"), _git(root, "rev-parse", "HEAD")
    return None if found == head else found


def changed_since(root: Path, base: str) -> list[str]:
    """Return the files that differ from a commit: committed or not, new ones and those that are gone."""
    differing = _git(root, "diff", "--name-only", "--no-renames", "-z", base) or ""
    new = _git(root, "ls-files", "--others", "--exclude-standard", "-z") or ""
    return sorted({*f"{differing}\0{new}".split("\0")} - {""})


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def choice_of(root: Path, base: str | None = None) -> Choice | None:
    """Return the suites that a change reaches; None where nobody knows where the change began: each suite then.

    :param base: as `base_of` takes it.
    :raises UnknownBase: HEAD and the base have no common commit.
    """
    begun = base_of(root, base)
    if begun is None:
        return None
    # Only here: a checkout without git and without the tools has no choice, and needs none.
    from dev.suites.graph import UsesGraph

    return Choice(UsesGraph(root), changed_since(root, begun))


def report(root: Path, base: str | None, *, every: bool, why: bool, names: bool, files: str | None) -> Iterator[str]:
    """Yield the lines of `python -m dev suites`."""
    choice = None if every else choice_of(root, base)
    run = [suite.name for suite in SUITES if not suite.by_hand]
    if choice is None:
        reason = "all are asked for" if every else f"no base: neither --base, {BASE} nor another origin/main"
        yield from (name if names else f"{name:<12} reached: {reason}" for name in run)
        return
    if files is not None:
        yield from choice.files(files)
    else:
        yield from (name for name in choice.names if name in run) if names else choice.lines(why)
