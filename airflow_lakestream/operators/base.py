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
    """Return a context for imports without pauses of the cyclic garbage collector.

    The collector would walk through all of Airflow many times. Measured: 0.5 s instead of 0.8 s at the start of each
    task, 0.06 s of it after the imports.
    """
    return pause_collection()


def keep_freed_memory() -> None:
    """Configure Arrow to keep freed memory for a second, for the next batch.

    Nothing is changed if ARROW_DEFAULT_MEMORY_POOL is set, or if Arrow has no jemalloc. Measured: with Arrow's default
    allocator a tenth of a landing's time is spent on getting the same pages again.
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
    """Return a context: a Terminal error fails the task without retries.

    Any other error goes on, and Airflow retries. The text of a LakestreamError contains the remedy: the error is raised
    without tracebacks of its causes, which would only hide the remedy, and which are in the log at DEBUG.
    """
    return _AirflowErrors()


# By extra, the modules whose presence shows that the extra is installed.
_OF_EXTRA = {
    "spark": ("airflow.providers.apache.spark",),
    "delta": ("deltalake", "obstore"),
    "protobuf": ("google.protobuf", "grpc_tools"),
}


def need_extras(*extras: str) -> None:
    """Refuse a run with missing packages, before any work.

    :param extras: extras of this package that the run needs.

    Raises MissingExtra.
    """
    for extra in extras:
        for module in _OF_EXTRA[extra]:
            try:
                spec = find_spec(module)
            # `find_spec` raises this if the parent of a submodule is missing.
            except ModuleNotFoundError:
                spec = None
            if spec is None:
                raise MissingExtra(extra, module)


def run_key(context: Any) -> str:
    """Return the key of a task in a run, the same for all tries.

    Each instance of a mapped task has a key of its own.
    """
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.task_id}/{ti.run_id}/{ti.map_index}"
