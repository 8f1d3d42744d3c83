"""Base of all operators: Airflow's reaction to errors, late imports, and the events of a task's outlets."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException, Asset, AssetAlias

from airflow_lakestream.exceptions import LakestreamError, MissingExtra, Terminal
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.runtime.interpreter import pause_collection

log = logging.getLogger(__name__)

# Names of threads that are safe at a fork. With `dag.test()` Airflow answers the task from two threads of the same
# process. While a task executes, both wait for its next question, and neither reads Kafka nor writes files. An
# executor's task process has neither thread.
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
    # A class and not a generator: contextlib would restore the whole traceback of an error that is raised again.
    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, LakestreamError):
            return
        log.debug("%s", error, exc_info=error)
        if isinstance(error, Terminal):
            raise AirflowFailException(str(error)) from None
        raise error.with_traceback(None) from None


def airflow_errors() -> AbstractContextManager[None]:
    """Return a context in which a Terminal error becomes AirflowFailException, so that Airflow does not retry.

    Any other error is raised unchanged, and Airflow retries. The text of a LakestreamError contains the remedy: the
    error is raised without the tracebacks of its causes, which are in the log at DEBUG.
    """
    return _AirflowErrors()


class StopsOnKill:
    """Mixin, left of Airflow's BaseOperator: a kill of the task sets `_stop`, at which the work ends.

    Uncommitted files leave no trace.
    """

    @cached_property
    def _stop(self) -> threading.Event:
        return threading.Event()

    def on_kill(self) -> None:
        """Stop between two steps of the work."""
        self._stop.set()


# By extra, the modules whose presence shows that the extra is installed.
_MODULES_OF_EXTRA = {
    "spark": ("airflow.providers.apache.spark",),
    "delta": ("deltalake", "obstore"),
    "protobuf": ("google.protobuf", "grpc_tools"),
    "database": ("psycopg", "pymysql"),
}


def need_extras(*extras: str) -> None:
    """Raise MissingExtra if a package of an extra is not installed, before any work.

    :param extras: extras of this package that the run needs.
    """
    for extra in extras:
        for module in _MODULES_OF_EXTRA[extra]:
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


def emit_to_outlets(context: Any, outlets: Iterable[Any], result: Mapping[str, Any]) -> None:
    """Put a report on the event of each outlet.

    An asset gets the report. An alias gets an asset for each written table; with several tables each asset's report has
    its own `table` and `rows`, and no `topics`.

    :param result: the report, with the rows by table in `tables`.
    """
    written = {table: rows for table, rows in result["tables"].items() if rows or len(result["tables"]) == 1}
    without_topics = {name: value for name, value in result.items() if name != "topics"}
    reports = {table: without_topics | {"table": table, "rows": rows} for table, rows in written.items()}
    put_on_outlets(context, outlets, result, reports if len(written) > 1 else dict.fromkeys(written, result))


def put_on_outlets(
    context: Any, outlets: Iterable[Any], result: Mapping[str, Any], reports: Mapping[str, Mapping[str, Any]]
) -> None:
    """Put a result on the event of each asset; an alias gets an asset for each table, with the table's report."""
    for outlet in outlets:
        if isinstance(outlet, AssetAlias):
            for table, report in reports.items():
                context["outlet_events"][outlet].add(table_asset(table), extra=dict(report))
        elif isinstance(outlet, Asset):
            context["outlet_events"][outlet].extra = dict(result)


def table_asset(table: str) -> Asset:
    """Return the asset of a table; its name is the table in the user's spelling."""
    return Asset(name=table, uri=lake_of(table).uri(table))
