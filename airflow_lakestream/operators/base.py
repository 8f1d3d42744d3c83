"""What all operators share: what a failure means to Airflow, and imports when a task runs, not when a DAG is parsed."""

from __future__ import annotations

import logging
import os
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_lakestream.exceptions import LakestreamError, MissingExtra, Terminal
from airflow_lakestream.runtime.collector import no_collection

log = logging.getLogger(__name__)

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


class _AirflowErrors(AbstractContextManager[None]):
    # No generator: contextlib gives an error that goes on its whole traceback back.
    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, LakestreamError):
            return
        log.debug("%s", error, exc_info=error)
        if isinstance(error, Terminal):
            raise AirflowFailException(str(error)) from None
        raise error.with_traceback(None) from None


def airflow_errors() -> AbstractContextManager[None]:
    """Fail the task without retries on a Terminal error; every other error goes on, and Airflow retries.

    An error of ours says what to do: above it, tracebacks of the errors beneath would only hide that. They are in the
    log at DEBUG.
    """
    return _AirflowErrors()


# By extra, the modules that tell whether it is installed.
_OF_EXTRA = {
    "spark": ("airflow.providers.apache.spark",),
    "delta": ("deltalake", "obstore"),
    "protobuf": ("google.protobuf", "grpc_tools"),
}


def need_extras(*extras: str) -> None:
    """Refuse a run whose packages are not installed, before it does anything. Raises MissingExtra."""
    for extra in extras:
        for module in _OF_EXTRA[extra]:
            try:
                found = find_spec(module)
            except ModuleNotFoundError:
                found = None
            if found is None:
                raise MissingExtra(extra, module)


def run_key(context: Any) -> str:
    """Return what all tries of one task run have in common, and no other run has."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.task_id}/{ti.run_id}/{ti.map_index}"
