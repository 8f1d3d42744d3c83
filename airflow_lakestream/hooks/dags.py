"""DAGs loaded by Airflow's own code, for reading without a run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import conf

# The variable of Airflow's `get_parsing_context`, which a task's process sets, too.
_ASKED = "_AIRFLOW_PARSING_CONTEXT_DAG_ID"


def dags_in(place: Path | None, dag_id: str) -> tuple[Mapping[str, Any], Mapping[str, str], str]:
    """Load a file, or a folder, of DAGs. Return DAGs by id, errors by file, and the place.

    :param place: the file or folder; None: Airflow's own folder.
    :param dag_id: the DAG that is asked for: files that ask `get_parsing_context` may leave out others.
    """
    try:
        module: Any = import_module("airflow.dag_processing.dagbag")
        kind = module.DagBag
    except (ImportError, AttributeError):  # Airflow 3.1
        kind = import_module("airflow.models.dagbag").DagBag
    where = str(place or conf.get("core", "dags_folder"))
    with _asking(dag_id):
        bag = kind(where)
    return bag.dags, bag.import_errors, where


@contextmanager
def _asking(dag_id: str) -> Iterator[None]:
    before = os.environ.get(_ASKED)
    os.environ[_ASKED] = dag_id
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ASKED]
        else:
            os.environ[_ASKED] = before
