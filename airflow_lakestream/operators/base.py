"""Base of all operators: Airflow's reaction to errors, and imports at a task's run instead of a DAG's parsing."""

from __future__ import annotations

import logging
import os
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_lakestream.exceptions import LakestreamError, MissingExtra, Terminal
from airflow_lakestream.runtime.collector import pause_collection

log = logging.getLogger(__name__)

# With `dag.test()` Airflow answers the task from two threads of the same process. While a task executes they wait for
# its next question, and neither reads Kafka or writes files. An executor's task process has neither thread.
IDLE_THREADS = ("InProcessExecutionAPI-loop", "_handle_socket_comms")


def late_imports() -> AbstractContextManager[None]:
    """Import without pauses of the cyclic garbage collector, which would walk through all of Airflow many times.

    Measured: 0.5 s instead of 0.8 s at the start of each task, 0.06 s of it after the imports.
    """
    return pause_collection()


def keep_freed_memory() -> None:
    """Configure Arrow to keep freed memory for a second, for the next batch, unless ARROW_DEFAULT_MEMORY_POOL is set.

    Measured: with its default allocator a tenth of a landing's time is spent on getting the same pages again.
    """
    import pyarrow as pa

    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ and "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())


class _AirflowErrors(AbstractContextManager[None]):
    # Not a generator: contextlib restores the whole traceback of an error that goes on.
    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, LakestreamError):
            return
        log.debug("%s", error, exc_info=error)
        if isinstance(error, Terminal):
            raise AirflowFailException(str(error)) from None
        raise error.with_traceback(None) from None


def airflow_errors() -> AbstractContextManager[None]:
    """Fail the task without retries on a Terminal error; any error of a different type goes on, and Airflow retries.

    The text of a LakestreamError contains the remedy: tracebacks of its causes above it would only hide that. They are
    in the log at DEBUG.
    """
    return _AirflowErrors()


# By extra, the modules whose presence shows that the extra is installed.
_OF_EXTRA = {
    "spark": ("airflow.providers.apache.spark",),
    "delta": ("deltalake", "obstore"),
    "protobuf": ("google.protobuf", "grpc_tools"),
}


def need_extras(*extras: str) -> None:
    """Refuse a run with missing packages, before any work. Raises MissingExtra."""
    for extra in extras:
        for module in _OF_EXTRA[extra]:
            try:
                spec = find_spec(module)
            except ModuleNotFoundError:
                spec = None
            if spec is None:
                raise MissingExtra(extra, module)


def run_key(context: Any) -> str:
    """Return the key of a task's run, the same for all tries."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.task_id}/{ti.run_id}/{ti.map_index}"
