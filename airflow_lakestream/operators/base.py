"""What all operators share: what a failure means to Airflow. The only place that speaks of retries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_lakestream.exceptions import Terminal


@contextmanager
def airflow_errors() -> Iterator[None]:
    """Fail the task without retries on a Terminal error; every other error goes on, and Airflow retries."""
    try:
        yield
    except Exception as e:
        if isinstance(e, Terminal):
            raise AirflowFailException(str(e)) from e
        raise


def run_key(context: Any) -> str:
    """Return what all tries of one task run have in common, and no other run has."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.task_id}/{ti.run_id}/{ti.map_index}"
