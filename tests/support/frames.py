"""Functions of DataFrames as users write them, each for one story of the tests."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.tables.rejects.sink import RejectingSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id bigint, name string, score double"


def enriched(batch: DataFrame, spark: SparkSession) -> DataFrame:
    """Join a table of parities, add a column, and leave every tenth record out: row by row."""
    from pyspark.sql import functions as sf

    looked_up = spark.createDataFrame([(0, "even"), (1, "odd")], "parity bigint, parity_name string")
    rows = batch.withColumn("parity", sf.col("id") % 2).join(looked_up, "parity", "left").drop("score")
    upper = sf.udf(lambda text: text and text.upper(), "string")
    return rows.withColumn("name", upper("name")).filter("id % 10 != 0")


def totals(batch: DataFrame, spark: SparkSession) -> DataFrame:
    """Count the records of each parity: what holds within a batch only."""
    return batch.groupBy((batch.id % 2).alias("parity")).count()


def unchanged(batch: DataFrame, spark: SparkSession) -> DataFrame:
    return batch


def doubled(batch: DataFrame, spark: SparkSession) -> DataFrame:
    return batch.union(batch)


def misplaced(batch: DataFrame, spark: SparkSession) -> DataFrame:
    return batch.withColumn("_kafka_offset", batch._kafka_offset + 1_000_000)


def placeless(batch: DataFrame, spark: SparkSession) -> DataFrame:
    from pyspark.sql import functions as sf

    return batch.withColumn("_kafka_offset", sf.when(batch.id > 5, batch._kafka_offset))


def raising(batch: DataFrame, spark: SparkSession) -> DataFrame:
    raise KeyError("no such category")


def leaving(batch: DataFrame, spark: SparkSession) -> DataFrame:
    sys.exit("that is enough")


def misspelt(batch: DataFrame, spark: SparkSession) -> DataFrame:
    return batch.select("nmae")


def failing_on_a_row(batch: DataFrame, spark: SparkSession) -> DataFrame:
    from pyspark.sql import functions as sf

    return batch.withColumn("id", sf.udf(lambda n: 1 // (n - 7), "bigint")("id"))


def nothing(batch: DataFrame, spark: SparkSession) -> None:
    return None


def with_an_interval(batch: DataFrame, spark: SparkSession) -> DataFrame:
    return batch.selectExpr("id", "interval 1 day as a_day")


def with_texts_for_ids(batch: DataFrame, spark: SparkSession) -> DataFrame:
    return batch.withColumn("id", batch.id.cast("string"))


def with_a_rank(batch: DataFrame, spark: SparkSession) -> DataFrame:
    return batch.selectExpr("*", "cast(score as int) as grade")


def of_one(batch: DataFrame) -> DataFrame:
    return batch


not_callable = 7


# Names a file that is there once a driver has killed itself.
KILLED = "LAKESTREAM_TEST_KILLED"


def killed_while_called(batch: DataFrame, spark: SparkSession) -> DataFrame:
    batch.count()
    kill_once(os.getpid())
    return batch


def killed_while_its_result_is_written(batch: DataFrame, spark: SparkSession) -> DataFrame:
    from pyspark.sql import functions as sf

    driver = os.getpid()

    def kill_late(number: int) -> int:
        if number % 100 == 99:
            kill_once(driver)
        return number

    return batch.withColumn("id", sf.udf(kill_late, "bigint")("id"))


def killed_before_the_commit(batch: DataFrame, spark: SparkSession) -> DataFrame:
    commit = RejectingSink.commit

    def kill_first(sink: RejectingSink, landing: Landing) -> int:
        kill_once(os.getpid())
        return commit(sink, landing)

    RejectingSink.commit = kill_first  # type: ignore[method-assign]  # of a process that ends with it
    return batch


def killed_after_the_commit(batch: DataFrame, spark: SparkSession) -> DataFrame:
    commit = RejectingSink.commit

    def kill_last(sink: RejectingSink, landing: Landing) -> int:
        commit(sink, landing)
        kill_once(os.getpid())
        raise AssertionError("it is dead, or was killed before")

    if not Path(os.environ[KILLED]).exists():
        RejectingSink.commit = kill_last  # type: ignore[method-assign]  # of a process that ends with it
    return batch


def kill_once(driver: int) -> None:
    try:
        Path(os.environ[KILLED]).touch(exist_ok=False)
    except FileExistsError:
        return
    # A driver of the tests leads the group of its JVM and workers.
    os.killpg(driver, signal.SIGKILL)
