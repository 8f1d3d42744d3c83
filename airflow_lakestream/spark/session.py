"""An app's Spark session, checked for the classes of the app."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.spark import lake_settings
from airflow_lakestream.spark.app_config import AppConfig
from airflow_lakestream.spark.configuration import check_settings, check_variables
from airflow_lakestream.spark.kafka_settings import REDACTED
from airflow_lakestream.spark.packages import cut_jars, kafka_packages, resolve

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KAFKA_SOURCE = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_JARS = ("spark.jars", "spark.jars.packages")


class SparkLacks(LakestreamError, Terminal):
    """Error of a session without a jar that the app needs, or with a damaged jar."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem} {remedy}")


def open_session(config: AppConfig) -> SparkSession:
    """Start Spark, or join the session of `spark-submit`.

    A query needs Spark's Kafka source, which determines its batches; a checkpoint in S3 needs Hadoop's S3 client.
    Raises SparkLacks if the session lacks either.
    """
    settings = {"spark.sql.redaction.options.regex": REDACTED, **config.spark}
    on_s3 = lake_settings.is_on_s3a(config.checkpoint_location)
    packages = [*(kafka_packages() if config.is_query else ()), *(lake_settings.s3a_packages() if on_s3 else ())]
    spark = start_session(config.app, settings, packages, lake_settings.s3a_left_out() if on_s3 else ())
    if config.is_query:
        check_class(spark, _KAFKA_SOURCE, "Spark has no Kafka source.", kafka_packages(spark.version))
    if on_s3:
        check_class(spark, lake_settings.S3A_FILE_SYSTEM, "Spark has no client of S3.", lake_settings.s3a_packages())
    return spark


def start_session(
    app: str, configured: Mapping[str, str], packages: Sequence[str], without: Sequence[str] = ()
) -> SparkSession:
    """Start Spark, or join the session of `spark-submit`.

    Raises SparkLacks for a cut jar, and then stops the session. Raises InvalidArgument for a session of Spark Connect.

    :param configured: Spark's settings.
    :param packages: Maven coordinates of jars for a session that is started here. Unused with `spark-submit`, or if the
        settings have jars.
    :param without: dependencies of the packages to leave out.
    """
    check_settings(configured)
    check_variables("environment", os.environ)
    from pyspark.sql import SparkSession

    # Executors hand over times as text: writing and reading use one time zone.
    settings = {"spark.sql.session.timeZone": "UTC", **{key: str(value) for key, value in configured.items()}}
    if packages and "PYSPARK_GATEWAY_PORT" not in os.environ and not any(key in settings for key in _JARS):
        settings["spark.jars"] = ",".join(resolve(packages, without=without))
    if _master(settings).startswith("local"):
        # On one machine executors use this Python, not the first Python on the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"lakestream {app}")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if cut := cut_jars(str(spark.sparkContext.getConf().get("spark.jars", ""))):
        spark.stop()
        raise SparkLacks(
            f"{cut[0]} is not a complete jar: it was cut, or damaged.",
            "Delete the folder of the jar if the app has fetched it (docs/spark.md), so that the next start fetches it "
            "again; or put a complete copy in its place.",
        )
    return spark


def _master(settings: Mapping[str, str]) -> str:
    """Return the session's master, such as local[*]."""
    from pyspark import SparkConf, SparkContext

    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return settings.get("spark.master", "local[*]")
    # Only the JVM knows the settings of `spark-submit`.
    SparkContext._ensure_initialized()
    return SparkConf().get("spark.master") or settings.get("spark.master", "local[*]")


def check_class(spark: SparkSession, name: str, problem: str, packages: Sequence[str]) -> None:
    """Raise SparkLacks, and stop the session, if the session lacks a class.

    :param problem: the problem, for the error.
    :param packages: Maven coordinates of the jars with the class, for the remedy.
    """
    from py4j.protocol import Py4JJavaError

    jvm = spark._jvm
    assert jvm is not None, "a driver's session has a JVM"
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError:
        spark.stop()
        remedy = f"Submit with --packages {','.join(packages)}, or with these jars by --jars."
        raise SparkLacks(problem, remedy) from None
