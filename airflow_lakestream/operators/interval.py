"""Interval of an Airflow run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_lakestream.core.policies import is_given
from airflow_lakestream.exceptions import InvalidArgument

NAMES = ("interval_start", "interval_end")


def resolve_interval(context: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return start and end of the run's interval, from the first complete source.

    Sources: 1. The operator's arguments. 2. The run's conf, then its params. 3. The run's data interval with a width.

    Raises InvalidArgument without a source, or for a source with only one of the two.
    """
    dag_run = context.get("dag_run")
    conf = getattr(dag_run, "conf", None) or {}
    for source, values in (("arguments", given), ("conf", conf), ("params", context.get("params") or {})):
        bounds = {name: values.get(name) for name in NAMES if is_given(values.get(name))}
        if len(bounds) == 1:
            (missing,) = set(NAMES) - set(bounds)
            raise InvalidArgument(missing, f"is missing, while the {source} give {next(iter(bounds))}.")
        if bounds:
            return bounds
    start, end = context.get("data_interval_start"), context.get("data_interval_end")
    if start is None or end is None:
        raise InvalidArgument(
            "interval_start",
            "the run has no data interval (it was triggered without a logical date).",
            "Trigger it with a logical date, or give interval_start and interval_end in its conf.",
        )
    if start == end:
        raise InvalidArgument(
            "interval_start",
            f"the run's data interval is empty, it starts and ends at {start}: that is what a plain cron schedule "
            "gives in Airflow 3.",
            "Schedule the DAG by CronDataIntervalTimetable, or give interval_start and interval_end.",
        )
    return {"interval_start": start, "interval_end": end}
