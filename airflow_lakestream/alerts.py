"""Callbacks for alerts about streams: a line in the log and a count in the metrics. Notifiers can replace both.

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
    ti = context["ti"]
    arguments = vars(ti.task)
    subject = arguments.get("table") or arguments.get("checkpoint_location") or ti.task_id
    log.error("ALERT %s.%s, %s: %s", ti.dag_id, ti.task_id, subject, context.get("exception"))
    measure_alert("failure", tags_of(ti, arguments))


async def tell_deadline(context: Mapping[str, Any] | None = None, **more: Any) -> str:
    """Log the run that missed its deadline, count an alert, and return the text. For a `DeadlineAlert`.

    :param context: Airflow's context, with the run and the deadline.
    :param more: the alert's `kwargs`: they are appended to the log line.
    """
    run = dict((context or {}).get("dag_run") or {})
    due = dict((context or {}).get("deadline") or {}).get("deadline_time", "its deadline")
    text = f"ALERT run {run.get('dag_run_id', '?')} of {run.get('dag_id', '?')} was not done at {due}"
    # In threads: logging and metrics may look up a server or read files, and would block the triggerer's event loop.
    await asyncio.to_thread(log.error, "%s%s", text, "".join(f", {name}: {value}" for name, value in more.items()))
    await asyncio.to_thread(measure_alert, "deadline", {"dag_id": str(run.get("dag_id", ""))})
    return text
