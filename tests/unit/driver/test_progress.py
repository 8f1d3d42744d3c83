"""What a driver reports is what others read, over restarts and in bounded space."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from airflow_lakestream.driver.progress import KEPT, BatchProgress, DriverProgress, ProgressLog, read_progress

BATCH = BatchProgress(
    batch_id=7,
    rows_in=100,
    rows_out=98,
    rejected=2,
    input_rate=50.0,
    processing_rate=200.5,
    duration=0.5,
    ranges=(("clicks", 0, 5, 55), ("clicks", 1, 0, 50)),
    lag=3,
    watermark=1_700_000_000_000,
    snapshot_ids=("9223372036854775807",),
    at=1_700_000_000.25,
)


def test_before_the_first_batch_there_is_nothing(tmp_path: Path) -> None:
    assert read_progress(str(tmp_path / "checkpoint")) == DriverProgress()


def test_a_batch_reads_as_it_was_reported(tmp_path: Path) -> None:
    ProgressLog(str(tmp_path / "c")).report(BATCH)
    assert read_progress(str(tmp_path / "c")).newest == BATCH


def test_sums_go_on_over_drivers_and_beyond_what_is_kept(tmp_path: Path) -> None:
    for driver in range(2):
        log = ProgressLog(str(tmp_path / "c"))
        for n in range(KEPT):
            log.report(replace(BATCH, batch_id=driver * KEPT + n))
    read = read_progress(str(tmp_path / "c"))
    assert (read.batches, read.rows_in, read.rows_out, read.rejected) == (100, 10_000, 9_800, 200)
    assert [batch.batch_id for batch in read.last] == list(range(50, 100))


def test_a_run_has_the_sums_since_it_began_and_what_landed_again(tmp_path: Path) -> None:
    log = ProgressLog(str(tmp_path / "c"))
    log.report(replace(BATCH, tables={"lake.a": 98}))
    begun = json.loads(json.dumps(read_progress(str(tmp_path / "c")).sums()))
    assert read_progress(str(tmp_path / "c")).since(begun)["landed"] == []
    # The second lands what follows; the third, after a rollback, what the first had landed.
    log.report(replace(BATCH, ranges=(("clicks", 0, 55, 60),), skipped=1, tables={"lake.a": 4, "lake.b": 1}))
    log.report(replace(BATCH, ranges=(("clicks", 1, 0, 50),), tables={"lake.a": 98}))
    since = read_progress(str(tmp_path / "c")).since(begun)
    assert (since["batches"], since["rows_in"], since["skipped"]) == (2, 200, 1)
    assert since["tables"] == {"lake.a": 102, "lake.b": 1}
    assert since["landed"] == [["clicks", 0, 55, 60], ["clicks", 1, 0, 50]]
    # All batches together: what is adjacent is one range.
    assert read_progress(str(tmp_path / "c")).landed == (("clicks", 0, 5, 60), ("clicks", 1, 0, 50))


def test_a_batch_that_spark_repeats_counts_once(tmp_path: Path) -> None:
    killed = ProgressLog(str(tmp_path / "c"))
    killed.report_once(replace(BATCH, tables={"lake.a": 98}))
    began = read_progress(str(tmp_path / "c"))
    again = ProgressLog(str(tmp_path / "c"))
    again.report_once(replace(BATCH, tables={"lake.a": 98}, lag=9))
    read = read_progress(str(tmp_path / "c"))
    assert (read.batches, read.rows_in, read.rows_out, read.rejected, read.tables) == (2, 100, 98, 2, {"lake.a": 98})
    assert read.newest is not None
    assert (read.newest.lag, read.newest.rows_out, read.landed) == (9, 0, began.landed)
    assert read.since(began.sums())["landed"] == []
    # The table was rolled back: it lands anew, in another snapshot.
    again.report_once(replace(BATCH, snapshot_ids=("1",)))
    assert read_progress(str(tmp_path / "c")).rows_out == 196


def test_batches_without_a_snapshot_are_all_told_of(tmp_path: Path) -> None:
    log = ProgressLog(str(tmp_path / "c"))
    for _ in range(2):
        log.report_once(replace(BATCH, rows_out=0, filtered=98, snapshot_ids=()))
    assert read_progress(str(tmp_path / "c")).filtered == 196


def test_an_idle_query_moves_too(tmp_path: Path) -> None:
    log = ProgressLog(str(tmp_path / "c"))
    log.report(BATCH)
    before = read_progress(str(tmp_path / "c"))
    log.alive()
    after = read_progress(str(tmp_path / "c"))
    assert after.moves == before.moves + 1
    assert after.moved_at >= before.moved_at
    assert (before.doing, after.doing) == ("batch 7 done", "waiting for records")
    assert after.last == before.last


def test_what_a_later_version_adds_is_left_out(tmp_path: Path) -> None:
    log = ProgressLog(str(tmp_path / "c"))
    log.report(BATCH)
    file = tmp_path / "c.lakestream" / "progress.json"
    content = json.loads(file.read_text())
    content["new"] = content["last"][0]["new"] = 1
    file.write_text(json.dumps(content))
    assert read_progress(str(tmp_path / "c")).newest == BATCH


def test_a_batch_in_words() -> None:
    assert str(BATCH) == "batch 7: 100 records in, 98 rows out, 2 rejected, 0.5 s, 200 records/s, 3 behind"
    large = replace(BATCH, rows_in=222_290, rows_out=1_000, processing_rate=6_108.2, lag=23_301)
    assert (
        str(large) == "batch 7: 222,290 records in, 1,000 rows out, 2 rejected, 0.5 s, 6,108 records/s, 23,301 behind"
    )
