"""DAGs loaded by Airflow's own code, for reading without a run."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import conf


def dags_in(place: Path | None) -> tuple[Mapping[str, Any], Mapping[str, str], str]:
    """Load a file, or a folder, of DAGs. Return DAGs by id, errors by file, and the place.

    :param place: the file or folder; None: Airflow's own folder.
    """
    try:
        module: Any = import_module("airflow.dag_processing.dagbag")
        kind = module.DagBag
    except (ImportError, AttributeError):  # Airflow 3.1
        kind = import_module("airflow.models.dagbag").DagBag
    where = str(place or conf.get("core", "dags_folder"))
    bag = kind(where)
    return bag.dags, bag.import_errors, where
