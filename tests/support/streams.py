"""Functions of streams as users write them, and what is to come of the events that they get."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.tables.rejects.sink import RejectingSink
from tests.support.frames import KILLED, kill_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "at timestamp, k int, v bigint"
# Seconds.
WINDOW, LATE = 10, 5
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def _at(n: int) -> datetime:
    return _BEGIN + timedelta(seconds=n / 10)


def clicks(partition: int, numbers: Iterable[int]) -> list[str]:
    """Return the values of a partition's events: ten a second, the even ones in partition 0, the odd ones in 1."""
    return [json.dumps({"at": _at(n).isoformat(), "k": n % 3, "v": n}) for n in numbers if n % 2 == partition]


def windows_of(count: int) -> Counter[tuple[Any, ...]]:
    """Return the rows of `windows` for so many events: those whose time is over."""
    over = _at(count - 1) - timedelta(seconds=LATE)
    found: dict[tuple[datetime, int], list[int]] = {}
    for n in range(count):
        start = _BEGIN + timedelta(seconds=n // 10 // WINDOW * WINDOW)
        if start + timedelta(seconds=WINDOW) <= over:
            found.setdefault((start, n % 3), []).append(n)
    return Counter((start, k, len(values), sum(values)) for (start, k), values in found.items())


def windows(rows: DataFrame, spark: SparkSession) -> DataFrame:
    """Count the events of each key, and add up their values, in windows that do not overlap."""
    from pyspark.sql import functions as sf

    by_window = rows.withWatermark("at", f"{LATE} seconds").groupBy(sf.window("at", f"{WINDOW} seconds"), "k")
    found = by_window.agg(sf.count("*").alias("n"), sf.sum("v").alias("total"))
    return found.select(sf.col("window.start").alias("start"), "k", "n", "total")


def pairs(rows: DataFrame, spark: SparkSession) -> DataFrame:
    """Join each event whose value can be divided by ten with the one a second later: the stream with itself."""
    from pyspark.sql import functions as sf

    stream = rows.withWatermark("at", f"{LATE} seconds")
    first = stream.filter("v % 10 = 0").select(sf.col("at").alias("began"), sf.col("v").alias("first"))
    second = stream.select(sf.col("at").alias("ended"), sf.col("v").alias("second"))
    soon = "second = first + 10 and ended between began and began + interval 2 seconds"
    return first.join(second, sf.expr(soon)).select("first", "second")


def processed(rows: DataFrame, spark: SparkSession) -> DataFrame:
    """Count the events of each key so far, by a state of our own."""
    import pandas as pd
    from pyspark.sql.streaming import StatefulProcessor

    class Counting(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.total = handle.getValueState("total", "total bigint")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N803  # the names are Spark's
            n = sum(len(part) for part in rows)
            total = n + (self.total.get()[0] if self.total.exists() else 0)
            self.total.update((total,))
            yield pd.DataFrame({"k": [key[0]], "n": [n], "total": [total]})

        def close(self) -> None:
            pass

    by_key = rows.select("k", "v").groupBy("k")
    return by_key.transformWithStateInPandas(Counting(), "k int, n bigint, total bigint", "append", "None")


def unbounded(rows: DataFrame, spark: SparkSession) -> DataFrame:
    """Aggregate without a watermark: rows that never are final."""
    return rows.groupBy("k").count()


def no_stream(rows: DataFrame, spark: SparkSession) -> DataFrame:
    return spark.range(3)


def killed_as_it_begins(rows: DataFrame, spark: SparkSession) -> DataFrame:
    load, seen = RejectingSink.load, []

    def killing(sink: RejectingSink, run_id: str) -> Any:
        seen.append(run_id)
        if len(set(seen)) == 3:
            kill_once(os.getpid())
        return load(sink, run_id)

    RejectingSink.load = killing  # type: ignore[method-assign]  # of a process that ends with it
    return windows(rows, spark)


def killed_before_the_commit(rows: DataFrame, spark: SparkSession) -> DataFrame:
    _around_the_commit(before=True)
    return windows(rows, spark)


def killed_after_the_commit(rows: DataFrame, spark: SparkSession) -> DataFrame:
    _around_the_commit(before=False)
    return windows(rows, spark)


def killed_while_it_runs(rows: DataFrame, spark: SparkSession) -> DataFrame:
    from pyspark.sql import functions as sf

    driver = os.getpid()

    def kill_late(number: int) -> int:
        if number > 300:
            kill_once(driver)
        return number

    return windows(rows.withColumn("v", sf.udf(kill_late, "bigint")("v")), spark)


def _around_the_commit(*, before: bool) -> None:
    """Kill this process at its third commit."""
    commit, done = RejectingSink.commit, []

    def killing(sink: RejectingSink, landing: Landing) -> int:
        done.append(landing)
        if before and len(done) == 3:
            kill_once(os.getpid())
        snapshot = commit(sink, landing)
        if not before and len(done) == 3:
            kill_once(os.getpid())
        return snapshot

    if not Path(os.environ[KILLED]).exists():
        RejectingSink.commit = killing  # type: ignore[method-assign]  # of a process that ends with it
