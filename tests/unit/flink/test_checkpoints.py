"""What a checkpoint says of Kafka, from bytes as Flink writes them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.core.publishing.branch import BranchSnapshot
from airflow_lakestream.flink.checkpoints import CheckpointFolder, FlinkPositions, TwoSources, offsets_in

JOB = "a" * 32


def split(topic: str, partition: int, offset: int, stops: int = -(2**63)) -> bytes:
    name = topic.encode()
    body = struct.pack(">H", len(name)) + name + struct.pack(">iqq", partition, offset, stops)
    return struct.pack(">ii", 0, len(body)) + body


OFFSETS = st.dictionaries(st.integers(0, 500), st.integers(0, 2**62))


@given(OFFSETS, OFFSETS, st.lists(st.binary(max_size=40)))
def test_each_partition_of_the_topic_is_found_and_no_other(
    mine: dict[int, int], others: dict[int, int], noise: list[bytes]
) -> None:
    parts = [*(split("t", *one) for one in mine.items()), *(split("t2", *one) for one in others.items()), *noise]
    assert offsets_in(b"|".join(parts), "t") == mine


def test_what_was_not_read_yet_is_left_out() -> None:
    # -2 says "from the earliest on".
    assert offsets_in(split("t", 0, -2) + split("t", 1, 7), "t") == {1: 7}


def test_a_split_that_is_cut_is_none() -> None:
    assert offsets_in(split("t", 0, 5) + split("t", 1, 7)[:-3], "t") == {0: 5}


def test_two_sources_of_one_topic_are_refused() -> None:
    with pytest.raises(TwoSources, match=r"t\[3\]: the checkpoint has two offsets, 5 and 6"):
        offsets_in(split("t", 3, 5) + split("t", 3, 6), "t")


def test_the_newest_complete_checkpoint_is_taken(tmp_path: Path) -> None:
    found = CheckpointFolder(f"file://{tmp_path}")
    assert found.newest(JOB) is None
    for number, complete in ((2, True), (9, True), (10, True), (11, False)):
        folder = tmp_path / JOB / f"chk-{number}"
        folder.mkdir(parents=True)
        if complete:
            (folder / "_metadata").write_bytes(split("t", 0, number))
    (tmp_path / JOB / "shared").mkdir()
    assert found.newest(JOB) == f"file://{tmp_path}/{JOB}/chk-10"
    assert found.offsets(JOB, 9, "t") == {0: 9}
    assert found.offsets(JOB, 11, "t") is None
    assert found.offsets_at(f"file://{tmp_path}/{JOB}/chk-2", "t") == {0: 2}


def test_a_snapshot_names_its_checkpoint_and_a_savepoint_says_the_rest(tmp_path: Path) -> None:
    folder = tmp_path / JOB / "chk-4"
    folder.mkdir(parents=True)
    (folder / "_metadata").write_bytes(split("t", 0, 40))
    summary = {"flink.job-id": JOB, "flink.max-committed-checkpoint-id": "4"}
    positions = FlinkPositions(CheckpointFolder(f"file://{tmp_path}"), "t")
    assert positions.is_own(summary)
    assert not positions.is_own({"lakestream.landing-id": "x"})
    assert positions.at(BranchSnapshot(1, 1, summary)) == {0: 40}
    assert positions.at(BranchSnapshot(2, 2, {**summary, "flink.max-committed-checkpoint-id": "5"})) is None
    assert positions.beyond() is None
    positions.savepoint = f"file://{folder}"
    assert positions.beyond() == {0: 40}
