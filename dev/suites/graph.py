"""Which files use which: the graph from the files of suites to all that they reach, and the way back."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path, PurePath

import grimp

from dev.suites.references import MODULE, Definitions, References, module_of, strings
from dev.suites.table import BRANCHES, LOADING, TABLES_OF_CHANGES, USES

_SUPPORT = "tests/support/"
# Roots whose modules are one place each; grimp reads their imports.
_ROOTS = ("airflow_lakestream", "dev", "dags", "spark_apps")
_INCLUDED = re.compile(r'--8<-- "([^"]+)"')
_IMPORT = re.compile(r"\s*(from|import) ")
_DATA = (".json", ".yml", ".yaml", ".sql")


def matching(glob: str, paths: Iterable[str]) -> list[str]:
    """Return the paths that a glob of the tables names."""
    return [path for path in paths if fnmatchcase(path, glob)]


def files_in(root: Path) -> list[str]:
    """Return the files of a checkout: those of git, and new ones that it does not ignore."""
    listed = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    found = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0")
    return sorted({path for path in found if path and (root / path).is_file()})


class UsesGraph:
    """The files of a checkout, and who uses them. A place is a path, or `path::name` in a module of the support."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.files = files_in(root)
        self._modules = {module_of(path): path for path in self.files if path.endswith(".py")}
        self._users: dict[str, set[str]] = defaultdict(set)
        self._loaders: dict[str, set[str]] = defaultdict(set)
        for path in self.files:
            if path.startswith(_SUPPORT) and path in self._support:
                self._add_support(path)
            elif path.startswith("tests/") and path.endswith(".py"):
                self._add_tests(path)
            elif path.endswith(".md"):
                self._add_page(path)
        self._add_packages()
        self._add_rows()

    def ways_from(self, changed: str) -> dict[str, str | None]:
        """Return each file that can feel a change of one, with the next on the shortest way to it; None is its own."""
        names = self._support[changed].named if changed in self._support else ()
        ways: dict[str, str | None] = dict.fromkeys((changed, *(f"{changed}::{name}" for name in names)))
        waiting = deque(ways)
        while waiting:
            place = waiting.popleft()
            loaders = self._loaders[place] if ways[place] is None else set()
            for user in sorted(self._users[place] | loaders):
                if user not in ways:
                    ways[user] = place
                    # Those that read a page read the names of what it includes.
                    waiting.extend([user] if user in self._users[place] or user.endswith(".py") else [])
        return ways

    def way(self, ways: dict[str, str | None], file: str) -> Iterator[str]:
        """Yield the files of the way from one to the changed file, each once."""
        following: str | None = file
        last = ""
        while following is not None:
            path = following.partition("::")[0]
            if path != last:
                yield path
            last, following = path, ways[following]

    def loaders_of(self, path: str) -> set[str]:
        """Return the files that load another without feeling what it uses."""
        return self._loaders[path]

    def text(self, path: str) -> str:
        """Return a file's text."""
        return (self._root / path).read_text()

    @cached_property
    def _support(self) -> dict[str, Definitions]:
        paths = [path for path in self._modules.values() if path.startswith(_SUPPORT)]
        return {path: Definitions.of(path, ast.parse(self.text(path))) for path in paths}

    @cached_property
    def _for_all(self) -> list[str]:
        """Hooks and fixtures that take part in each test, since tests/conftest.py loads the support as plugins."""
        return [f"{path}::{name}" for path, made in self._support.items() for name in made.for_all]

    @cached_property
    def _references(self) -> References:
        return References(self._modules, self._support, self._programs)

    @cached_property
    def _programs(self) -> dict[str, list[str]]:
        """Paths by the words that tests name them by: DAGs, Spark apps, pages, data of the package."""
        found: dict[str, list[str]] = defaultdict(list)
        for path in self.files:
            parts = PurePath(path).parts
            if parts[0] in ("dags", "spark_apps") and path.endswith(".py"):
                stem = PurePath(path).stem
                # "cdc_to_" is the name of an app, with the format of a table at its end.
                begun = [stem[: stem.rfind("_") + 1]] if parts[0] == "spark_apps" else []
                for word in (stem, f"{stem}.py", *begun):
                    found[word].append(path)
            elif parts[0] == "docs" and path.endswith(".md"):
                for number in range(len(parts)):
                    found["/".join(parts[number:])].append(path)
            elif parts[0] == "airflow_lakestream" and path.endswith(_DATA):
                found[parts[-1]].append(path)
        return found

    def _use(self, user: str, used: Iterable[str]) -> None:
        for place in used:
            if place != user:
                self._users[place].add(user)

    def _add_tests(self, path: str) -> None:
        if path in ("tests/conftest.py", *TABLES_OF_CHANGES):
            return
        self._use(path, self._references.of_module(path, ast.parse(self.text(path))))
        self._use(path, self._for_all)
        for folder in list(PurePath(path).parents)[:-2]:
            self._use(path, {str(folder / "conftest.py")} & set(self.files))

    def _add_support(self, path: str) -> None:
        made = self._support[path]
        for name, nodes in made.named.items():
            self._use(f"{path}::{name}", [path, *self._references.of_definition(path, nodes)])
        self._use(path, self._references.of_definition(path, made.rest))

    def _add_page(self, path: str) -> None:
        text = self.text(path)
        for included in _INCLUDED.findall(text):
            self._loaders[included].add(path)
        self._name(path, text)

    def _name(self, path: str, text: str) -> None:
        """Note the modules that a text names."""
        for place in self._references.of_text(text):
            if path in LOADING:
                self._loaders[place].add(path)
            else:
                self._use(path, [place])

    def _add_packages(self) -> None:
        """Add the imports of the package and the tools, and the modules that their texts name."""
        roots = [root for root in _ROOTS if any(path.startswith(f"{root}/") for path in self.files)]
        found = grimp.build_graph(*roots, exclude_type_checking_imports=True, cache_dir=None)
        for module, path in self._modules.items():
            if module not in found.modules:
                continue
            imported = found.find_modules_directly_imported_by(module)
            self._use(path, (self._modules[one] for one in imported if one in self._modules))
            above = [module.rsplit(".", number)[0] for number in range(1, module.count(".") + 1)]
            self._use(path, (self._modules[one] for one in above if one in self._modules))
            self._add_strings(path, self.text(path))

    def _add_strings(self, path: str, text: str) -> None:
        """Add what a module of the package or the tools names in strings, and the Spark apps of a DAG."""
        is_dag = path.startswith("dags/")
        if is_dag or any(MODULE.search(line) and not _IMPORT.match(line) for line in text.splitlines()):
            for one in strings([ast.parse(text)]):
                self._name(path, one)
                self._use(path, self._references.of_word(one, path) if is_dag else ())

    def _add_rows(self) -> None:
        """Remove and add what the tables say; data is a part of the modules in its folder."""
        for cut, used, _ in BRANCHES:
            for place in matching(used, list(self._users)):
                self._users[place] -= set(cut)
        places = [*self.files, *(f"{path}::{name}" for path, made in self._support.items() for name in made.named)]
        for users, used, _ in USES:
            for user in matching(users, places):
                self._use(user, matching(used, self.files))
        for path in self.files:
            if path.startswith("airflow_lakestream/") and path.endswith(_DATA):
                beside = [one for one in self._modules.values() if PurePath(one).parent == PurePath(path).parent]
                for module in beside:
                    self._use(module, [path])
