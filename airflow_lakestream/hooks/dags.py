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
_DAG_ID_VARIABLE = "_AIRFLOW_PARSING_CONTEXT_DAG_ID"


def dags_in(place: Path | None, dag_id: str) -> tuple[Mapping[str, Any], Mapping[str, str], str]:
    """Load a file or a folder of DAGs; return (DAGs by id, error texts by file, path of the file or folder).

    :param place: the file or folder; None: Airflow's own folder of DAGs.
    :param dag_id: id of the wanted DAG: a file that asks `get_parsing_context` may leave out other DAGs.
    """
    try:
        module: Any = import_module("airflow.dag_processing.dagbag")
        dag_bag_class = module.DagBag
    except (ImportError, AttributeError):  # Airflow 3.1
        dag_bag_class = import_module("airflow.models.dagbag").DagBag
    path = str(place or conf.get("core", "dags_folder"))
    with _parsing_for(dag_id):
        bag = dag_bag_class(path)
    return bag.dags, bag.import_errors, path


@contextmanager
def _parsing_for(dag_id: str) -> Iterator[None]:
    """Let `get_parsing_context` answer within the block that this DAG is wanted."""
    before = os.environ.get(_DAG_ID_VARIABLE)
    os.environ[_DAG_ID_VARIABLE] = dag_id
    try:
        yield
    finally:
        if before is None:
            del os.environ[_DAG_ID_VARIABLE]
        else:
            os.environ[_DAG_ID_VARIABLE] = before
