"""A user's module for the driver: found next to the DAG or installed, checked, and packed as a zip."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_lakestream.core.names import TRANSFORM

if TYPE_CHECKING:
    from airflow_lakestream.spark.frames.function import FrameFunction


def import_function(function: str, dag_folder: Path | None, argument: str = TRANSFORM) -> FrameFunction:
    """Import a function in the driver's way. Raises InvalidArgument.

    :param function: module:function.
    :param dag_folder: the folder of the DAG's file.
    :param argument: the argument with the function's name.
    """
    from airflow_lakestream.spark.frames.function import load_function

    with _importing_from(dag_folder):
        return load_function(function, argument)


def write_zip(function: str, dag_folder: Path | None, folder: Path) -> str:
    """Write the function's module, or the whole package around it, into a zip in a folder. Return the path."""
    top = function.partition(":")[0].partition(".")[0]
    with _importing_from(dag_folder):
        spec = importlib.util.find_spec(top)
    assert spec is not None, "it was imported before"
    origin = Path(str(spec.origin)) if spec.origin else Path(next(iter(spec.submodule_search_locations or ())))
    is_package = spec.submodule_search_locations is not None
    root = origin if origin.is_dir() else origin.parent
    files = sorted(root.rglob("*.py")) if is_package else [origin]
    path = folder / "transform.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            archive.write(file, Path(top) / file.relative_to(root) if is_package else file.name)
    return str(path)


@contextmanager
def _importing_from(folder: Path | None) -> Iterator[None]:
    """Search modules in a folder first."""
    if folder is None:
        yield
        return
    sys.path.insert(0, str(folder))
    # A file may be newer than Python's listing of the folder.
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
