"""Callbacks for alerts about streams: a line in the log and a count in the metrics. Replace with notifiers.

Airflow calls `tell` when a task fails, and `tell_deadline`, in the triggerer, when a run misses its deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from airflow_lakestream.metrics import measure_alert, tags_of

log = logging.getLogger(__name__)


def tell(context: Mapping[str, Any]) -> None:
    """Log the table or checkpoint of a failed task, and the error; count an alert. For `on_failure_callback`."""
    ti, stream = context["ti"], vars(context["ti"].task)
    what = stream.get("table") or stream.get("checkpoint_location") or ti.task_id
    log.error("ALERT %s.%s, %s: %s", ti.dag_id, ti.task_id, what, context.get("exception"))
    measure_alert("failure", tags_of(ti, stream))


async def tell_deadline(context: Mapping[str, Any] | None = None, **more: Any) -> str:
    """Log the run behind a missed deadline, count an alert, and return the text. For a `DeadlineAlert`.

    :param context: Airflow's: the run and its deadline.
    :param more: the alert's `kwargs`, which the log line ends with.
    """
    run = dict((context or {}).get("dag_run") or {})
    due = dict((context or {}).get("deadline") or {}).get("deadline_time", "its deadline")
    text = f"ALERT run {run.get('dag_run_id', '?')} of {run.get('dag_id', '?')} was not done at {due}"
    # In a thread, as triggers log: Airflow's metrics may look up their server and read files.
    await asyncio.to_thread(log.error, "%s%s", text, "".join(f", {name}: {value}" for name, value in more.items()))
    await asyncio.to_thread(measure_alert, "deadline", {"dag_id": str(run.get("dag_id", ""))})
    return text
