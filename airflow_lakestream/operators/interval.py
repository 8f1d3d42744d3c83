"""Interval of an Airflow run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_lakestream.core.policies import is_given
from airflow_lakestream.exceptions import InvalidArgument

NAMES = ("interval_start", "interval_end")


def resolve_interval(context: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return start and end of the run's interval, as given, from the first source with a start or an end.

    The sources, in this order: the operator's arguments, the run's conf, the run's params, the run's data interval. A
    source with only a start or only an end is not skipped: it raises InvalidArgument.

    :param given: the operator's arguments; only `interval_start` and `interval_end` are used.

    Raises InvalidArgument also if only the data interval is left, and the run has none, or an empty one.
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
