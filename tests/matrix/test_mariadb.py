"""The contract of tables in an SQL catalog on MariaDB."""

from tests.matrix.every_catalog import *  # noqa: F403  # pytest collects the tests here, for this catalog

CATALOG = "MariaDB"
