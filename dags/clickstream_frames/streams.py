"""Functions of a stream for dags/clickstream_windows.py: Spark keeps open windows, and returns final ones as rows."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

# An event that is older than the newest event by more than this is left out: its window is final.
LATEST = "10 minutes"


def five_minutes(events: DataFrame, spark: SparkSession) -> DataFrame:
    """Return the numbers of events and visitors of each site in windows of five minutes."""
    windows = events.withWatermark("timestamp", LATEST).groupBy(sf.window("timestamp", "5 minutes"), "site_id")
    counted = windows.agg(sf.count("*").alias("events"), sf.approx_count_distinct("user_id").alias("visitors"))
    return counted.select("window.start", "window.end", "site_id", "events", "visitors")


def sessions(events: DataFrame, spark: SparkSession) -> DataFrame:
    """Return a row for each session of a user: events with less than half an hour between them."""
    by_user = events.withWatermark("timestamp", LATEST).groupBy(sf.session_window("timestamp", "30 minutes"), "user_id")
    counted = by_user.agg(
        sf.count("*").alias("events"),
        sf.min("timestamp").alias("began"),
        sf.max("timestamp").alias("ended"),
        sf.max((sf.col("event") == "purchase").cast("int")).cast("boolean").alias("purchased"),
    )
    return counted.select("user_id", "began", "ended", "events", "purchased")
