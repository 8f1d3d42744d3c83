"""Reasons against a backfill of a stream's intervals: the DAG's schedule, or the task's mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_USE_INTERVALS = "Give the DAG a schedule of intervals, such as CronDataIntervalTimetable."
_SCHEDULES = {
    "NullTimetable": f"The DAG has no schedule, so it has no intervals. {_USE_INTERVALS}",
    "OnceTimetable": f"The DAG runs once, so it has no intervals. {_USE_INTERVALS}",
    "ContinuousTimetable": f"The DAG runs continuously, so it has no intervals. {_USE_INTERVALS}",
    "AssetTriggeredTimetable": f"The DAG runs when an asset changes, so it has no intervals. {_USE_INTERVALS}",
    "PartitionedAssetTimetable": f"The DAG runs when an asset changes, so it has no intervals. {_USE_INTERVALS}",
}
_NO_WIDTH = f"The runs of this schedule are for points in time, not for intervals. {_USE_INTERVALS}"
_NOT_ALLOWED = "The DAG's allowed_run_types leave out backfills."
RESUMES = 'Each run lands what is not landed yet, in any interval: a backfill is for tasks with mode="interval".'


def of_schedule(dag: Mapping[str, Any]) -> str | None:
    """Return the reason for a DAG without intervals to backfill. `dag` is Airflow's serialized JSON.

    None for a DAG with intervals.
    """
    allowed = dag.get("allowed_run_types")
    if isinstance(allowed, Mapping):
        allowed = allowed.get("__var")
    if isinstance(allowed, list) and "backfill" not in allowed:
        return _NOT_ALLOWED
    timetable = dag.get("timetable")
    given = timetable if isinstance(timetable, Mapping) else {}
    name = str(given.get("__type", "")).rpartition(".")[2]
    if name in _SCHEDULES:
        return _SCHEDULES[name]
    # A plain cron text or a timedelta becomes such a timetable in Airflow 3.
    values = given.get("__var")
    interval = values.get("interval") if isinstance(values, Mapping) else None
    return _NO_WIDTH if name.endswith("TriggerTimetable") and interval in (None, 0, 0.0) else None


def of_mode(engine: str, given: Mapping[str, Any], app: Mapping[str, Any]) -> str | None:
    """Return the reason for a task without intervals.

    None if it lands intervals, or if only a run knows.
    """
    landing = app.get("landing")
    modes = {
        "extract": given.get("mode", "resume"),
        # Known to its plan, which is another task.
        "group": None,
        "spark": landing.get("mode", "resume") if isinstance(landing, Mapping) else "resume",
    }
    mode = modes.get(engine, "resume")
    return RESUMES if mode == "resume" else None
