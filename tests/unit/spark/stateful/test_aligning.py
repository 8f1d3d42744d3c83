"""A checkpoint that is taken back to its table's batch, or is not that table's: as Spark leaves its files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from airflow_lakestream.core.landing.modes import LandedBesideStream, StreamReplaced
from airflow_lakestream.core.ledger import StreamBatch, TopicEntry
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.spark.checkpoint import read_checkpoint
from airflow_lakestream.spark.frames import stateful
from airflow_lakestream.spark.frames.stateful import CheckpointLost, RolledBackTooFar

HEAD = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
LAST = 20
# A partition by Spark's own store, and two stores of a join: by RocksDB with changes, and by whole versions.
STORES = {
    "state/0/0": lambda n: [f"{n}.delta"] + ([f"{n}.snapshot"] if n % 8 == 0 else []),
    "state/1/0/left-keyToNumValues": lambda n: [f"{n}.changelog"] + ([f"{n}.zip"] if n % 5 == 0 else []),
    "state/1/0/right-keyToNumValues": lambda n: [f"{n}_0f-3c.zip"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of the batches 0 to 20, and the plan of another."""
    folder = tmp_path / "checkpoint"

    def write(path: str, text: str = "x") -> None:
        for file in (folder / path, (folder / path).with_name(f".{Path(path).name}.crc")):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    write("metadata", '{"id":"q"}')
    write("sources/0/0", '\0v1\n{"t":{"0":0}}')
    for batch in range(LAST + 2):
        write(f"offsets/{batch}", f"v1\n{HEAD}\n" + json.dumps({"t": {"0": batch + 1}}))
    for batch in range(LAST + 1):
        write(f"commits/{batch}", "v1\n{}")
        for place, names in STORES.items():
            for name in names(batch + 1):
                write(f"{place}/{name}")
    write("state/0/_metadata/metadata")
    write("state/1/0/SSTs/000008-0f.sst")
    return folder


def entry(batch: int | None, query: str = "q") -> TopicEntry:
    if batch is None:
        return TopicEntry()
    return TopicEntry(RangeSet.of("t", 0, 0, batch + 1), streamed=StreamBatch(query, batch, 0))


def align(folder: Path, books: TopicEntry) -> bool:
    return stateful.align(read_checkpoint(str(folder)), books, "lake.t", "g", str(folder))


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("held", [LAST, LAST + 1])
def test_a_checkpoint_at_its_table_or_one_commit_behind_it_stays_as_it_is(folder: Path, held: int) -> None:
    before = files(folder)
    assert not align(folder, entry(held))
    assert files(folder) == before


@pytest.mark.parametrize("held", [12, 0, None])
def test_a_checkpoint_is_taken_back_with_all_state_of_later_versions(folder: Path, held: int | None) -> None:
    before = files(folder)
    assert align(folder, entry(held))
    at = -1 if held is None else held
    gone = {f"{log}/{batch}" for log in ("offsets", "commits") for batch in range(at + 1, LAST + 2)}
    gone |= {f"{p}/{name}" for p, names in STORES.items() for n in range(at + 2, LAST + 2) for name in names(n)}
    gone |= {str(Path(path).with_name(f".{Path(path).name}.crc")) for path in gone}
    assert files(folder) == before - gone
    assert not align(folder, entry(held))


def interrupted(folder: Path, after: int) -> bool:
    """Take the checkpoint back to batch 9, but end after so many deletions; tell whether that came before the end."""
    checkpoint = read_checkpoint(str(folder))
    assert checkpoint is not None
    remove, left = checkpoint.store.remove, iter(range(after))

    def removing(path: str) -> None:
        if next(left, None) is None:
            raise InterruptedError
        remove(path)

    checkpoint.store.remove = removing  # type: ignore[method-assign]
    try:
        stateful.align(checkpoint, entry(9), "lake.t", "g", str(folder))
    except InterruptedError:
        return True
    return False


@pytest.mark.parametrize("after", [1, 11, 40, 75, 100])
def test_what_is_left_off_in_the_middle_is_done_by_the_next_start(folder: Path, after: int) -> None:
    another = Path(shutil.copytree(folder, folder.with_name("another")))
    assert align(another, entry(9))
    assert interrupted(folder, after)
    now = read_checkpoint(str(folder))
    assert now is not None
    now.check_complete()
    assert align(folder, entry(9))
    assert files(folder) == files(another)


def test_a_plan_that_is_left_without_its_commit_is_carried_out_again(folder: Path) -> None:
    for after in range(1, 400):
        if not interrupted(folder, after):
            break
        now = read_checkpoint(str(folder))
        assert now is not None
        now.check_complete()
        if now.planned[-1] == 10 and now.committed[-1] == 9:
            assert not align(folder, entry(9))
    now = read_checkpoint(str(folder))
    assert now is not None
    assert (now.planned[-1], now.committed[-1]) in {(9, 9), (10, 9)}
    assert not {path for path in files(folder) if path.startswith("state/0/0/") and path.endswith("11.delta")}


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (["offsets/12"], "batch 12 is not there"),
        (["commits/12"], "batch 12 is not there"),
        (["state/0/0/8.snapshot", "state/0/0/8.delta"], "the state state/0/0 is not there"),
        (["state/0/0/13.delta"], "the state state/0/0 is not there"),
        (["state/1/0/right-keyToNumValues/13_0f-3c.zip"], "the state state/1/0/right-keyToNumValues is not there"),
    ],
)
def test_a_rollback_beyond_what_spark_keeps_is_refused_and_nothing_is_deleted(
    folder: Path, missing: list[str], words: str
) -> None:
    for path in missing:
        (folder / path).unlink()
    before = files(folder)
    with pytest.raises(RolledBackTooFar, match=f"holds batch 12 of query q.*{words} any more.*Roll the table"):
        align(folder, entry(12))
    assert files(folder) == before


def test_a_rollback_to_before_the_first_batch_needs_that_batch(folder: Path) -> None:
    (folder / "offsets" / "0").unlink()
    with pytest.raises(RolledBackTooFar, match=r"it holds no batch.*its first batch is not there"):
        align(folder, entry(None))


def test_a_checkpoint_that_is_gone_another_or_an_old_copy_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointLost, match=r"holds batch 4 of query q, and there is no checkpoint at .*nowhere"):
        align(tmp_path / "nowhere", entry(4))
    assert not align(tmp_path / "nowhere", entry(None))
    with pytest.raises(StreamReplaced, match="is of query q"):
        align(folder, entry(4, "other"))
    with pytest.raises(StreamReplaced, match=f"has no batch after {LAST + 1}: it is an old copy"):
        align(folder, entry(LAST + 2))
    with pytest.raises(LandedBesideStream, match="another consumer_group than 'g'"):
        align(folder, TopicEntry(RangeSet.of("t", 0, 0, 3)))
