"""The layers hold: as import-linter sees them, and as Python really imports."""

from __future__ import annotations

import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import grimp

import airflow_lakestream

CHECKOUT = Path(__file__).parents[2]
WITH_AIRFLOW = (
    "alerts",
    "cli",
    "events",
    "hooks",
    "links",
    "metrics",
    "operators",
    "retries",
    "sensors",
    "triggers",
    "ui",
    "pipelines.dags",
)


def pure_modules() -> list[str]:
    found = [m.name for m in pkgutil.walk_packages(airflow_lakestream.__path__, "airflow_lakestream.")]
    of_airflow = tuple(f"airflow_lakestream.{name}." for name in WITH_AIRFLOW)
    return [name for name in found if not f"{name}.".startswith(of_airflow)]


def test_every_contract_of_import_linter_is_kept() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout


def test_below_the_hooks_neither_airflow_nor_spark_is_imported() -> None:
    modules = pure_modules()
    assert len(modules) > 30
    code = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('airflow', 'pyspark')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_core_needs_the_standard_library_only() -> None:
    modules = [name for name in pure_modules() if name.split(".")[1] in ("core", "runtime", "exceptions")]
    # multiprocessing gives the main module a second name.
    code = (
        f"import importlib, sys\nbefore = set(sys.modules)\nfor name in {modules!r}: importlib.import_module(name)\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names) - {'airflow_lakestream', '__mp_main__'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_is_found_without_airflow_around() -> None:
    # Spark imports it from a zip: its first line may not ask for anything.
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import airflow_lakestream; print(airflow_lakestream.__version__)"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == airflow_lakestream.__version__


def test_what_supervises_drivers_names_no_engine() -> None:
    # What import-linter can't see: another engine would find the words and settings of the first one.
    package = CHECKOUT / "airflow_lakestream"
    folders = (package / "driver", package / "operators" / "supervised")
    files = [package / "triggers" / "driver.py", *(file for folder in folders for file in folder.rglob("*.py"))]
    assert len(files) > 10
    named = re.compile("spark|yarn|kubernetes|jvm", re.IGNORECASE)
    assert {file.name: found for file in files if (found := named.findall(file.read_text()))} == {}


# Circles of imports that only type checkers follow, without the package's name.
CIRCLES_OF_TYPES = {
    # A payload makes its decoder, and the decoder reads the settings of its payload.
    frozenset({"cdc.events.records", "cdc.events.upserts"}),
}


def circles(imports: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the groups of modules that import each other, directly or by others of the group."""
    reached: dict[str, set[str]] = {}
    for module in imports:
        found, todo = set[str](), [module]
        while todo:
            new = imports[todo.pop()] - found
            found |= new
            todo += new
        reached[module] = found
    groups = {frozenset(other for other in found if module in reached[other]) for module, found in reached.items()}
    return {group for group in groups if group}


def circles_of_package(*, with_types: bool) -> set[frozenset[str]]:
    graph = grimp.build_graph("airflow_lakestream", cache_dir=None, exclude_type_checking_imports=not with_types)
    imports = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    assert len(imports) > 500
    return {frozenset(name.removeprefix("airflow_lakestream.") for name in circle) for circle in circles(imports)}


def test_a_circle_is_found_with_all_its_modules_and_without_their_users() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": {"c"}, "e": {"f"}, "f": set[str](), "g": {"g"}}
    assert circles(imports) == {frozenset("bcd"), frozenset("g")}


def test_no_modules_import_each_other_even_within_functions() -> None:
    assert circles_of_package(with_types=False) == set()


def test_types_make_no_other_circles_than_those_named() -> None:
    assert circles_of_package(with_types=True) == CIRCLES_OF_TYPES
