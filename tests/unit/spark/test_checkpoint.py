"""Checkpoints as Spark leaves them: whole, open, purged, half written, of somebody else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_lakestream.exceptions import Terminal
from airflow_lakestream.spark.checkpoint import CheckpointDamaged, ForeignCheckpoint, read_checkpoint

HEADER = '{"batchWatermarkMs":0,"batchTimestampMs":1790000000000,"conf":{}}'


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def offsets(**partitions: int) -> str:
    return json.dumps({"clicks": {name[1:]: offset for name, offset in partitions.items()}})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of three batches, the last of them open."""
    folder = tmp_path / "checkpoint"
    write(folder / "metadata", '{"id":"0f3c"}')
    write(folder / "sources" / "0" / "0", "\0v1\n" + offsets(p0=5, p1=0))
    for batch, ends in enumerate((offsets(p0=10, p1=3), offsets(p0=20, p1=3), offsets(p0=30, p1=9, p2=4))):
        write(folder / "offsets" / str(batch), f"v1\n{HEADER}\n{ends}")
    for batch in (0, 1):
        write(folder / "commits" / str(batch), 'v1\n{"nextBatchWatermarkMs":0}')
    write(folder / "offsets" / ".2.crc", "x")
    write(folder / "commits" / ".2.0f3c.tmp", "v")
    return folder


def test_batches_and_their_offsets_are_read(folder: Path) -> None:
    checkpoint = read_checkpoint(str(folder))
    assert checkpoint is not None
    assert checkpoint.query_id == "0f3c"
    assert (checkpoint.planned, checkpoint.committed, checkpoint.replayed) == ((0, 1, 2), (0, 1), 2)
    assert checkpoint.starts(0) == {("clicks", 0): 5, ("clicks", 1): 0}
    assert checkpoint.ends(0) == checkpoint.starts(1) == {("clicks", 0): 10, ("clicks", 1): 3}
    assert checkpoint.ends(2) == {("clicks", 0): 30, ("clicks", 1): 9, ("clicks", 2): 4}
    assert ("clicks", 2) not in checkpoint.starts(2)


def test_text_that_looks_like_the_end_of_a_line_is_none(folder: Path) -> None:
    header = HEADER.replace("{}}", '{"name":"a\u2028b\x85c"}}')
    for batch in (1, 2):
        write(folder / "offsets" / str(batch), f"v1\n{header}\n{offsets(p0=30, p1=9)}\n")
    write(folder / "commits" / "1", 'v1\n{"odd":"\u2029"}')
    checkpoint = read_checkpoint(str(folder))
    assert checkpoint is not None
    checkpoint.check_complete()
    assert checkpoint.ends(2) == {("clicks", 0): 30, ("clicks", 1): 9}
    assert checkpoint.started_at(2) == 1790000000.0


@pytest.mark.parametrize("made", [False, True])
def test_where_no_query_has_run_there_is_no_checkpoint(tmp_path: Path, made: bool) -> None:
    if made:
        (tmp_path / "c").mkdir()
    assert read_checkpoint(str(tmp_path / "c")) is None


def test_a_batch_that_is_committed_is_not_open(folder: Path) -> None:
    write(folder / "commits" / "2", "v1\n{}")
    checkpoint = read_checkpoint(str(folder))
    assert checkpoint is not None
    assert checkpoint.replayed is None


def test_entries_that_spark_has_deleted_are_told_from_lost_ones(folder: Path) -> None:
    (folder / "offsets" / "0").unlink()
    checkpoint = read_checkpoint(str(folder))
    assert checkpoint is not None
    with pytest.raises(CheckpointDamaged, match="offsets/0 is missing: Spark has deleted entries before 1"):
        checkpoint.ends(0)
    with pytest.raises(CheckpointDamaged, match=r"offsets/3 is missing\. Delete the checkpoint"):
        checkpoint.ends(3)


@pytest.mark.parametrize("left", ["", "v1", f"v1\n{HEADER}", f'v1\n{HEADER}\n{{"clicks":{{"0":1', "v"])
def test_an_entry_written_in_part_is_named(folder: Path, left: str) -> None:
    write(folder / "offsets" / "2", left)
    checkpoint = read_checkpoint(str(folder))
    assert checkpoint is not None
    with pytest.raises(CheckpointDamaged, match=r"offsets/2 .*written in part"):
        checkpoint.ends(2)


@pytest.mark.parametrize("left", ["", '{"id', "[]"])
def test_metadata_written_in_part_are_named(folder: Path, left: str) -> None:
    write(folder / "metadata", left)
    with pytest.raises(CheckpointDamaged, match="metadata was written in part"):
        read_checkpoint(str(folder))


def test_a_checkpoint_without_metadata_is_damaged_and_any_other_folder_foreign(folder: Path, tmp_path: Path) -> None:
    (folder / "metadata").unlink()
    with pytest.raises(CheckpointDamaged, match="metadata is missing"):
        read_checkpoint(str(folder))
    write(tmp_path / "other" / "part-0.parquet", "PAR1")
    with pytest.raises(ForeignCheckpoint, match=r"something else in it: part-0\.parquet.*of its own"):
        read_checkpoint(str(tmp_path / "other"))


def test_another_topic_another_source_and_several_topics_are_foreign(folder: Path) -> None:
    checkpoint = read_checkpoint(str(folder))
    assert checkpoint is not None
    checkpoint.check_topics(["clicks", "more"])
    with pytest.raises(ForeignCheckpoint, match="it is of topic 'clicks', not of 'orders'"):
        checkpoint.check_topics(["orders"])
    write(folder / "offsets" / "2", f"v1\n{HEADER}\n17")
    with pytest.raises(ForeignCheckpoint, match="whose source is not Kafka"):
        checkpoint.ends(2)
    other = json.dumps({"orders": {"0": 1}})
    write(folder / "offsets" / "2", f"v1\n{HEADER}\n{offsets(p0=1)}\n{other}")
    with pytest.raises(ForeignCheckpoint, match="of several topics: clicks, orders"):
        checkpoint.ends(2)


def test_of_a_topic_that_is_read_twice_a_batch_has_what_both_have_read(folder: Path) -> None:
    write(folder / "offsets" / "2", f"v1\n{HEADER}\n{offsets(p0=30, p1=9, p2=4)}\n{offsets(p0=25, p1=9)}")
    checkpoint = read_checkpoint(str(folder))
    assert checkpoint is not None
    assert checkpoint.ends(2) == {("clicks", 0): 25, ("clicks", 1): 9}


def test_what_a_batch_was_planned_with_is_told(folder: Path) -> None:
    head = json.dumps({"batchWatermarkMs": 17, "conf": {"spark.x": "y"}})
    write(folder / "offsets" / "2", f"v1\n{head}\n{offsets(p0=30)}")
    checkpoint = read_checkpoint(str(folder))
    assert checkpoint is not None
    assert [checkpoint.watermark(batch) for batch in (1, 2)] == [0, 17]
    assert [checkpoint.setting(batch, "spark.x") for batch in (1, 2)] == [None, "y"]


def test_a_checkpoint_that_has_not_planned_yet_is_of_the_topic_of_its_source(folder: Path) -> None:
    for batch in range(3):
        (folder / "offsets" / str(batch)).unlink()
    checkpoint = read_checkpoint(str(folder))
    assert checkpoint is not None
    with pytest.raises(ForeignCheckpoint, match="'clicks'"):
        checkpoint.check_topics(["orders"])


def test_when_a_batch_was_begun_is_told(folder: Path) -> None:
    write(folder / "offsets" / "1", f"v1\n\n{offsets(p0=20)}")
    checkpoint = read_checkpoint(str(folder))
    assert checkpoint is not None
    assert [checkpoint.started_at(batch) for batch in (0, 1, 9)] == [1_790_000_000, None, None]


@pytest.mark.parametrize("left", [b"", b"v1", b"v1\n{", b"v\n{}", b"\xff\xfe\n{}", b"\0" * 40])
@pytest.mark.parametrize("file", ["offsets/2", "commits/1", "sources/0/0", "metadata"])
def test_what_spark_reads_is_looked_at_before_it_starts(folder: Path, file: str, left: bytes) -> None:
    read_checkpoint(str(folder)).check_complete()  # type: ignore[union-attr]  # it is there
    (folder / file).write_bytes(left)
    with pytest.raises(CheckpointDamaged, match=rf"{file} .*Delete the checkpoint. Nothing is lost") as error:
        read_checkpoint(str(folder)).check_complete()  # type: ignore[union-attr]  # it is there
    assert isinstance(error.value, Terminal)


# What became of a checkpoint whose batches 0 to 4 are committed, and the file that is named; None: Spark goes on.
DAMAGES: dict[str, tuple[list[str], dict[str, str], str | None]] = {
    "nothing": ([], {}, None),
    "old entries were deleted": (["offsets/0", "offsets/1", "commits/0"], {}, None),
    "an old entry is lacking": (["offsets/2"], {}, None),
    "the last plan": (["offsets/5"], {}, None),
    "the last two plans": (["offsets/5", "offsets/4"], {}, "offsets/4"),
    "the plan before the last one": (["offsets/4"], {}, "offsets/4"),
    "the plan before the last one, which is committed": (["offsets/4"], {"commits/5": "v1\n{}"}, "offsets/4"),
    "a plan whose checksum is left": (["offsets/5"], {"offsets/.5.crc": "x"}, "offsets/5"),
    "an old plan whose checksum is left": (["offsets/2"], {"offsets/.2.crc": "x"}, None),
    "the last commit": (["commits/4"], {}, None),
    "the last commit, whose checksum is left": (["commits/4"], {"commits/.4.crc": "x"}, "commits/4"),
    "an old commit whose checksum is left": (["commits/2"], {"commits/.2.crc": "x"}, None),
    "all commits": ([f"commits/{batch}" for batch in range(5)], {}, None),
    "an empty plan": ([], {"offsets/5": ""}, "offsets/5"),
    "an empty plan before the last one": ([], {"offsets/4": ""}, "offsets/4"),
    "a cut plan before the last one": ([], {"offsets/4": f"v1\n{HEADER}"}, "offsets/4"),
    "an empty commit": ([], {"commits/4": ""}, "commits/4"),
    "a cut commit": ([], {"commits/4": "v1"}, "commits/4"),
    "an empty beginning": ([], {"sources/0/0": ""}, "sources/0/0"),
    "the beginning, whose checksum is left": (["sources/0/0"], {"sources/0/.0.crc": "x"}, "sources/0/0"),
    "the query's id": (["metadata"], {}, "metadata"),
    "an empty id": ([], {"metadata": ""}, "metadata"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_spark_would_fail_on_is_named_before_it_starts(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "checkpoint"
    write(folder / "metadata", '{"id":"0f3c"}')
    write(folder / "sources" / "0" / "0", "\0v1\n" + offsets(p0=0))
    for batch in range(6):
        write(folder / "offsets" / str(batch), f"v1\n{HEADER}\n{offsets(p0=batch)}")
    for batch in range(5):
        write(folder / "commits" / str(batch), "v1\n{}")
    gone, written, named = DAMAGES[damage]
    for file in gone:
        (folder / file).unlink()
    for file, text in written.items():
        write(folder / file, text)

    def look() -> None:
        checkpoint = read_checkpoint(str(folder))
        assert checkpoint is not None
        checkpoint.check_complete()

    if named is None:
        look()
        return
    with pytest.raises(CheckpointDamaged, match=r"Delete the checkpoint\. Nothing is lost") as raised:
        look()
    assert raised.value.file == named
    assert isinstance(raised.value, Terminal)


def test_a_folder_with_the_checksum_of_a_query_s_id_is_a_damaged_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / "c" / ".metadata.crc", "x")
    with pytest.raises(CheckpointDamaged, match="metadata is missing"):
        read_checkpoint(str(tmp_path / "c"))
