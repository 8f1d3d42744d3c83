"""Pipelines in YAML: a file says what to land, into which table, and by which engine; see docs/pipelines.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from airflow.sdk import DAG


def load(folder: str | Path) -> dict[str, DAG]:
    """Make a DAG of each pipeline in a folder and the folders in it: files that end with `.yaml` or `.yml`.

    Call it in a DAG file. The DAGs are Airflow's from then on; they need not be assigned to names.

    :param folder: relative to the file that calls this, or absolute.

    Returns the DAGs by their ids. Raises PipelineError, with each error's file and line, where a file is wrong: Airflow
    then shows an import error of the DAG file, and makes none of its DAGs.
    """
    import inspect
    from pathlib import Path

    from airflow_lakestream.pipelines.dags import load_folder

    caller = inspect.stack()[1].filename
    return load_folder(Path(caller).parent / folder)
