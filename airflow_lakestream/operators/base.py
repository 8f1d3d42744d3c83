"""What all operators share: what a failure means to Airflow, and imports when a task runs, not when a DAG is parsed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_lakestream.exceptions import Terminal
from airflow_lakestream.runtime.collector import no_collection

# By `dag.test()` Airflow answers the task from two threads of the same process. While a task executes they wait for its
# next question, and nothing that reads Kafka or writes files is theirs. An executor's task process has neither.
IDLE_THREADS = ("InProcessExecutionAPI-loop", "_handle_socket_comms")


def late_imports() -> AbstractContextManager[None]:
    """Import without pauses of the cyclic garbage collector, which would walk through all of Airflow many times.

    Measured: 0.5 s instead of 0.8 s at the start of each task, 0.06 s of it after the imports.
    """
    return no_collection()


def keep_freed_memory() -> None:
    """Let Arrow keep what it frees for a second, for the next chunk; ARROW_DEFAULT_MEMORY_POOL chooses otherwise.

    Measured: with its default allocator a tenth of a landing's time goes into pages that are had anew.
    """
    import pyarrow as pa

    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ and "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())


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
