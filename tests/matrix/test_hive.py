"""The contract of tables in Hive's metastore."""

from tests.matrix.every_catalog import *  # noqa: F403  # each test of it

CATALOG = "Hive"
