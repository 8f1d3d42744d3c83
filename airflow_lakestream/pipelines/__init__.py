"""Pipelines in YAML: a file with topics, tables and an engine; see docs/pipelines.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from airflow.sdk import DAG


def load(folder: str | Path, *, strict: bool = False) -> dict[str, DAG]:
    """Make a DAG of each pipeline in a folder and its subfolders: files with the suffix `.yaml` or `.yml`.

    Call it in a DAG file. The DAGs are Airflow's from then on; it is not necessary to assign them to names.

    A wrong file becomes a DAG of the same id without a schedule, tagged `broken`: its page shows each error with its
    position, and so does its task, which fails. A run that is under way continues. The DAG processor's log of the DAG
    file names it, too.

    :param folder: relative to the file that calls this, or absolute.
    :param strict: raise an error if a file is wrong, as a check before files are rolled out. Airflow then shows an
        import error of the DAG file, and makes none of its DAGs.

    Returns the DAGs by their ids. Raises PipelineError if the folder does not exist; if strict, also for wrong files,
    with each error's file and line.
    """
    import inspect
    from pathlib import Path

    from airflow_lakestream.pipelines.dags import load_folder

    caller = inspect.stack()[1].filename
    return load_folder(Path(caller).parent / folder, strict=strict)
