"""The one Spark session of the test session, and an app's run in it; the same program in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.sharing.pieces import SharePiece
from airflow_lakestream.spark.app_config import AppConfig
from airflow_lakestream.spark.apps import app_path
from airflow_lakestream.spark.lake_settings import catalog_packages
from airflow_lakestream.spark.maintenance.work import EXTENSIONS
from airflow_lakestream.spark.packages import kafka_packages, resolve
from airflow_lakestream.spark.readers import SparkReaders
from airflow_lakestream.spark.session import open_session
from airflow_lakestream.spark.stream import kafka_to_iceberg
from dev.services.s3 import S3
from dev.stack import Stack
from tests.support.lake import GROUP, QUICK_RETRIES, TABLE, Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A small Spark on this machine only, without a UI, quick to start and to end.
SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "768m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(scope="session")
def s3(stack: Stack) -> S3:
    """Give the S3 of this test session."""
    return stack.up_s3()


@pytest.fixture
def checkpoint_on_s3(s3: S3) -> str:
    """Give a location of its own for a checkpoint."""
    return f"s3a://{s3.bucket('checkpoints')}/{uuid.uuid4().hex}/clicks"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Give the session that all tests share; its executors are its own threads, with Python workers beside them."""
    folder = tmp_path_factory.mktemp("spark")
    settings = SETTINGS | {"spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    # Kafka for what lands, Iceberg for what maintains tables.
    packages = (*kafka_packages(), *catalog_packages({"type": "sql", "uri": "sqlite://"}))
    settings |= {"spark.jars": ",".join(resolve(packages)), "spark.sql.extensions": EXTENSIONS}
    session = open_session(_config(Lake(folder, {"bootstrap.servers": "none"}), "t", {"spark": settings}))
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@dataclass
class SparkRun:
    """Runs of the app of the lake's format over one checkpoint; `landing` are arguments of the operator.

    :param through: Python's arguments before the app's program, if another program runs it.
    """

    lake: Lake
    topic: str
    landing: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    through: Sequence[str] = ()

    @property
    def checkpoint(self) -> Path:
        return self.lake.folder / "checkpoint"

    def config(self, **settings: Any) -> AppConfig:
        """Return the configuration; `settings` are keys of `AppConfig`, or arguments of the landing."""
        return _config(self.lake, self.topic, self.settings | settings, self.landing)

    def run(self, spark: SparkSession, **settings: Any) -> None:
        """Run to the end, in this process."""
        kafka_to_iceberg(self.config(**settings), spark)

    def start(self, **settings: Any) -> subprocess.Popen[str]:
        """Start the program in a process of its own, as `spark-submit` would; its output goes to `driver.log`."""
        config = self.config(spark=SETTINGS | {"spark.local.dir": str(self.lake.folder)}, **settings)
        return start_app(config, self.lake.folder, self.through)


def by_spark(lake: Lake, topic: str, landing: dict[str, Any], spark: SparkSession) -> Callable[..., None]:
    """Return what lands a topic by one run to its end, given more arguments."""
    return partial(SparkRun(lake, topic, landing).run, spark)


class App(subprocess.Popen[str]):
    """An app's program. A test that fails does not wait for a stream that never ends."""

    def __exit__(self, kind: type[BaseException] | None, value: Any, trace: Any) -> None:
        if kind is not None and self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        super().__exit__(kind, value, trace)


def start_app(config: AppConfig, folder: Path, through: Sequence[str] = ()) -> App:
    """Start an app's program; its output goes to `driver.log` in the folder."""
    path = config.write(folder / f"app-{uuid.uuid4().hex}.json")
    with (folder / "driver.log").open("a") as log:
        command = [sys.executable, *through, app_path(config.app), "--config", str(path)]
        # A group of its own: a kill reaches the JVM and the Python workers, too.
        return App(command, stdout=log, stderr=subprocess.STDOUT, text=True, start_new_session=True, env=_environment())


def _environment() -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}


def _config(lake: Lake, topic: str, settings: dict[str, Any], landing: dict[str, Any] | None = None) -> AppConfig:
    known = AppConfig.__dataclass_fields__
    given = {"topic": topic, "table": lake.name, "consumer_group": GROUP}
    given |= (landing or {}) | {key: value for key, value in settings.items() if key not in known}
    of_app = {key: value for key, value in settings.items() if key in known}
    if given.get("mode", "resume") == "resume":
        of_app.setdefault("checkpoint_location", str(lake.folder / "checkpoint"))
    if lake.name != TABLE:
        return AppConfig.parse({"app": "kafka_to_delta", "kafka": lake.kafka, "landing": given, **of_app})
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{lake.folder}/catalog.db",
        "warehouse": f"file://{lake.folder}/warehouse",
    }
    usual = {"app": "kafka_to_iceberg", "catalog": {"name": "iceberg_default", "properties": catalog}}
    landing = {"table_properties": QUICK_RETRIES, **given}
    return AppConfig(kafka=lake.kafka, landing=landing, **{**usual, **of_app})


class InterposedReaders:
    """Readers that do something once they have read for the first time, before anything is committed."""

    def __init__(self, readers: SparkReaders, action: Callable[[], object]) -> None:
        self._readers = readers
        self._action = action
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._readers, name)

    def read(self, job: LandingJob, *what: Any) -> Sequence[SharePiece]:
        pieces = self._readers.read(job, *what)
        self.reads += 1
        if self.reads == 1:
            self._action()
        return pieces
