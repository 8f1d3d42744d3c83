"""The worker around a stream is killed, drained, cleared or marked: its driver ends, or goes on, as promised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_lakestream.driver.lease_record import DriverOutcome
from tests.support.airflow_home import Run, TaskProcess
from tests.support.broker import poll_until
from tests.support.spark_stand_in import UI, launched, most_drivers
from tests.support.spark_stream import PATIENCE, Streams, kill_the_worker, mark, xcom

pytestmark = pytest.mark.airflow


@contextmanager
def running(streams: Streams, run: Run, file: Path, batches: int = 2) -> Iterator[TaskProcess]:
    """Run a try until its driver has done some batches, and the task has seen them."""
    before = streams.progress.batches
    with streams.airflow.process(run, file, "stream") as process:
        try:
            streams.await_batches(before + batches)
            poll_until(lambda: process.log.count("records in,") >= 1, "the task to see a batch", PATIENCE)
        except TimeoutError as e:
            raise AssertionError(process.log) from e
        yield process


def test_a_worker_that_is_lost_leaves_the_stream_to_the_retry_until_a_person_ends_it(streams: Streams) -> None:
    run, file = streams.write("lost", {"batch": 1.0}, retries=3)
    with running(streams, run, file) as process:
        [driver] = streams.drivers
        poll_until(lambda: xcom(run, "progress") is not None, "the progress", PATIENCE)
        told = xcom(run, "progress")
        assert (told["lag"], told["processing_rate"], told["rows_out"]) == (7, 20.0, 9 * told["batches"])
        assert xcom(run, "_link_SparkUILink") == UI
        assert xcom(run, "_link_DriverLogLink") == f"{UI}/logs/"
        kill_the_worker(process)
    assert streams.drivers == [driver]
    with running(streams, run, file, 1) as process:
        assert "Found the driver" in process.log
        assert streams.drivers == [driver]
        mark(run, "failed")
        process.wait(PATIENCE)
    assert "The task is failed by now: the driver was asked to end after its current batch" in process.log
    # Its port is going to be gone.
    for link in ("SparkUILink", "DriverLogLink"):
        assert f"/dags/{run.dag_id}/runs/" in xcom(run, f"_link_{link}")
    streams.await_no_driver()
    assert launched(streams.location) == 1
    assert streams.lease is not None
    assert streams.lease.outcome is DriverOutcome.STOPPED
    # The batch that had begun is in.
    assert Path(f"{streams.location}.batch").read_text() == "done"


def test_a_worker_that_is_lost_before_the_driver_works_starts_no_second_one(streams: Streams) -> None:
    go = streams.folder / "go"
    run, file = streams.write("lost_early", {"waits_for": str(go), "batches": 2}, retries=3)
    with streams.airflow.process(run, file, "stream") as process:
        poll_until(lambda: "Submitted a driver" in process.log, "a driver", PATIENCE)
        poll_until(lambda: bool(streams.drivers), "the driver", PATIENCE)
        kill_the_worker(process)
    assert streams.lease is None
    with streams.airflow.process(run, file, "stream") as process:
        poll_until(lambda: "Found the driver" in process.log, "the retry to find the driver", PATIENCE)
        go.touch()
        streams.await_end(process)
    assert run.task("stream").state == "success", process.log
    assert launched(streams.location) == 1


def test_a_worker_that_is_drained_leaves_the_stream_to_the_retry(streams: Streams) -> None:
    run, file = streams.write("drained_stream", retries=1)
    with running(streams, run, file) as process:
        [driver] = streams.drivers
        process.terminate()
        streams.await_end(process)
    assert "The worker ends. The stream goes on" in process.log
    assert run.task("stream").state == "up_for_retry"
    assert streams.drivers == [driver]


def test_a_task_that_is_cleared_ends_its_driver_and_then_begins_anew(streams: Streams) -> None:
    run, file = streams.write("cleared", {"batch": 1.0})
    with running(streams, run, file, 1) as process:
        mark(run, "cleared")
        streams.await_end(process)
    assert "the driver was asked to end after its current batch" in process.log
    with running(streams, run, file, 1) as process:
        kill_the_worker(process)
    assert (launched(streams.location), most_drivers(streams.location)) == (2, 1)


def test_kill_is_at_once(streams: Streams) -> None:
    run, file = streams.write("killed_stream", {"batch": 600}, on_kill_action="kill")
    with streams.airflow.process(run, file, "stream") as process:
        poll_until(lambda: "The driver is running" in process.log, "the driver to run", PATIENCE)
        mark(run, "failed")
        streams.await_end(process)
    assert "The task is failed by now: the driver was killed" in process.log
    streams.await_no_driver()
    assert streams.lease is not None
    assert streams.lease.outcome is None
