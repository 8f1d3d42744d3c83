"""YAML with the position of each value, and the problems of a pipeline's file with line and column."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import yaml

from airflow_lakestream.exceptions import LakestreamError, Terminal


@dataclass(frozen=True, order=True)
class FileProblem:
    """A problem of a file. Lines and columns count from 1; an unreadable file has line 0."""

    file: str
    line: int
    column: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.text}" if self.line else f"{self.file}: {self.text}"


class PipelineError(LakestreamError, Terminal, ValueError):
    """Files of pipelines are wrong; `problems` has all problems, in the order of files and lines.

    :param document: the file's content, if its problems keep `check` from the rest of it.
    """

    def __init__(self, problems: Sequence[FileProblem], document: YamlDocument | None = None) -> None:
        self.problems = sorted(problems)
        self.document = document
        super().__init__("\n".join(map(str, self.problems)))


# Keys and indexes from the top to a value.
Path: TypeAlias = tuple[str | int, ...]
Place: TypeAlias = tuple[int, int]

_VARIABLE = re.compile(r"\$\$|\$\{([^}]*)\}")
_MOST_NESTED = 50
_DEEP = "aliases and deep nesting are not for pipelines; write the value out."
# C's reader is ten times as fast, and is in all wheels of PyYAML.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class YamlDocument:
    """Content of a file: mappings, lists, texts, numbers, booleans and None; and the position of each.

    :param places: line and column of each value by its path; for a value of a mapping, the position of its key.
    :param variables: the names in `${...}`.
    """

    file: str
    content: Any
    places: Mapping[Path, Place]
    variables: frozenset[str]

    def place(self, path: Path) -> Place:
        """Return the position of a value, or of the nearest part around it if the value is missing."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, (1, 1))

    def problem(self, path: Path, text: str) -> FileProblem:
        """Return a problem at the position of a value; the text begins with the value's path."""
        if path and not text.startswith(name := ".".join(map(str, path))):
            text = f"{name}: {text.removeprefix(f'{path[-1]}: ')}"
        return FileProblem(self.file, *self.place(path), text)


def read_document(file: str, text: str, lookup: Callable[[str], str]) -> YamlDocument:
    """Read a file's text; `${NAME}` becomes the result of `lookup` for the name, `$$` a dollar sign.

    A variable's value is always text, and is not read as YAML. Dates stay text. Raises PipelineError for invalid YAML,
    for duplicate keys, for aliases, merges and tags, and for a variable that `lookup` does not find (it raises
    LookupError with the reason).
    """
    try:
        node = None if (deep := _too_deep(text)) else yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        raise PipelineError(
            [FileProblem(file, line, column, f"invalid YAML: {error.problem or error.context}")]
        ) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise PipelineError([FileProblem(file, 1, 1, f"invalid YAML: {' '.join(str(error).split())}")]) from None
    if deep is not None:
        raise PipelineError([FileProblem(file, deep.line + 1, deep.column + 1, _DEEP)])
    reader = _DocumentReader(file, lookup)
    content = reader.value(node, ()) if node is not None else None
    if reader.problems:
        raise PipelineError(reader.problems)
    return YamlDocument(file, content, reader.places, frozenset(reader.variables))


def _too_deep(text: str) -> yaml.Mark | None:
    """Return the position of the first value nested more than 50 levels deep, or None.

    The composer calls itself for each level, and the C version ends the process if there are many. The parser does not.
    Raises yaml.YAMLError for invalid YAML.
    """
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MOST_NESTED:
                mark: yaml.Mark = event.start_mark
                return mark
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return None


class _DocumentReader:
    def __init__(self, file: str, lookup: Callable[[str], str]) -> None:
        self._file = file
        self._lookup = lookup
        self.places: dict[Path, Place] = {}
        self.variables: set[str] = set()
        self.problems: list[FileProblem] = []
        self._visited: set[int] = set()

    def value(self, node: yaml.Node, path: Path) -> Any:
        """Return a node's value, and record the position of each value within. Problems are collected in `problems`."""
        place = self.places[path] = _place(node)
        if id(node) in self._visited:
            # An alias may contain itself, or unfold to more than fits into memory.
            self._wrong(place, _DEEP)
            return None
        self._visited.add(id(node))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, at)) for at, item in enumerate(node.value)]
        return self._scalar(node, place)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.value == "<<":
                self._wrong(_place(key_node), "a key has to be a name.")
                continue
            name = key_node.value
            if name in found:
                self._wrong(_place(key_node), f"{name} is there twice.")
                continue
            found[name] = self.value(value_node, (*path, name))
            # A person looks for an error of a value at its key.
            self.places[(*path, name)] = _place(key_node)
        return found

    def _scalar(self, node: yaml.ScalarNode, place: Place) -> Any:
        # A quoted scalar has the tag of a text: only plain scalars become numbers and booleans.
        kind = node.tag.rpartition(":")[2]
        if kind == "null":
            return None
        if kind == "bool":
            return node.value.lower() in ("true", "yes", "on")
        if kind in ("int", "float"):
            return _number(node.value, kind)
        if kind not in ("str", "timestamp"):
            self._wrong(place, f"the tag {node.tag} is not for pipelines.")
            return None
        return self._filled_in(node.value, place)

    def _filled_in(self, text: str, place: Place) -> str:
        def found(match: re.Match[str]) -> str:
            name = match[1]
            if name is None:
                return "$"
            self.variables.add(name)
            try:
                return self._lookup(name)
            except LookupError as error:
                self._wrong(place, str(error.args[0]) if error.args else f"there is no variable {name}.")
                return ""

        return _VARIABLE.sub(found, text) if "$" in text else text

    def _wrong(self, place: Place, text: str) -> None:
        self.problems.append(FileProblem(self._file, *place, text))


def _place(node: yaml.Node) -> Place:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _number(text: str, kind: str) -> int | float | str:
    try:
        # 0x1F, 1_000 and 1:30 mean something else to each reader of YAML.
        return text if "_" in text else int(text) if kind == "int" else float(text)
    except ValueError:
        return text
