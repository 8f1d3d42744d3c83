"""Transformations to the one statement that a landing runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from airflow_lakestream.pipelines.errors import Problem
from airflow_lakestream.pipelines.model import Transformation
from airflow_lakestream.pipelines.yaml_file import Document, Path

_INPUT = re.compile(r"\{\{-?\s*input\s*-?\}\}")
_PATH: Path = ("transformations",)


def statement_of(steps: Sequence[Transformation]) -> str | None:
    """Return the statement of a chain that `check_chain` finds nothing wrong with; None without one."""
    if not steps:
        return None
    by_input = {step.input: step for step in steps}
    chain = [next(step for step in steps if step.input not in {other.name for other in steps})]
    while (following := by_input.get(chain[-1].name)) is not None:
        chain.append(following)
    parts, source = [], "{{ input }}"
    for step in chain:
        # On a line of its own, since a statement may end with a comment.
        parts.append((step.name, _INPUT.sub(source, step.sql.strip().rstrip(";"))))
        source = f'"{step.name}"'
    *before, (_, last) = parts
    if not before:
        return last
    return "WITH " + ",\n".join(f'"{name}" AS (\n{sql}\n)' for name, sql in before) + f"\n{last}"


def check_chain(document: Document, source: str, steps: Sequence[Transformation]) -> Iterator[Problem]:
    """Yield what keeps transformations from being one chain from the source to the sink."""
    names: dict[str, int] = {}
    readers: dict[str, str] = {}
    for at, step in enumerate(steps):
        path = (*_PATH, at)
        if step.name in names or step.name == source:
            yield document.problem((*path, "name"), f"{step.name} is the name of another step or the source.")
        names.setdefault(step.name, at)
        if not _INPUT.search(step.sql):
            yield document.problem((*path, "sql"), "it does not read from {{ input }}. Write FROM {{ input }}.")
    for at, step in enumerate(steps):
        path = (*_PATH, at, "input")
        if step.input != source and step.input not in names:
            known = ", ".join([source, *names])
            yield document.problem(path, f"there is no {step.input!r} to read from; there are {known}.")
        elif step.input in readers:
            yield document.problem(
                path, f"{readers[step.input]} reads from {step.input} already: transformations are one chain."
            )
        readers.setdefault(step.input, step.name)
    yield from _unreached(document, source, steps, readers)


def _unreached(
    document: Document, source: str, steps: Sequence[Transformation], readers: dict[str, str]
) -> Iterator[Problem]:
    reached, here = set(), source
    while here in readers and readers[here] not in reached:
        here = readers[here]
        reached.add(here)
    for at, step in enumerate(steps):
        if step.name in reached:
            continue
        in_circle = {step.name}
        here = step.name
        while here in readers and readers[here] not in in_circle:
            here = readers[here]
            in_circle.add(here)
        is_circle = readers.get(here) == step.name
        why = "it reads from itself, by way of others" if is_circle else f"it is not read from {source}"
        yield document.problem((*_PATH, at), f"{step.name} makes nothing of the sink's rows: {why}.")
