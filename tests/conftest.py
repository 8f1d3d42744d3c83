"""What all tests share: the fixtures of the real broker, and how hard hypothesis tries."""

import gc
import os

import psutil
import pytest
from hypothesis import settings

from dev.class_archive import driver_options
from dev.stack import HOME

# A JVM of a test lives for seconds: to compile for speed costs it twice what it gains.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:-UsePerfData")
os.environ.setdefault("SPARK_SUBMIT_OPTS", driver_options(HOME))

pytest_plugins = [
    "tests.support.airflow_home",
    "tests.support.broker",
    "tests.support.parts",
    "tests.support.pods",
    "tests.support.time_left",
    "tests.support.durations",
    "tests.support.damaged_log",
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
settings.register_profile("ci", max_examples=20, deadline=None, print_blob=True, derandomize=True)
settings.register_profile("dev", max_examples=50, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))

# Catalogs and clients of tests that are over wait in cycles for the collector, which comes seldom in a process with all
# of Airflow. From the 1,024th open file on py4j's select() fails, and a query of Spark waits for Python without end.
MANY_FILES = 400
# So many more than the last collection has left, since some stay open: to collect after each test takes seconds of it.
MORE_FILES = 100
left_open = MANY_FILES - MORE_FILES


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Close what ended tests have left open, once it is much."""
    global left_open
    if psutil.Process().num_fds() > max(MANY_FILES, left_open + MORE_FILES):
        gc.collect()
        left_open = psutil.Process().num_fds()
