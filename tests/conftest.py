"""What all tests share: the fixtures of the real broker, and how hard hypothesis tries."""

import gc
import os

import psutil
import pytest
from hypothesis import settings

# A JVM of a test lives for seconds: to compile for speed costs it twice what it gains.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:-UsePerfData")

pytest_plugins = [
    "tests.support.airflow_home",
    "tests.support.broker",
    "tests.support.lake",
    "tests.support.delta_lake",
    "tests.support.flink",
    "tests.support.hive_lake",
    "tests.support.landings",
    "tests.support.cdc",
    "tests.support.connecting",
    "tests.support.mirror_lake",
    "tests.support.openlineage",
    "tests.support.registry",
    "tests.support.sensing",
    "tests.support.spark",
    "tests.support.spark_stream",
    "tests.support.statsd",
    "tests.support.status",
]

settings.register_profile("long", max_examples=2000, deadline=None, print_blob=True)
# The same examples in each run: a change is not refused for what chance finds. `dev` and `long` find more each time.
settings.register_profile("ci", max_examples=50, deadline=None, print_blob=True, derandomize=True)
settings.register_profile("dev", max_examples=50, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))

# Catalogs and clients of tests that are over wait in cycles for the collector, which comes seldom in a process with all
# of Airflow. From the 1,024th open file on py4j's select() fails, and a query of Spark waits for Python without end.
MANY_FILES = 400

# Files that take minutes come first, so that no job is left alone with one of them in the end.
LONGEST = (
    "test_cdc_hostile.py",
    "test_flink.py",
    "test_spark_program.py",
    "test_spark_kills.py",
    "test_spark_frames.py",
    "test_spark_fan_out_crashes.py",
    "test_spark_dags.py",
    "test_sensor_kills.py",
    "test_flink_lakes.py",
    "test_s3_checkpoint.py",
    "test_maintenance_dag.py",
    "test_sensor_modes.py",
    "test_brokers.py",
    "test_kafka_versions.py",
    "test_glue.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Close what ended tests have left open, once it is much."""
    if psutil.Process().num_fds() > MANY_FILES:
        gc.collect()
