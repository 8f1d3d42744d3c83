"""Run of a bundled app: configuration, session, and an exit code with a logged reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from airflow_lakestream.driver.lease import exit_code_of
from airflow_lakestream.spark.app_config import AppConfig
from airflow_lakestream.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Config = TypeVar("Config")


def run_program(config_path: str, work: Callable[[AppConfig, SparkSession], None]) -> int:
    """Run an app for landings; return the exit code: 0 if the app is done, or was stopped on request.

    :param config_path: path of the app's configuration, see `AppConfig`.
    """
    return run_app(config_path, AppConfig.read, open_session, work)


def run_app(
    config_path: str,
    read: Callable[[str], Config],
    start: Callable[[Config], SparkSession],
    work: Callable[[Config, SparkSession], object],
) -> int:
    """Run an app with a configuration and a session of any kind; return the exit code, see `exit_code_of`.

    :param read: reads the configuration from the path.
    :param start: starts the session for the configuration; it is stopped at the end.
    """

    def run() -> None:
        config = read(config_path)
        spark = start(config)
        try:
            work(config, spark)
        finally:
            spark.stop()

    return exit_code_of(run, "The app")
