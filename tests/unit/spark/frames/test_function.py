"""Functions as their names say: imported, checked, and known by their source, beside a DAG, installed and in a zip."""

from __future__ import annotations

import importlib
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.operators.spark.set_up import import_function, write_zip
from airflow_lakestream.spark.frames.function import load_function

SOURCE = "def make(batch, spark):\n    return batch\n"


@pytest.fixture
def module(tmp_path: Path) -> str:
    """Give the name of a module that nobody has imported, in a folder."""
    name = f"frames_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    return name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tests.support.frames:nobody", "there is no nobody in "),
        ("tests.support.frames:SCHEMA", "SCHEMA in .* is a str, not a function"),
        ("tests.support.frames:of_one", "can't be called with two arguments: too many positional arguments"),
        (
            "tests.support.no_such:f",
            "can't be imported .*No module named 'tests.support.no_such'.*Put it next to",
        ),
        ("tests.support.frames", "is not of the form module:function"),
        ("tests.support.frames:a.b", "is not of the form module:function"),
    ],
)
def test_what_can_not_be_called_is_refused_by_its_name(name: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^transform: .*{said}"):
        load_function(name)


def test_a_module_that_fails_or_exits_when_it_is_imported_is_named_with_the_place(tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}.py").write_text("import sys\nsys.exit('not today')\n")
    with pytest.raises(InvalidArgument, match=rf"SystemExit: not today \(.*{module}\.py:2\)"):
        import_function(f"{module}:make", tmp_path)


def test_a_function_is_found_beside_the_dag_and_nothing_stays_on_the_path(tmp_path: Path, module: str) -> None:
    before = list(sys.path)
    function = import_function(f"{module}:make", tmp_path)
    assert (function.call("batch", None), function.name) == ("batch", f"{module}:make")
    assert sys.path == before


def test_a_changed_source_has_another_fingerprint(tmp_path: Path, module: str) -> None:
    first = import_function(f"{module}:make", tmp_path).fingerprint
    sys.modules.pop(module)
    assert import_function(f"{module}:make", tmp_path).fingerprint == first
    (tmp_path / f"{module}.py").write_text(SOURCE + "# another\n")
    importlib.invalidate_caches()
    sys.modules.pop(module)
    assert import_function(f"{module}:make", tmp_path).fingerprint != first


def test_a_module_goes_along_as_a_zip_in_which_it_has_the_same_fingerprint(tmp_path: Path, module: str) -> None:
    fingerprint = import_function(f"{module}:make", tmp_path).fingerprint
    assert imported_from(write_zip(f"{module}:make", tmp_path, tmp_path), f"{module}:make") == fingerprint


def test_of_a_package_all_modules_go_along(tmp_path: Path, module: str) -> None:
    package = tmp_path / f"{module}_package"
    (package / "below").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "constants.py").write_text("NAME = 'x'\n")
    (package / "below" / "__init__.py").touch()
    (package / "below" / "making.py").write_text(f"from {package.name}.constants import NAME\n{SOURCE}")
    name = f"{package.name}.below.making:make"
    fingerprint = import_function(name, tmp_path).fingerprint
    assert imported_from(write_zip(name, tmp_path, tmp_path), name) == fingerprint


def imported_from(path: str, name: str) -> str:
    """Load a function in a process that has the zip alone; return the fingerprint."""
    code = f"""
import sys
sys.path.insert(0, {path!r})
from airflow_lakestream.spark.frames.function import load_function
print(load_function({name!r}).fingerprint)
"""
    root = Path(__file__).parents[4]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
