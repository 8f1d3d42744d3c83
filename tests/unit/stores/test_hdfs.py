"""Places in HDFS, by what Hadoop calls them, and stores whose files any number of processes may create."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from airflow_lakestream.driver.lease import HeldLease, read_lease
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.stores import hdfs
from airflow_lakestream.stores.folders import open_folder
from airflow_lakestream.stores.hdfs import HdfsFailed


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("hdfs://names:8020/lake/a b#c?d", ("names:8020", "/lake/a b#c?d")),
        ("hdfs://service/lake", ("service", "/lake")),
        ("hdfs://service", ("service", "")),
        ("hdfs:///lake", ("", "/lake")),
        ("hdfs:/lake", ("", "/lake")),
    ],
)
def test_a_location_is_a_name_node_and_a_path(location: str, expected: tuple[str, str]) -> None:
    assert hdfs.split(location) == expected


def test_a_stack_of_java_is_told_by_its_first_line() -> None:
    error = RuntimeError('RPCError("a.b.C", "Permission denied\\n\\tat d.e.F")')
    assert str(HdfsFailed("hdfs://names/a", error)) == 'hdfs://names/a: RPCError("a.b.C", "Permission denied'


def test_a_host_without_a_port_has_the_one_that_hadoop_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "HADOOP_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert hdfs.client_of("127.0.0.1") is hdfs.client_of("127.0.0.1")
    monkeypatch.setenv("HADOOP_USER_NAME", "another")
    assert hdfs.client_of("127.0.0.1") is hdfs.client_of("127.0.0.1")


def test_without_the_extra_the_command_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(InvalidArgument, match=r"hdfs_native is not installed: pip install '\.\[hdfs\]'"):
        open_folder("hdfs://nobody:1/a")


def test_a_lease_is_refused_where_fsspec_only_looks_before_it_writes(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    place = f"local://{tmp_path}/checkpoint"
    open_folder(place).write("metadata", b"{}")
    assert open_folder(place).read("metadata") == b"{}"
    with pytest.raises(InvalidArgument, match=r"local:// can't create a file on condition") as caught:
        HeldLease.take(place, "f", "a test")
    assert caught.value.argument == "checkpoint_location"
    assert read_lease(place) is None
