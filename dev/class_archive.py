"""An archive of the classes of Spark's driver (JEP 350): with it a driver starts in two thirds of the CPU time.

The JVM ignores an archive of other jars, so that nothing depends on it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from dev.errors import JavaMissing
from dev.java import find_jdk
from dev.locks import file_lock
from dev.progress import Say, quiet

# The JVM would print why it has left out, or ignored, some class.
_SILENT = "-Xlog:cds*=off"
# Goes through what the drivers of tests go through: SQL, files, Python workers, a stream.
_WORKLOAD = """
import sys
from pyspark.sql import SparkSession

folder = sys.argv[1]
settings = {
    "spark.master": "local[2]", "spark.ui.enabled": "false", "spark.local.dir": folder, "spark.driver.memory": "768m",
    "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "2",
}
spark = SparkSession.builder.config(map=settings).getOrCreate()
rows = spark.createDataFrame([(number, str(number)) for number in range(10)], ["id", "text"])
rows.write.parquet(folder + "/rows")
kept = spark.read.parquet(folder + "/rows")
kept.join(rows, "id").groupBy("id").count().sort("id").collect()
kept.rdd.mapPartitions(lambda part: [len(list(part))]).collect()
kept.mapInArrow(lambda batches: batches, kept.schema).collect()
source = spark.readStream.schema(kept.schema).parquet(folder + "/rows")
query = source.writeStream.foreachBatch(lambda batch, number: batch.collect())
query.option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


def make_archive(home: Path, say: Say = quiet) -> None:
    """Make the archive when it is not there yet.

    :param home: the folder of all stacks.
    """
    archive = _archive(home)
    with file_lock(archive.with_suffix(".lock")):
        if archive.exists():
            return
        say("spark: archiving its classes (half a minute, the first time)")
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            made = Path(folder, "spark.jsa")
            environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
            environment["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={made} {_SILENT}"
            command = [sys.executable, "-c", _WORKLOAD, folder]
            subprocess.run(command, env=environment, capture_output=True, check=True, timeout=500)
            made.replace(archive)


def driver_options(home: Path) -> str:
    """Return the JVM's options (SPARK_SUBMIT_OPTS) for a start from the archive; an empty text without an archive."""
    try:
        archive = _archive(home)
    except JavaMissing:
        # The tests that need a JVM say so themselves.
        return ""
    return f"-XX:SharedArchiveFile={archive} {_SILENT}" if archive.exists() else ""


def _archive(home: Path) -> Path:
    """Return the archive's path, which names one JDK and one installation of PySpark."""
    jdk = find_jdk()
    spark = find_spec("pyspark")
    assert spark is not None, "PySpark is among the extras of the development's environment"
    assert spark.origin is not None
    built_from = [jdk.home, jdk.version, version("pyspark"), *sorted(Path(spark.origin).with_name("jars").iterdir())]
    key = hashlib.sha256("\n".join(map(str, built_from)).encode()).hexdigest()[:16]
    return home / "classes" / f"spark-{key}.jsa"
