"""Flow of records through a file: from sources through transformations, joined into a statement, to sinks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_lakestream.core.policies import OF_INPUT
from airflow_lakestream.pipelines.model import Pipeline, PipelineSink, Source, Transformation
from airflow_lakestream.pipelines.yaml_file import FileProblem, Path, YamlDocument

_PATH: Path = ("transformations",)


@dataclass(frozen=True)
class RecordFlow:
    """The flow of records into a sink: the source, and the transformations in order.

    :param last_at: path of the last transformation in the file; of the list, without transformations.
    """

    source_name: str
    source: Source
    steps: Sequence[Transformation]
    last_at: Path
    sink_name: str
    sink: PipelineSink

    @property
    def source_at(self) -> Path:
        """Path of the source in the file."""
        return ("sources", self.source_name)

    @property
    def sink_at(self) -> Path:
        """Path of the sink in the file."""
        return ("sinks", self.sink_name)

    @property
    def quality_at(self) -> Path:
        """Path of the sink's own quality in the file, or of the quality of all sinks."""
        return ("quality",) if self.sink.quality is None else (*self.sink_at, "quality")

    @property
    def statement(self) -> str | None:
        """All transformations as a single SQL statement, or None without transformations.

        Each transformation except the last becomes a common table expression (WITH) of its name, which the next reads
        from.
        """
        parts, source = [], "{{ input }}"
        for step in self.steps:
            # On a line of its own, since a statement may end with a comment.
            parts.append((step.name, OF_INPUT.sub(source, step.sql.strip().rstrip(";"))))
            source = f'"{step.name}"'
        if not parts:
            return None
        *before, (_, last) = parts
        if not before:
            return last
        return "WITH " + ",\n".join(f'"{name}" AS (\n{sql}\n)' for name, sql in before) + f"\n{last}"

    def step_at(self, line: int, column: int) -> tuple[Transformation, int, int]:
        """Return the transformation at a position of `statement`, and the position in the transformation's SQL.

        Lines and columns count from 1.
        """
        first, *later = self.steps
        for step in [first, *later]:
            # Each step except the last has a line with its name before its SQL, and a closing line after it.
            is_last = step is self.steps[-1]
            line -= 0 if is_last else 1
            lines = step.sql.strip().split("\n")
            if is_last or line <= len(lines):
                break
            line -= len(lines) + 1
        before = self.steps[self.steps.index(step) - 1].name if step is not first else ""
        for found in OF_INPUT.finditer(lines[line - 1]) if before and line <= len(lines) else ():
            # The step's input has another name in the combined statement.
            if column > found.start() + 1:
                column += len(found[0]) - len(before) - 2
        return step, line, column


def record_flows(pipeline: Pipeline) -> list[RecordFlow]:
    """Return the flow into each sink, followed back from the sink to the source.

    The pipeline must have passed `check_flow`: an unknown input raises KeyError, a circle of transformations never
    ends.
    """
    steps = {step.name: step for step in pipeline.transformations}
    places = {step.name: (*_PATH, at) for at, step in enumerate(pipeline.transformations)}
    found = []
    # `here` is the name of a source or a transformation; `back` collects transformations, the last first.
    for name, here in _inputs(pipeline).items():
        last_at, back = places.get(here, _PATH), []
        while here in steps:
            back.append(steps[here])
            here = steps[here].input
        found.append(RecordFlow(here, pipeline.sources[here], back[::-1], last_at, name, pipeline.sinks[name]))
    return found


def check_flow(document: YamlDocument, pipeline: Pipeline) -> list[FileProblem]:
    """Return the problems in the flow from each source, through each transformation, into a sink.

    The checks come in order (names, sinks, unused parts); only the problems of the first check that fails are returned.
    """
    for look in (_name_problems, _input_problems, _use_problems):
        # Earlier problems cause later ones.
        if problems := list(look(document, pipeline)):
            return problems
    return []


def _name_problems(document: YamlDocument, pipeline: Pipeline) -> Iterator[FileProblem]:
    steps = pipeline.transformations
    times = Counter([*pipeline.sources, *(step.name for step in steps)])
    for at, step in enumerate(steps):
        path = (*_PATH, at)
        if times[step.name] > 1:
            yield document.problem((*path, "name"), f"{step.name} is the name of another step or of a source.")
        if not OF_INPUT.search(step.sql):
            yield document.problem((*path, "sql"), "it does not read from {{ input }}. Write FROM {{ input }}.")
    yield from unknown_inputs(document)


def unknown_inputs(document: YamlDocument) -> Iterator[FileProblem]:
    """Yield the inputs that name nothing, also in a file with other mistakes.

    If a name of a transformation is missing, none are reported: an input may mean that transformation.
    """
    sources, sinks = (_mapping(document.content.get(key)) for key in ("sources", "sinks"))
    steps = document.content.get("transformations") or []
    if not isinstance(steps, list) or not all(isinstance(_mapping(step).get("name"), str) for step in steps):
        return
    names = [*sources, *(step["name"] for step in steps)]
    readers: Iterable[tuple[Path, Any]] = [
        *(((*_PATH, at), step) for at, step in enumerate(steps)),
        *((("sinks", name), sink) for name, sink in sinks.items()),
    ]
    for path, reader in readers:
        given = _mapping(reader).get("input")
        if isinstance(given, str) and given not in names:
            # A transformation can't read from itself.
            known = [name for name in names if path[0] == "sinks" or name != reader["name"]]
            problem = f"there is no {given!r} to read from; there are {', '.join(known)}."
            yield document.problem((*path, "input"), problem)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _input_problems(document: YamlDocument, pipeline: Pipeline) -> Iterator[FileProblem]:
    """Yield sinks without an input.

    A single sink may leave out its input, if exactly one source or step is read by no name.
    """
    without = [name for name, sink in pipeline.sinks.items() if sink.input is None]
    for name in without[1:]:
        problem = f"input is missing. One sink of a file may leave it out, and {without[0]} does."
        yield document.problem(("sinks", name), f"{problem} Name the source or the transformation.")
    if len(without) != 1:
        return
    if len(ends := _ends(pipeline)) != 1:
        found = f"{' and '.join(ends)} are read by nothing else" if ends else "all is read by something else"
        yield document.problem(
            ("sinks", without[0]), f"input is missing: {found}. Name the source or the transformation."
        )


def _use_problems(document: YamlDocument, pipeline: Pipeline) -> Iterator[FileProblem]:
    """Yield transformations and sources from which no sink reads, directly or through transformations."""
    by_name = {step.name: step for step in pipeline.transformations}
    used: set[str] = set()
    for here in _inputs(pipeline).values():
        while here not in used:
            used.add(here)
            here = by_name[here].input if here in by_name else here
    for at, step in enumerate(pipeline.transformations):
        if _is_circle(step, by_name):
            problem = f"{step.name} leads to no sink: it reads from itself, through other steps."
            yield document.problem((*_PATH, at), problem)
        elif step.name not in used:
            yield document.problem((*_PATH, at), f"{step.name} leads to no sink: no sink reads from it.")
    for name in pipeline.sources:
        if name not in used:
            problem = f"{name} is read by no sink. Take it out, or name it in the input of one."
            yield document.problem(("sources", name), problem)


def _is_circle(step: Transformation, by_name: Mapping[str, Transformation]) -> bool:
    """Return whether a walk back from a step's input returns to the step; not so for a step behind a circle."""
    here, visited = step.input, set[str]()
    while here in by_name and here not in visited:
        visited.add(here)
        here = by_name[here].input
    return step.name in visited


def _inputs(pipeline: Pipeline) -> dict[str, str]:
    """Return the input of each sink by the sink's name.

    A sink without `input` reads the only source or transformation that nobody else reads.
    """
    return {name: sink.input or _ends(pipeline)[0] for name, sink in pipeline.sinks.items()}


def _ends(pipeline: Pipeline) -> list[str]:
    """Return the names of sources and transformations that no `input` contains."""
    read = {step.input for step in pipeline.transformations} | {sink.input for sink in pipeline.sinks.values()}
    names = [*pipeline.sources, *(step.name for step in pipeline.transformations)]
    return [name for name in names if name not in read]
