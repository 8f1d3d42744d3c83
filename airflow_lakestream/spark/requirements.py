"""What the executors need, looked at before anything is read: what is missing is named, not a stack of traces."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import airflow_lakestream
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.formats import Format
from airflow_lakestream.exceptions import LakestreamError, Terminal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

PACKAGE = "airflow_lakestream"
# Each module with the distribution that brings it.
_MODULES = {
    PACKAGE: "airflow-lakestream",
    "pyarrow": "pyarrow",
    "pyiceberg": "pyiceberg",
    "confluent_kafka": "confluent-kafka",
    "numpy": "numpy",
    "duckdb": "duckdb",
}
_OF_PROTOBUF = {"google.protobuf": "protobuf", "grpc_tools": "grpcio-tools"}

# The module's version by its name, None where it is missing, by host.
Found = Mapping[str, Mapping[str, str | None]]


class ExecutorsLack(LakestreamError, Terminal):
    """Packages are missing where executors run, or are of another version."""

    def __init__(self, host: str, problem: str) -> None:
        super().__init__(
            f"executors on {host}: {problem}. Install it there (PYSPARK_PYTHON names the Python they run), or send the "
            "package by --py-files: docs/spark.md."
        )


def modules_for(config: ExtractConfig) -> dict[str, str]:
    """Return the modules that executors import for a landing, with what to install for each."""
    return _MODULES | dict(config.lake.modules) | (_OF_PROTOBUF if config.format == Format.PROTOBUF else {})


def check_executors(spark: SparkSession, modules: Mapping[str, str]) -> None:
    """Raise ExecutorsLack for the first thing that is missing.

    Executors in the driver's own process have what it has; others are asked, as many as the cluster gives at once.
    """
    context = spark.sparkContext
    if str(context.master).startswith("local"):
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        _check({"this machine": dict.fromkeys(missing)}, modules)
        return
    count = context.defaultParallelism
    _check(dict(context.parallelize(range(count), count).map(_look(list(modules))).collect()), modules)


def _look(names: Sequence[str]) -> Callable[[Any], tuple[str, dict[str, str | None]]]:
    # Defined in here, it is sent as code: where our package is missing, no other function of it could say so.
    def look(_: Any) -> tuple[str, dict[str, str | None]]:
        import importlib
        import socket

        found: dict[str, str | None] = {}
        for name in names:
            try:
                found[name] = str(getattr(importlib.import_module(name), "__version__", ""))
            except ImportError:
                found[name] = None
        return socket.gethostname(), found

    return look


def _check(found: Found, modules: Mapping[str, str]) -> None:
    for host, versions in found.items():
        if missing := [modules[name] for name, version in versions.items() if version is None]:
            raise ExecutorsLack(host, f"{', '.join(missing)} is missing")
        theirs = versions.get(PACKAGE, airflow_lakestream.__version__)
        if theirs != airflow_lakestream.__version__:
            problem = f"airflow-lakestream is {theirs} there, and {airflow_lakestream.__version__} on the driver"
            raise ExecutorsLack(host, problem)
