"""What a driver tells within a batch, from a real Spark: a long batch gets on, one that hangs does not."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from airflow_lakestream.driver.progress import DriverProgress, ProgressLog, read_progress
from airflow_lakestream.driver.supervisor import (
    DriverSight,
    DriverState,
    SupervisionHistory,
    SupervisionLimits,
    SupervisorAction,
    decide,
)
from airflow_lakestream.spark.micro_batch import ProgressReporter
from tests.support.broker import poll_until

TASKS = 3


def test_tasks_that_end_are_signs_of_life_and_a_batch_that_hangs_gives_none(spark: Any, tmp_path: Path) -> None:
    location, gates = str(tmp_path / "checkpoint"), tmp_path

    def wait_for_gate(number: int) -> None:
        while not (gates / f"{number}").exists():
            time.sleep(0.02)  # between two looks at the gate

    def work() -> None:
        spark.sparkContext.parallelize(range(TASKS), TASKS).foreach(wait_for_gate)

    def told() -> DriverProgress:
        pulse.look()
        return read_progress(location)

    pulse = ProgressReporter(spark, ProgressLog(location), is_idle=lambda: False)
    pulse.begin("batch 7")
    assert read_progress(location).doing == "batch 7 has begun"
    batch = threading.Thread(target=work)
    batch.start()
    try:
        for done in range(TASKS):
            wanted = f"{done} of {TASKS} tasks of stage"
            poll_until(lambda wanted=wanted: wanted in told().doing, wanted, 120)
            assert told().doing.startswith("batch 7: ")
            # It hangs here, for all that anybody can see.
            before = told().moves
            assert [told().moves for _ in range(5)] == [before] * 5
            (gates / str(done)).touch()
    finally:
        for number in range(TASKS):
            (gates / str(number)).touch()
        batch.join()


def test_a_query_that_waits_is_alive_and_a_thread_tells_it(spark: Any, tmp_path: Path) -> None:
    location = str(tmp_path / "checkpoint")
    with ProgressReporter(spark, ProgressLog(location), is_idle=lambda: True, interval=0.05):
        poll_until(lambda: read_progress(location).moves >= 3, "three signs of life", 120)
    assert read_progress(location).doing == "waiting for records"


def test_what_the_driver_reads_itself_is_a_sign_of_life(spark: Any, tmp_path: Path) -> None:
    location = str(tmp_path / "checkpoint")

    class Reader:
        def read(self, *_: Any) -> Any:
            yield from "ab"

    pulse = ProgressReporter(spark, ProgressLog(location), is_idle=lambda: False)
    assert list(pulse.count(Reader()).read(None, threading.Event())) == ["a", "b"]  # type: ignore[arg-type]  # no plan
    pulse.look()
    assert "the driver has read 2 chunks" in read_progress(location).doing


def test_a_stall_is_the_time_without_a_move_whatever_the_batch_takes() -> None:
    limits = SupervisionLimits(stall_timeout=60)
    history = SupervisionHistory(submitted_at=0.0)
    # Ten minutes in one batch, with a task that ends each half minute.
    for at in range(0, 600, 30):
        decision = decide(
            history, limits, DriverSight(DriverState.RUNNING, at, doing="batch 7: 1 of 3 tasks"), float(at)
        )
        assert decision.action is SupervisorAction.WAIT
        history = decision.history
    hung = decide(history, limits, DriverSight(DriverState.RUNNING, 570, doing="batch 7: 1 of 3 tasks"), 640.0)
    assert hung.action is SupervisorAction.RESTART
    assert hung.reason == "made no progress for 70 s (last: batch 7: 1 of 3 tasks)"
