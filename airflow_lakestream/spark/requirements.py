"""Packages needed by executors, checked before anything is read: an error names the missing package."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import airflow_lakestream
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.policies import is_given
from airflow_lakestream.decode.known_formats import FORMATS
from airflow_lakestream.exceptions import LakestreamError, Terminal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

PACKAGE = "airflow_lakestream"
# Modules, each with its distribution.
_MODULES = {
    PACKAGE: "airflow-lakestream",
    "pyarrow": "pyarrow",
    "pyiceberg": "pyiceberg",
    "confluent_kafka": "confluent-kafka",
    "numpy": "numpy",
    "duckdb": "duckdb",
}

# By host: module versions by name; None if missing.
Found = Mapping[str, Mapping[str, str | None]]


class ExecutorsLack(LakestreamError, Terminal):
    """Error of packages that are missing on executors, or have the wrong version."""

    def __init__(self, host: str, problem: str) -> None:
        super().__init__(
            f"executors on {host}: {problem}. Install it there (PYSPARK_PYTHON names the Python they run), or send the "
            "package by --py-files: docs/spark.md."
        )


def modules_for(config: ExtractConfig) -> dict[str, str]:
    """Return the modules imported by executors for a landing, each with the name of the distribution."""
    formats = [FORMATS[str(name)] for name in (config.format, config.key_format) if is_given(name)]
    of_formats = {name: needed for row in formats for name, needed in row.modules.items()}
    return _MODULES | dict(config.lake.modules) | of_formats


def check_executors(spark: SparkSession, modules: Mapping[str, str]) -> None:
    """Raise ExecutorsLack for the first host without a module, or with another version of our package.

    Executors in the driver's process have the driver's modules. Others are asked, as many as the cluster offers.
    """
    context = spark.sparkContext
    if str(context.master).startswith("local"):
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        _check({"this machine": dict.fromkeys(missing)}, modules)
        return
    count = context.defaultParallelism
    _check(dict(context.parallelize(range(count), count).map(_look(list(modules))).collect()), modules)


def _look(names: Sequence[str]) -> Callable[[Any], tuple[str, dict[str, str | None]]]:
    # A nested function is sent as code: a function of our package could not be loaded if the package is missing.
    def look(_: Any) -> tuple[str, dict[str, str | None]]:
        import importlib
        import socket

        versions: dict[str, str | None] = {}
        for name in names:
            try:
                versions[name] = str(getattr(importlib.import_module(name), "__version__", ""))
            except ImportError:
                versions[name] = None
        return socket.gethostname(), versions

    return look


def _check(found: Found, modules: Mapping[str, str]) -> None:
    for host, versions in found.items():
        if missing := [modules[name] for name, version in versions.items() if version is None]:
            raise ExecutorsLack(host, f"{', '.join(missing)} is missing")
        theirs = versions.get(PACKAGE, airflow_lakestream.__version__)
        if theirs != airflow_lakestream.__version__:
            problem = f"airflow-lakestream is {theirs} there, and {airflow_lakestream.__version__} on the driver"
            raise ExecutorsLack(host, problem)
