"""How a bundled app runs: its configuration, its session, and an end that says what went wrong."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from airflow_lakestream.exceptions import LakestreamError
from airflow_lakestream.spark.app_config import AppConfig
from airflow_lakestream.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

Config = TypeVar("Config")


def run_program(config_path: str, work: Callable[[AppConfig, SparkSession], None]) -> int:
    """Run an app that lands, and return its exit code: 0 when it is done, or was stopped on request.

    :param config_path: of its configuration, see `AppConfig`.
    :param work: what it does.
    """
    return run_app(config_path, AppConfig.read, open_session, work)


def run_app(
    config_path: str,
    read: Callable[[str], Config],
    start: Callable[[Config], SparkSession],
    work: Callable[[Config, SparkSession], object],
) -> int:
    """Run an app with a kind of configuration and of session of its own; return its exit code."""
    _log_to_stderr()
    try:
        config = read(config_path)
        spark = start(config)
        try:
            work(config, spark)
        finally:
            spark.stop()
    except LakestreamError as e:
        log.error("%s: %s", type(e).__name__, " ".join(str(e).split()))
        return 1
    except Exception as e:
        # The trace first: the last line is what people look at.
        log.exception("The app failed.")
        log.error("%s: %s", type(e).__name__, next(iter(str(e).splitlines()), ""))
        return 1
    return 0


def _log_to_stderr() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # It logs each call of the JVM, and PyIceberg each of its reads.
    for name in ("py4j", "pyiceberg"):
        logging.getLogger(name).setLevel(logging.WARNING)
