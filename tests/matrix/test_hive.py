"""The contract of tables in Hive's metastore."""

from tests.matrix.every_catalog import *  # noqa: F403  # pytest collects the tests here, for this catalog

CATALOG = "Hive"
