"""References of a file of tests: modules, fixtures, programs and pages, by imports and by names in its text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

Function = ast.FunctionDef | ast.AsyncFunctionDef
MODULE = re.compile(r"\b(?:airflow_lakestream|tests|dev)(?:\.\w+)+")
_FROM = re.compile(rf"\bfrom ({MODULE.pattern}) import ([\w, ]+)")
_GOES_ON = re.compile(r"\.(\{|$)")
# What asks for fixtures by names in strings.
_ASKING = ("getfixturevalue", "usefixtures")


def module_of(path: str) -> str:
    """Return the dotted name of a Python file."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@dataclass
class Definitions:
    """The top of a module: what it defines and imports by name, and the statements that do neither."""

    named: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)
    rest: list[ast.stmt] = field(default_factory=list)

    @classmethod
    def of(cls, path: str, tree: ast.Module) -> Definitions:
        """Read them from a module's tree."""
        made = cls()
        for statement in tree.body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                made.imported.update({local: (module, name) for local, module, name in _imports(statement, path)})
            elif names := _defined(statement):
                for name in names:
                    made.named.setdefault(name, []).append(statement)
            elif not _is_for_types(statement):
                made.rest.append(statement)
        return made

    @property
    def fixtures(self) -> dict[str, str]:
        """Names of fixtures, and the functions that make them."""
        return {_name_of(node): node.name for node in self._functions if is_fixture(node)}

    @property
    def for_all(self) -> list[str]:
        """Functions that take part in each test of a run with this plugin: hooks, and fixtures that nobody asks for."""
        return [one.name for one in self._functions if one.name.startswith("pytest_") or "autouse" in _decorating(one)]

    @property
    def _functions(self) -> list[Function]:
        return [node for nodes in self.named.values() for node in nodes if isinstance(node, Function)]


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, Function | ast.ClassDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    nodes = [node for target in targets if target for node in ast.walk(target)]
    return [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]


def _decorating(function: Function) -> set[str]:
    """Return the names in a function's decorators, and those of their arguments."""
    nodes = [node for decorator in function.decorator_list for node in ast.walk(decorator)]
    return {str(getattr(node, name)) for node in nodes for name in ("id", "attr", "arg") if hasattr(node, name)}


def is_fixture(function: Function) -> bool:
    """Say whether a function is a fixture."""
    return "fixture" in _decorating(function)


def _name_of(fixture: Function) -> str:
    calls = [one for one in fixture.decorator_list if isinstance(one, ast.Call)]
    names = [word.value for call in calls for word in call.keywords if word.arg == "name"]
    return next((str(name.value) for name in names if isinstance(name, ast.Constant)), fixture.name)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def _imports(node: ast.Import | ast.ImportFrom, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield (the local name, the module, the name in it or nothing)."""
    if isinstance(node, ast.Import):
        for one in node.names:
            yield one.asname or one.name.partition(".")[0], one.name, ""
        return
    above = PurePath(path).parents[node.level - 1].as_posix().replace("/", ".") if node.level else ""
    module = ".".join(filter(None, (above, node.module)))
    for one in node.names:
        yield one.asname or one.name, module, one.name


def walk(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield all nodes that run: no annotations, no docstrings, no imports for types alone."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if _is_for_types(node) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        yield node
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                waiting.extend(one for one in value if isinstance(one, ast.AST))
            elif isinstance(value, ast.AST) and name not in ("annotation", "returns", "ctx"):
                waiting.append(value)


def strings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the string constants that are no docstrings."""
    for node in walk(nodes):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _asked_of(function: Function) -> set[str]:
    """Return the fixtures that a test or a fixture asks for; arguments that its decorators give are none."""
    if not (function.name.startswith("test") or is_fixture(function)):
        return set()
    given = {word for text in strings(function.decorator_list) for word in re.findall(r"\w+", text)}
    return {one.arg for one in (*function.args.args, *function.args.kwonlyargs)} - given - _decorating(function)


class References:
    """Resolves what tests refer to. A module of the support is read definition by definition, any other as a whole.

    A place is a file's path, or `path::name` for a definition in a module of the support.

    :param modules: paths by the dotted names of all modules.
    :param support: the definitions of the modules of the support, by their paths.
    :param programs: paths by the words that tests start or read them by.
    """

    def __init__(
        self,
        modules: Mapping[str, str],
        support: Mapping[str, Definitions],
        programs: Mapping[str, Sequence[str]],
    ) -> None:
        self._modules, self._support, self._programs = modules, support, programs
        pairs = [(path, *pair) for path, made in support.items() for pair in made.fixtures.items()]
        self._fixtures = {fixture: f"{path}::{function}" for path, fixture, function in pairs}

    def of_module(self, path: str, tree: ast.Module) -> Iterator[str]:
        """Yield the places that a file of tests refers to; its own fixtures hide those of the support."""
        own = {_name_of(node) for node in tree.body if isinstance(node, Function) and is_fixture(node)}
        yield from self._of(path, [tree], own)

    def of_definition(self, path: str, nodes: Sequence[ast.AST]) -> Iterator[str]:
        """Yield the places that a definition in a module of the support refers to."""
        made = self._support[path]
        for node in walk(nodes):
            if isinstance(node, ast.Name) and node.id in made.imported:
                yield from self._member(*made.imported[node.id])
            elif isinstance(node, ast.Name) and node.id in made.named:
                yield f"{path}::{node.id}"
        yield from self._of(path, nodes, set())

    def _of(self, path: str, nodes: Sequence[ast.AST], own: set[str]) -> Iterator[str]:
        wanted = set[str]()
        for node in walk(nodes):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for _, module, name in _imports(node, path):
                    yield from self._member(module, name)
            elif isinstance(node, Function):
                wanted |= _asked_of(node) - own
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _ASKING:
                # A name that is not written here may be any word of the file.
                wanted |= {*strings(node.args)} or {*strings(nodes)}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from self.of_text(node.value)
                yield from self.of_word(node.value, path)
        yield from (self._fixtures[name] for name in wanted if name in self._fixtures)

    def of_text(self, text: str) -> Iterator[str]:
        """Yield the places whose dotted names stand in a text; all modules of a package if a gap follows its name."""
        for found in MODULE.finditer(text):
            module, rest = found.group(), ""
            while module and module not in self._modules:
                module, _, rest = module.rpartition(".")
            yield from self._member(module, rest)
            if module == text or (not rest and _GOES_ON.match(text, found.end())):
                yield from (path for one, path in self._modules.items() if one.rpartition(".")[0] == module)
        for module, names in _FROM.findall(text):
            for name in re.findall(r"\w+", names):
                yield from self._member(module, name)

    def of_word(self, word: str, path: str) -> Iterator[str]:
        """Yield the files that a string in a file is the name of: programs, pages, a module beside it."""
        yield from self._programs.get(word, ())
        if word.endswith(".py") and "/" not in word:
            yield from self._member(module_of(str(PurePath(path).with_name(word))), "")

    def _member(self, module: str, name: str) -> Iterator[str]:
        """Yield the place of a name in a module, or of a whole module."""
        if f"{module}.{name}" in self._modules:
            module, name = f"{module}.{name}", ""
        path = self._modules.get(module)
        if path is None:
            return
        made = self._support.get(path)
        if made is None:
            yield path
        elif name in made.imported:
            yield from self._member(*made.imported[name])
        else:
            yield from (f"{path}::{one}" for one in ([name] if name in made.named else made.named))
            yield path
