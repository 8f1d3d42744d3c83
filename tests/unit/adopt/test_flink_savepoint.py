"""The positions of Flink's Kafka sources in `_metadata`, and what can't be one."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.adopt.claim import CannotAdopt
from airflow_lakestream.adopt.tools import FlinkSavepoint
from airflow_lakestream.flink.checkpoints import SavepointUnreadable, read_savepoint

HEAD = struct.pack(">iiq", 0x4960672D, 4, 17)


def split(topic: str, partition: int, offset: int, stop: int = -(2**63)) -> bytes:
    name = topic.encode()
    body = struct.pack(">H", len(name)) + name + struct.pack(">iqq", partition, offset, stop)
    return struct.pack(">ii", 0, len(body)) + body


def known_partition(topic: str, partition: int) -> bytes:
    """Return what the enumerator keeps of a partition: no position."""
    name = topic.encode()
    return struct.pack(">H", len(name)) + name + struct.pack(">ii", partition, 1)


def write(folder: Path, content: bytes, **beside: bytes) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "_metadata").write_bytes(content)
    for name, state in beside.items():
        (folder / name).write_bytes(state)
    return str(folder)


@pytest.mark.long
@given(
    st.dictionaries(st.integers(0, 40), st.integers(0, 2**60), max_size=20),
    st.lists(st.binary(max_size=30), min_size=41, max_size=41),
)
def test_each_split_is_found_whatever_stands_between(
    tmp_path_factory: pytest.TempPathFactory, offsets: dict[int, int], noise: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("chk")
    # The last byte: else what stands between may be the head of a split.
    content = HEAD + b"".join(
        noise[p] + b"\xff" + known_partition("clicks", p) + split("clicks", p, offset) + split("clicks2", p, 5)
        for p, offset in offsets.items()
    )
    found = read_savepoint(write(folder, content), "clicks")
    assert (found.number, found.ends) == (17, offsets)


def test_state_in_files_beside_is_found_too(tmp_path: Path) -> None:
    place = write(tmp_path, HEAD + split("clicks", 0, 7), state=b"xx" + split("clicks", 1, 9))
    assert read_savepoint(f"{place}/_metadata", "clicks").ends == {0: 7, 1: 9}
    assert read_savepoint(f"file://{place}", "clicks").ends == {0: 7, 1: 9}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "_metadata is incomplete"),
        (b"not of Flink at all", "not written by Flink"),
        (HEAD + split("clicks", 0, 7) + split("clicks", 0, 8), "two sources"),
    ],
)
def test_what_can_not_be_a_position_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    with pytest.raises(SavepointUnreadable, match=problem):
        read_savepoint(write(tmp_path, content), "clicks")


def test_a_partition_that_was_not_read_yet_has_no_position(tmp_path: Path) -> None:
    place = write(tmp_path, HEAD + split("clicks", 0, -2) + split("clicks", 1, 3))
    assert read_savepoint(place, "clicks").ends == {1: 3}


def test_an_unfinished_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SavepointUnreadable, match="never completed"):
        read_savepoint(str(tmp_path), "clicks")


JOB, OTHER = "45506b6aa580d5c2a0fca2dd9841db8b", "a" * 32


class Table:
    """What adopting asks of a table: what commits say of themselves, newest first."""

    def __init__(self, *marks: dict[str, str]) -> None:
        self._marks = marks

    def marks(self) -> Iterator[dict[str, str]]:
        return iter(self._marks)


def marked(job: str, checkpoint: int) -> dict[str, str]:
    return {"flink.job-id": job, "flink.max-committed-checkpoint-id": str(checkpoint)}


def savepoint_of(folder: Path, job: str, *, by_place: bool = False) -> str:
    """Write a savepoint of number 17, of a job that it names in the sink's state, or only by its place."""
    folder = folder / job / "chk-17" if by_place else folder
    folder.mkdir(parents=True, exist_ok=True)
    text = b"" if by_place or not job else b"\x21" + job.encode()
    return write(folder, HEAD + split("clicks", 0, 7), state=text)


@pytest.mark.parametrize("by_place", [False, True], ids=["by the sink's state", "by its place"])
def test_a_savepoint_of_the_tables_own_job_is_proved(tmp_path: Path, by_place: bool) -> None:
    claim = FlinkSavepoint(savepoint_of(tmp_path, JOB, by_place=by_place), Table(marked(JOB, 17))).read("clicks")
    assert claim.ends == {0: 7}
    assert any(f"of job {JOB}, checkpoint 17: this one" in line for line in claim.proved)


@pytest.mark.parametrize("committed", [17, 16, 18], ids=["of the same number", "of a later one", "of an earlier one"])
@pytest.mark.parametrize("by_place", [False, True], ids=["by the sink's state", "by its place"])
def test_a_savepoint_of_another_job_is_refused(tmp_path: Path, by_place: bool, committed: int) -> None:
    place = savepoint_of(tmp_path, OTHER, by_place=by_place)
    with pytest.raises(CannotAdopt, match=f"is of job {OTHER}, and the table's last snapshot of Flink is of job {JOB}"):
        FlinkSavepoint(place, Table(marked(JOB, committed))).read("clicks")


def test_a_savepoint_that_names_no_job_is_never_called_proved(tmp_path: Path) -> None:
    claim = FlinkSavepoint(savepoint_of(tmp_path, ""), Table(marked(JOB, 17))).read("clicks")
    assert claim.proved == ()
    assert any(f"that it is of job {JOB}" in line and "it names none" in line for line in claim.trusted)


def test_a_savepoint_of_flink_2_0() -> None:
    # Of an INSERT from Kafka into Iceberg, of parallelism 2, stopped at these offsets of three partitions.
    found = read_savepoint(str(Path(__file__).parent / "savepoint"), "clicks")
    assert (found.number, found.ends, found.job) == (4, {0: 45, 1: 41, 2: 42}, JOB)
    assert read_savepoint(found.location, "click").ends == {}
