"""Who may launch a driver: one of many, also between the launch and the lease."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from airflow_lakestream.driver.backend import DriverHandle
from airflow_lakestream.driver.detached import KIND
from airflow_lakestream.driver.driving import DriverSubmissions, Overtaken, StreamSpec, SubmitAction
from airflow_lakestream.driver.lease import HeldLease, OtherInputs, request_stop
from airflow_lakestream.driver.lease_record import DriverOutcome, ProcessIdentity
from airflow_lakestream.driver.supervisor import SupervisionLimits

INPUTS = {"topic": "clicks"}


def submissions(
    folder: Path, fingerprint: str = "f", start_timeout: float = 300, inputs: dict[str, str] = INPUTS
) -> DriverSubmissions:
    limits = SupervisionLimits(start_timeout=start_timeout)
    return DriverSubmissions(StreamSpec(str(folder / "checkpoint"), fingerprint, inputs, limits, 1.0, "one"))


def handle_of(pid: int) -> DriverHandle:
    return DriverHandle(KIND, log="/log", process=ProcessIdentity.of(pid))


def test_of_many_that_find_nothing_one_submits(tmp_path: Path) -> None:
    start = threading.Barrier(8)
    won: list[int] = []

    def attempt(number: int) -> None:
        mine = submissions(tmp_path)
        found = mine.find()
        start.wait()
        try:
            mine.claim(found)
        except Overtaken:
            return
        won.append(number)

    threads = [threading.Thread(target=attempt, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert submissions(tmp_path).find().action is SubmitAction.ADOPT


def test_a_driver_that_was_launched_is_waited_for_while_it_lives(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        mine = submissions(tmp_path)
        claimed = mine.claim(mine.find())
        mine.launched(claimed, handle_of(process.pid))
        found = submissions(tmp_path).find()
        assert (found.action, found.generation, found.handle) == (SubmitAction.ADOPT, 1, handle_of(process.pid))
        with pytest.raises(OtherInputs, match="its driver, one, runs with another configuration"):
            submissions(tmp_path, "another").find()
        process.kill()
    found = submissions(tmp_path).find()
    assert (found.action, found.attempt) == (SubmitAction.SUBMIT, 1)
    assert submissions(tmp_path).claim(found).attempt == 2


def test_a_submitter_that_died_before_it_launched_is_waited_for_no_longer_than_a_start_takes(tmp_path: Path) -> None:
    mine = submissions(tmp_path)
    mine.claim(mine.find())
    assert mine.find().action is SubmitAction.ADOPT
    assert submissions(tmp_path, start_timeout=0).find().action is SubmitAction.SUBMIT


def test_a_launch_that_failed_leaves_the_right_to_the_next(tmp_path: Path) -> None:
    mine = submissions(tmp_path)
    mine.failed(mine.claim(mine.find()))
    assert mine.find().action is SubmitAction.SUBMIT


def test_a_driver_that_holds_the_lease_is_adopted_refused_or_waited_for(tmp_path: Path) -> None:
    location = str(tmp_path / "checkpoint")
    mine = submissions(tmp_path)
    mine.launched(mine.claim(mine.find()), handle_of(os.getpid()))
    lease = HeldLease.take(location, "f", "one", inputs=INPUTS)
    found = submissions(tmp_path).find()
    assert (found.action, found.lease, found.handle) == (SubmitAction.ADOPT, lease.record, handle_of(os.getpid()))
    with pytest.raises(OtherInputs, match="another configuration"):
        submissions(tmp_path, "another").find()
    with pytest.raises(OtherInputs, match="it belongs to topic 'clicks', not 'orders'"):
        submissions(tmp_path, inputs={"topic": "orders"}).find()
    request_stop(location, "a person")
    assert submissions(tmp_path, "another").find().action is SubmitAction.WAIT
    assert mine.current().handle == handle_of(os.getpid())
    lease.release(DriverOutcome.STOPPED)
    found = submissions(tmp_path, "another").find()
    assert (found.action, found.generation) == (SubmitAction.SUBMIT, 2)
