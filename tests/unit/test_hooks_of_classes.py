"""A class changes only what a class of another module offers: no override of a private method across modules.

An abstract method is offered by its declaration. A method of PyIceberg's own classes is PyIceberg's to name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "airflow_lakestream"
OF_PYICEBERG = {"_manifests"}


class ClassMethods:
    """The methods of the classes in some modules, by module and class."""

    def __init__(self, modules: dict[str, str]) -> None:
        self.classes = dict[str, ast.ClassDef]()
        self._names = dict[str, dict[str, str]]()
        self._aliases = dict[str, tuple[str, ast.expr]]()
        for module, text in modules.items():
            tree = ast.parse(text)
            found = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
            self._names[module] = {a.asname or a.name: f"{node.module}.{a.name}" for node in found for a in node.names}
            self.classes |= {f"{module}.{one.name}": one for one in tree.body if isinstance(one, ast.ClassDef)}
            # Another name for a class, such as one with its type arguments.
            for one in tree.body:
                if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
                    self._aliases[f"{module}.{one.targets[0].id}"] = (module, one.value)

    def private(self, name: str) -> set[str]:
        """Return the private methods that have a body."""
        methods = (one for one in self.classes[name].body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
        return {
            one.name
            for one in methods
            if one.name.startswith("_")
            and not one.name.startswith("__")
            and not any("abstractmethod" in ast.unparse(by) for by in one.decorator_list)
        }

    def above(self, name: str) -> Iterator[str]:
        """Yield the classes that a class extends, near ones first."""
        for base in self.classes[name].bases:
            whole = self._whole(name.rpartition(".")[0], base)
            while whole in self._aliases:
                whole = self._whole(*self._aliases[whole])
            if whole in self.classes:
                yield whole
                yield from self.above(whole)

    def _whole(self, module: str, value: ast.expr) -> str:
        head, _, rest = ast.unparse(value).partition("[")[0].partition(".")
        return self._names[module].get(head, f"{module}.{head}") + (f".{rest}" if rest else "")

    def overridden(self) -> dict[str, set[str]]:
        """Return the private methods of other modules that classes override, by class."""
        found = dict[str, set[str]]()
        for name in self.classes:
            module = name.rpartition(".")[0]
            others = (self.private(one) for one in self.above(name) if one.rpartition(".")[0] != module)
            if taken := self.private(name) & set[str]().union(*others) - OF_PYICEBERG:
                found[name.rpartition(".")[2]] = taken
        return found


def test_no_class_overrides_a_private_method_of_another_module() -> None:
    files = PACKAGE.rglob("*.py")
    modules = {".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts): file.read_text() for file in files}
    methods = ClassMethods(modules)
    # Classes are followed through modules, up to the base of all sinks.
    assert list(methods.above("airflow_lakestream.cdc.delta.DeltaMirror"))[1].endswith("tables.sink.TableSink")
    assert methods.overridden() == {}


def test_an_override_across_modules_is_found_however_the_base_is_named() -> None:
    base = "class Base:\n    def _hook(self): ...\n    @abstractmethod\n    def _open(self): ...\n"
    own = "class Own(Base):\n    def _hook(self): ...\n"
    methods = "    def _hook(self): ...\n    def _open(self): ...\n"
    modules = {
        "p.a": base + own,
        "p.b": f"from p import a\nclass Far(a.Base):\n{methods}",
        "p.c": f"from p.a import Base as B\nclass Near(B[int]):\n{methods}",
        "p.d": f"from p.b import Far\nclass Further(Far):\n{methods}",
        "p.e": f"from p import a\nOther = a.Base[int]\nclass Aliased(Other):\n{methods}",
    }
    hook = {"_hook"}
    further = {"_hook", "_open"}
    assert ClassMethods(modules).overridden() == {"Far": hook, "Near": hook, "Further": further, "Aliased": hook}
