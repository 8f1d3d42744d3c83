"""DAGs as Airflow loads them, for those who look at one and run nothing."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import conf


def dags_in(place: Path | None) -> tuple[Mapping[str, Any], Mapping[str, str], str]:
    """Load a file, or a folder, of DAGs: return them by their ids, the errors of files, and the place.

    :param place: None: Airflow's own folder.
    """
    try:
        module: Any = import_module("airflow.dag_processing.dagbag")
        kind = module.DagBag
    except (ImportError, AttributeError):  # Airflow 3.1
        kind = import_module("airflow.models.dagbag").DagBag
    where = str(place or conf.get("core", "dags_folder"))
    bag = kind(where)
    return bag.dags, bag.import_errors, where
