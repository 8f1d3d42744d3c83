"""The sites of the clickstream, and a function to join the sites to events."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

# A dimension table as small as this may be in the code; spark.table() or spark.read take one from elsewhere.
LANGUAGES = ("de", "en", "fr")
SITES = [(f"s{number:02d}", f"Site {number}", LANGUAGES[number % 3]) for number in range(1, 13)]


def with_sites(batch: DataFrame, spark: SparkSession) -> DataFrame:
    """Return the events with the site's name and language, and the section of the page.

    Each event stays a single row. A site that is not in the list gives NULL.
    """
    sites = spark.createDataFrame(SITES, "site_id string, site_name string, language string")
    return batch.join(sf.broadcast(sites), "site_id", "left").withColumn(
        "section", sf.regexp_extract("url", r"^https://[^/]+/([a-z]+)/", 1)
    )
