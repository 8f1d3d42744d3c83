"""What all tests share: the fixtures of the real broker, and how hard hypothesis tries."""

import os

from hypothesis import settings

pytest_plugins = [
    "tests.support.airflow_home",
    "tests.support.broker",
    "tests.support.lake",
    "tests.support.landings",
    "tests.support.cdc",
    "tests.support.registry",
    "tests.support.sensing",
    "tests.support.spark",
    "tests.support.spark_stream",
    "tests.support.statsd",
]

settings.register_profile("long", max_examples=2000, deadline=None, print_blob=True)
settings.register_profile("ci", max_examples=100, deadline=None, print_blob=True)
settings.register_profile("dev", max_examples=50, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))
