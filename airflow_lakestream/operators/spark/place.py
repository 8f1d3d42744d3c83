"""Place of a driver's lease and progress: next to the checkpoint; without a query, in a place of the run."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from airflow_lakestream.core.policies import ModeName, choose, is_given
from airflow_lakestream.driver.lease_record import fingerprint_of
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.hooks.spark import BackendKind
from airflow_lakestream.operators.spark.stream_arguments import StreamArguments
from airflow_lakestream.spark.app_config import LANDING_APPS

# Folders of runs that are over are kept for this many seconds; nobody asks for them later.
_KEPT_S = 30 * 86_400


@dataclass(frozen=True)
class DriverPlace:
    """`location` of the checkpoint or the run; drivers with the same `stream` share a folder."""

    location: str
    stream: str
    is_query: bool


def place_of(operator: StreamArguments, run: str, kind: BackendKind) -> DriverPlace:
    """Return the place of a task run's driver. Raises InvalidArgument without a place visible to all machines.

    :param run: key of the task's run, the same for all tries.
    """
    given = str(operator.checkpoint_location) if is_given(operator.checkpoint_location) else ""
    if _is_query(operator, given):
        if not given:
            raise InvalidArgument("checkpoint_location", "is missing; a query keeps its place there.")
        return DriverPlace(given, given, is_query=True)
    name = fingerprint_of({"run": run})
    stream = f"{operator.dag_id}/{operator.task_id}"
    if given:
        return DriverPlace(f"{given.rstrip('/')}/{name}", stream, is_query=False)
    if kind is not BackendKind.DETACHED:
        raise InvalidArgument(
            "checkpoint_location",
            "is missing: without a query it has no checkpoint, but the driver's lease and progress.",
            "Give a path or URI that workers, triggerer and the cluster share.",
        )
    root = folder_of(operator) / "runs"
    _forget(root)
    return DriverPlace(str(root / name), stream, is_query=False)


def folder_of(operator: StreamArguments) -> Path:
    """Return the root folder for drivers next to the worker."""
    if is_given(operator.driver_folder):
        return Path(str(operator.driver_folder))
    from airflow.configuration import AIRFLOW_HOME

    return Path(AIRFLOW_HOME) / "lakestream"


def _is_query(operator: StreamArguments, location: str) -> bool:
    if operator.app is None:
        return bool(location)
    if operator.app not in LANDING_APPS:
        return False
    return choose(ModeName, "app_config.mode", operator.app_config.get("mode", ModeName.RESUME)) is ModeName.RESUME


def _forget(root: Path) -> None:
    for old in root.glob("*.lakestream"):
        if old.stat().st_mtime < time.time() - _KEPT_S:
            shutil.rmtree(old, ignore_errors=True)
