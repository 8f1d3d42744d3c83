"""The layers hold: as import-linter sees them, and as Python really imports."""

from __future__ import annotations

import pkgutil
import re
import subprocess
import sys
from pathlib import Path

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
