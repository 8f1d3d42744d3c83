"""The contract of stores in HDFS, by a real NameNode and DataNode; what its users, permissions and outages mean."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

import pytest

from airflow_lakestream.driver.lease import HeldLease, read_lease
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.write.files import data_folder, delete_unreferenced, list_files
from airflow_lakestream.onramp.doctor.finding import PartHealth
from airflow_lakestream.onramp.doctor.lake import check_store
from airflow_lakestream.stores import hdfs
from airflow_lakestream.stores.folders import open_folder
from airflow_lakestream.stores.hdfs import HdfsFailed
from dev.stack import Stack
from tests.matrix.every_store import *  # noqa: F403  # pytest collects the tests here, for this store
from tests.support.broker import TopicOf
from tests.support.catalogs import SPAWN
from tests.support.lake import events
from tests.support.stores import StoreLake, StorePlace

STORE = "HDFS"
# Delta's log is written by obstore, which knows no HDFS.
ICEBERG_ALONE = True

RACES, RACERS = 15, 3


def create_each(location: str, start: Barrier, answers: Queue[tuple[bytes, list[int]]]) -> None:
    """Create files 0, 1, ... each at once with other processes; answer what this one wrote, and into which files."""
    folder, own = open_folder(location), uuid.uuid4().bytes
    mine: list[int] = []
    for number in range(RACES):
        start.wait(60)
        if folder.create(str(number), own):
            mine.append(number)
    answers.put((own, mine))


def test_of_processes_that_create_a_file_at_once_one_does_each_time(store: StorePlace) -> None:
    start, answers = SPAWN.Barrier(RACERS), SPAWN.Queue()
    processes = [SPAWN.Process(target=create_each, args=(store.checkpoint, start, answers)) for _ in range(RACERS)]
    for process in processes:
        process.start()
    created = dict(answers.get(timeout=120) for _ in processes)
    for process in processes:
        process.join(60)
    folder = open_folder(store.checkpoint)
    assert sorted(number for mine in created.values() for number in mine) == list(range(RACES))
    assert all(folder.read(str(number)) == own for own, mine in created.items() for number in mine)
    assert sum(bool(mine) for mine in created.values()) > 1, "they raced"
    assert folder.names() == sorted(map(str, range(RACES)))


def test_a_file_that_is_rewritten_is_read_as_a_whole(store: StorePlace) -> None:
    folder, ended = open_folder(store.checkpoint), threading.Event()
    contents = [bytes([number]) * 5_000 for number in range(15)]
    folder.write("lease", contents[0])

    def rewrite() -> None:
        for content in contents:
            folder.write("lease", content)
        ended.set()

    writer = threading.Thread(target=rewrite)
    writer.start()
    read = []
    while not ended.is_set():
        read.append(folder.read("lease"))
    writer.join(60)
    assert set(read) <= set(contents)
    assert len(set(read)) > 1


def test_files_that_no_commit_has_are_found_and_deleted(lake: StoreLake, topic_of: TopicOf) -> None:
    lake.land(topic_of(events(0, 0, 10)))
    table = lake.table()
    folder = data_folder(table.metadata, "stray")
    with table.io.new_output(f"{folder}/a b%20c/1.parquet").create() as stream:
        stream.write(b"of a run that was killed")
    assert list(list_files(table.io, folder)) == [f"{folder}/a b%20c/1.parquet"]
    assert delete_unreferenced(table, folder) == (1, 0)
    assert list(list_files(table.io, folder)) == []
    with pytest.raises(FileNotFoundError):
        table.io.delete(f"{folder}/a b%20c/1.parquet")
    lake.assert_whole()


@pytest.fixture
def as_a_guest(store: StorePlace, monkeypatch: pytest.MonkeyPatch) -> StorePlace:
    """Ask as a user who may read, and no more."""
    open_folder(store.checkpoint).write("metadata", b'{"id": "query-1"}')
    monkeypatch.setenv("HADOOP_USER_NAME", "guest")
    return store


def test_a_user_who_may_not_write_is_told_so(as_a_guest: StorePlace) -> None:
    assert open_folder(as_a_guest.checkpoint).read("metadata") == b'{"id": "query-1"}'
    with pytest.raises(HdfsFailed, match="Permission denied: user=guest, access=WRITE") as caught:
        HeldLease.take(as_a_guest.checkpoint, "f", "a test")
    assert str(caught.value).startswith(as_a_guest.location)
    assert "\n" not in str(caught.value)


def test_a_location_without_a_name_node_is_in_the_one_of_hadoops_settings(
    stack: Stack, store: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = hdfs.split(store.checkpoint)[1]
    monkeypatch.setenv("HADOOP_CONF_DIR", stack.up_hdfs().conf)
    for short in (f"hdfs://{path}", f"hdfs:{path}"):
        open_folder(short).write("a", short.encode())
        assert open_folder(store.checkpoint).read("a") == short.encode()


def test_doctor_tries_a_folder_of_hdfs(store: StorePlace) -> None:
    assert {found.health for found in check_store(store.checkpoint, None, read_only=False)} == {PartHealth.OK}
    assert open_folder(store.checkpoint).names() == []


def test_other_ways_to_hdfs_are_refused_by_name(stack: Stack, store: StorePlace) -> None:
    name_node = stack.up_hdfs()
    path = hdfs.split(store.checkpoint)[1]
    open_folder(store.checkpoint).write("metadata", b"{}")
    other = f"webhdfs://127.0.0.1:{name_node.web}{path}"
    assert open_folder(other).read("metadata") == b"{}"
    with pytest.raises(InvalidArgument, match=r"webhdfs:// can't create a file on condition .* hdfs://"):
        HeldLease.take(other, "f", "a test")
    assert read_lease(store.checkpoint) is None


def test_a_name_node_that_nobody_reaches_is_told_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs, "ATTEMPTS", 1)
    with pytest.raises(HdfsFailed, match=r"^hdfs://127\.0\.0\.1:1/a\.lakestream: .*refused"):
        HeldLease.take("hdfs://127.0.0.1:1/a", "f", "a test")


def test_a_name_node_that_does_not_answer_is_told_and_asked_again(
    stack: Stack, store: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = HeldLease.take(store.checkpoint, "f", "a test")
    monkeypatch.setattr(hdfs, "PATIENCE", 1.0)
    pid = stack.up_hdfs().pid
    # For a second, which the clients of other tests wait for.
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(HdfsFailed, match="no answer within 1 s"):
            lease.beat()
    finally:
        os.kill(pid, signal.SIGCONT)
    monkeypatch.setattr(hdfs, "PATIENCE", 60.0)
    lease.beat(application_id="app-1")
    held = read_lease(store.checkpoint)
    assert held is not None
    assert held.application_id == "app-1"
