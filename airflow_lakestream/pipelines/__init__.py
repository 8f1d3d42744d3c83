"""Pipelines in YAML: a file says what to land, into which table, and by which engine; see docs/pipelines.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from airflow.sdk import DAG


def load(folder: str | Path, *, strict: bool = False) -> dict[str, DAG]:
    """Make a DAG of each pipeline in a folder and the folders in it: files that end with `.yaml` or `.yml`.

    Call it in a DAG file. The DAGs are Airflow's from then on; they need not be assigned to names.

    A file that is wrong becomes a DAG of the same id without a schedule, tagged `broken`: its page shows what is wrong
    where, and so does its task, which fails. A run of it that is on goes on. Airflow shows a warning of the DAG file.

    :param folder: relative to the file that calls this, or absolute.
    :param strict: raise where a file is wrong, as a check before files are rolled out. Airflow then shows an import
        error of the DAG file, and makes none of its DAGs.

    Returns the DAGs by their ids. Raises PipelineError where there is no such folder; if strict, also with each
    error's file and line.
    """
    import inspect
    from pathlib import Path

    from airflow_lakestream.pipelines.dags import load_folder

    caller = inspect.stack()[1].filename
    return load_folder(Path(caller).parent / folder, strict=strict)
