"""The Spark session of an app: what it needs is there, or is named."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.spark.app_config import AppConfig
from airflow_lakestream.spark.kafka_options import REDACTED
from airflow_lakestream.spark.packages import kafka_packages, resolve

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KAFKA_SOURCE = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_JARS = ("spark.jars", "spark.jars.packages")


class SparkLacks(LakestreamError, Terminal):
    """Something that an app needs is not where it runs."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what} {remedy}")


def open_session(config: AppConfig) -> SparkSession:
    """Start Spark, or join the one that `spark-submit` has started. Raises SparkLacks without a Kafka source.

    Started here, it gets the jars that fit; under `spark-submit` they are given there: by then it is too late.
    """
    from pyspark.sql import SparkSession

    settings = {
        # What executors hand over as text, and the driver reads, is in one time zone.
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.redaction.options.regex": REDACTED,
        **{key: str(value) for key, value in config.spark.items()},
    }
    if "PYSPARK_GATEWAY_PORT" not in os.environ and not any(key in settings for key in _JARS):
        settings["spark.jars"] = ",".join(resolve(kafka_packages()))
    if _master(settings).startswith("local"):
        # On one machine the executors' Python is this one, not whatever is first on the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"lakestream {config.app}")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    _check_source(spark)
    return spark


def _master(settings: Mapping[str, str]) -> str:
    from pyspark import SparkConf, SparkContext

    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return settings.get("spark.master", "local[*]")
    # What `spark-submit` was told is known to the JVM only.
    SparkContext._ensure_initialized()
    return SparkConf().get("spark.master") or settings.get("spark.master", "local[*]")


def _check_source(spark: SparkSession) -> None:
    from py4j.protocol import Py4JJavaError

    jvm = spark._jvm
    assert jvm is not None, "a session on the driver has one"
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(_KAFKA_SOURCE)
    except Py4JJavaError:
        spark.stop()
        remedy = f"Submit with --packages {','.join(kafka_packages(spark.version))}, or with these jars by --jars."
        raise SparkLacks("Spark has no Kafka source.", remedy) from None
