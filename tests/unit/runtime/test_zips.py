"""Archives that Python imports from: their directories are read again where they have changed, and only there."""

from __future__ import annotations

import importlib
import sys
import zipimport
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch
from zipfile import ZipFile

import pytest

from airflow_lakestream.spark.executors import keep_directories

NAME = "lakestream_in_an_archive"


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give an archive with a package that was imported, in a process that keeps directories."""
    monkeypatch.setattr(zipimport.zipimporter, "invalidate_caches", zipimport.zipimporter.invalidate_caches)
    path = tmp_path / "code.zip"
    write(path, "first")
    monkeypatch.syspath_prepend(str(path))
    keep_directories()
    importlib.import_module(f"{NAME}.first")
    importlib.invalidate_caches()
    yield path
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]


def write(path: Path, *modules: str) -> None:
    """Write an archive anew, at another place of the disk."""
    with ZipFile(beside := path.with_suffix(".new"), "w") as zipped:
        for module in ("__init__", *modules):
            zipped.writestr(f"{NAME}/{module}.py", f"name = {module!r}")
    beside.replace(path)


def test_a_directory_is_not_read_again_where_the_archive_is_the_same(archive: Path) -> None:
    with patch.object(zipimport, "_read_directory", wraps=zipimport._read_directory) as reading:
        importlib.invalidate_caches()
    assert str(archive) not in [call.args[0] for call in reading.call_args_list]


def test_a_module_that_came_into_an_archive_is_found(archive: Path) -> None:
    write(archive, "first", "second")
    importlib.invalidate_caches()
    assert importlib.import_module(f"{NAME}.second").name == "second"


def test_an_archive_that_is_gone_has_no_modules_and_one_that_is_back_has(archive: Path) -> None:
    archive.unlink()
    importlib.invalidate_caches()
    with pytest.raises(ImportError):
        importlib.import_module(f"{NAME}.second")
    write(archive, "second")
    importlib.invalidate_caches()
    assert importlib.import_module(f"{NAME}.second").name == "second"
