"""Which catalogs and tables are refused before anything is read."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from pyiceberg.catalog.noop import NoopCatalog

from airflow_lakestream.decode.metadata import metadata_schema
from airflow_lakestream.iceberg import fitness
from airflow_lakestream.iceberg.commit import hive
from airflow_lakestream.iceberg.commit.hive import MetastoreDoesNotCompare
from airflow_lakestream.iceberg.fitness import CatalogCantCommit
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.tables.design import TableDesign


class OwnCatalog(NoopCatalog):
    """What somebody made of it."""


@pytest.mark.parametrize("kind", [NoopCatalog, OwnCatalog])
def test_a_catalog_without_commits_is_refused_before_the_table_is_looked_at(kind: type[NoopCatalog]) -> None:
    sink = IcebergSink(kind("mine"), "lake.t", "g", TableDesign(metadata_schema(("topic",))))
    with pytest.raises(CatalogCantCommit, match=rf"lake\.t: .*{kind.__name__}.*nothing was read.*REST, Glue"):
        sink.load("run")


def test_the_catalogs_named_are_those_of_pyiceberg_that_have_no_commits() -> None:
    for module in fitness._WITHOUT_COMMITS:
        spec = find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        commit = Path(spec.origin).read_text().partition("def commit_table(")[2].partition("\n    def ")[0]
        assert "raise NotImplementedError" in commit


@pytest.mark.parametrize(
    ("version", "fine"),
    [
        ("4.0.0", True),
        ("4.0.0-beta-1", True),
        ("4.0.0-alpha-2", False),
        ("4.1.0", True),
        ("10.0.0", True),
        ("3.0", False),
        ("3.1.3", False),
        ("2.3.10", False),
        ("", False),
    ],
)
def test_the_versions_by_which_a_metastore_is_known_to_compare(version: str, fine: bool) -> None:
    if fine:
        hive._check_version("lake.t", version)
    else:
        with pytest.raises(MetastoreDoesNotCompare, match=r"lake\.t: .*HIVE-26882.*create the table before"):
            hive._check_version("lake.t", version)


def test_other_catalogs_need_no_thrift() -> None:
    code = "import sys, airflow_lakestream.iceberg.sink; print({'thrift', 'hive_metastore'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
