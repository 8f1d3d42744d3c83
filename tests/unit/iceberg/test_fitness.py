"""Which catalogs and tables are refused before anything is read."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.noop import NoopCatalog

from airflow_lakestream.decode.metadata import metadata_schema
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg import fitness
from airflow_lakestream.iceberg.commit import hive
from airflow_lakestream.iceberg.commit.hive import MetastoreDoesNotCompare
from airflow_lakestream.iceberg.commit.new_table import NewTable
from airflow_lakestream.iceberg.fitness import CatalogCantCommit
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.runtime import processes
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.columns import to_schema
from tests.support.table_formats import sqlite_catalog


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


BY_PYARROW = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO", "adls.account-name": "acc"}
BY_ADLFS = {"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}
PATH, HOST = "abfss://lake/w", "abfss://lake@acc.dfs.core.windows.net/w"


@pytest.mark.parametrize(
    ("properties", "warehouse", "has_adlfs", "problem"),
    [
        (BY_PYARROW, PATH, False, ""),
        (BY_PYARROW, HOST, True, r"names its account.*Install adlfs"),
        (BY_ADLFS, HOST, False, r"adlfs, which is not installed.*pyiceberg\.io\.pyarrow\.PyArrowFileIO"),
        (BY_ADLFS, HOST, True, ""),
    ],
    ids=["a container", "an account for pyarrow", "no adlfs", "an account for adlfs"],
)
def test_places_in_azure_that_the_client_can_not_open_are_refused(
    properties: dict[str, str],
    warehouse: str,
    has_adlfs: bool,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "_forbidden", [])
    monkeypatch.setattr(fitness, "find_spec", lambda name: object() if has_adlfs else None)
    catalog = load_catalog("mine", **{**sqlite_catalog(tmp_path), **properties, "warehouse": warehouse})
    metadata = metadata_schema(("topic",))
    design = TableDesign(metadata)
    if problem:
        with pytest.raises(InvalidArgument, match=problem):
            NewTable.stage(catalog, "lake.t", to_schema(metadata), design)
        assert not catalog.list_namespaces()
    else:
        assert NewTable.stage(catalog, "lake.t", to_schema(metadata), design).table.location().startswith(warehouse)
    # The client of PyArrow alone does not survive a fork, and this process may have used it.
    assert processes.can_fork(idle_threads=("",)) is (properties is not BY_PYARROW)


def test_hdfs_by_a_java_inside_of_the_process_is_refused_and_the_other_client_named(tmp_path: Path) -> None:
    catalog = load_catalog("mine", **{**sqlite_catalog(tmp_path), "warehouse": "hdfs://names:8020/lake"})
    metadata = metadata_schema(("topic",))
    with pytest.raises(InvalidArgument, match=r"PyArrow's client of HDFS.*iceberg\.hdfs\.HdfsFileIO"):
        NewTable.stage(catalog, "lake.t", to_schema(metadata), TableDesign(metadata))
    assert not catalog.list_namespaces()
