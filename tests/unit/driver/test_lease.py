"""One writer for a checkpoint: taken, kept, lost, found again; on real files and in memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_lakestream.driver.lease import HeldLease, LeaseHeld, LeaseLost, OtherInputs, read_lease, request_stop
from airflow_lakestream.driver.lease_record import TTL_SECONDS, DriverOutcome, LeaseState, fingerprint_of
from airflow_lakestream.driver.progress import BatchProgress, DriverProgress, ProgressLog, read_progress
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError
from airflow_lakestream.stores.folders import open_folder

CHECKOUT = Path(__file__).parents[3]
INPUTS = {"app": "kafka_to_iceberg", "topic": "clicks", "table": "lake.clicks", "group": "g"}
HOLDS = """
import sys, time
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError
from airflow_lakestream.driver.lease import HeldLease
with HeldLease.take(sys.argv[1], "f", "another process", inputs={"topic": "clicks"}):
    print("taken", flush=True)
    time.sleep(600)
"""


@pytest.fixture(params=["local", "file-uri", "memory"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param != "memory":
        yield str(tmp_path / "checkpoint") if request.param == "local" else (tmp_path / "checkpoint").as_uri()
        return
    place = f"memory://{uuid.uuid4().hex}/checkpoint"
    yield place
    fsspec.filesystem("memory").rm(place.rsplit("/", 1)[0], recursive=True)


def take(location: str, **options: object) -> HeldLease:
    return HeldLease.take(location, "f", "a test", **{"inputs": INPUTS, **options})  # type: ignore[arg-type]  # options of several types


def test_a_lease_tells_who_holds_it(location: str) -> None:
    assert read_lease(location) is None
    take(location, application_id="app-1", ui_url="http://127.0.0.1:4040")
    record = read_lease(location)
    assert record is not None
    assert (record.holder, record.fingerprint, record.inputs) == ("a test", "f", INPUTS)
    assert (record.application_id, record.ui_url) == ("app-1", "http://127.0.0.1:4040")
    assert record.process.pid == os.getpid()
    assert record.state() is LeaseState.HELD


def test_a_second_driver_is_refused_by_name_while_the_first_lives(location: str) -> None:
    take(location)
    with pytest.raises(LeaseHeld, match="in use by a test") as refused:
        take(location)
    assert refused.value.record == read_lease(location)


@pytest.mark.parametrize("outcome", list(DriverOutcome))
def test_a_released_lease_is_taken_by_the_next_generation(location: str, outcome: DriverOutcome) -> None:
    first = take(location)
    first.release(outcome, "why")
    known = read_lease(location)
    assert known is not None
    assert (known.state(), known.outcome, known.error) == (LeaseState.RELEASED, outcome, "why")
    assert take(location).record.generation == first.record.generation + 1


def test_many_generations_leave_few_files(tmp_path: Path) -> None:
    location = str(tmp_path / "checkpoint")
    for _ in range(10):
        take(location).release(DriverOutcome.DONE)
    assert len(list(Path(f"{location}.lakestream").iterdir())) <= 3


def test_of_many_that_take_at_once_one_gets_it(location: str) -> None:
    start = threading.Barrier(16)
    won: list[HeldLease] = []

    def attempt() -> None:
        start.wait()
        try:
            won.append(take(location))
        except LeaseHeld:
            return

    threads = [threading.Thread(target=attempt) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert read_lease(location) == won[0].record


def test_the_lease_of_a_killed_process_is_free_at_once(tmp_path: Path) -> None:
    location = str(tmp_path / "checkpoint")
    with subprocess.Popen([sys.executable, "-c", HOLDS, location], cwd=CHECKOUT, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"taken\n"
        record = read_lease(location)
        assert record is not None
        assert (record.process.pid, record.state()) == (holder.pid, LeaseState.HELD)
        # On this machine the process is what counts: stopped, it holds however old its heartbeat is.
        holder.send_signal(signal.SIGSTOP)
        assert record.state(now=time.time() + 3600) is LeaseState.HELD
        with pytest.raises(LeaseHeld):
            HeldLease.take(location, "f", "a test")
        holder.kill()
        holder.wait()
        assert record.state() is LeaseState.VANISHED
        assert HeldLease.take(location, "f", "a test").record.generation == 2


def elsewhere(location: str) -> None:
    """Let the newest lease be one of another machine."""
    [newest] = sorted(Path(f"{location}.lakestream").glob("lease-*.json"))[-1:]
    content = json.loads(newest.read_text())
    content["process"]["machine"] = "another"
    newest.write_text(json.dumps(content))


def test_on_another_machine_the_heartbeat_decides(tmp_path: Path) -> None:
    location = str(tmp_path / "checkpoint")
    lease = take(location, ttl=60)
    elsewhere(location)
    record = read_lease(location)
    assert record is not None
    assert record.state(lease.record.beat_at + 59) is LeaseState.HELD
    assert record.state(lease.record.beat_at + 61) is LeaseState.VANISHED


def test_who_was_taken_over_learns_it_at_the_next_beat_and_no_longer_writes(tmp_path: Path) -> None:
    location = str(tmp_path / "checkpoint")
    old = take(location, ttl=0)
    elsewhere(location)
    new = take(location)
    old.check()
    with pytest.raises(LeaseLost, match="lease 1 was taken over by 2"):
        old.beat()
    with pytest.raises(LeaseLost):
        old.check()
    old.release(DriverOutcome.DONE)
    assert read_lease(location) == new.record


def test_a_beat_renews_the_lease_and_adds_what_is_known_later(location: str) -> None:
    lease = take(location)
    before = lease.record.beat_at
    lease.beat(application_id="app-2", ui_url="http://127.0.0.1:4041")
    record = read_lease(location)
    assert record is not None
    assert record.beat_at > before
    assert (record.application_id, record.ui_url) == ("app-2", "http://127.0.0.1:4041")


def test_a_lease_in_use_beats_by_itself_and_is_released(location: str) -> None:
    with take(location, ttl=0.06) as lease:
        first = lease.record.beat_at
        until = time.monotonic() + 30
        while (record := read_lease(location)) is None or record.beat_at == first:
            assert time.monotonic() < until
    record = read_lease(location)
    assert record is not None
    assert record.outcome is DriverOutcome.DONE


def test_a_driver_that_fails_says_so_without_the_text_of_foreign_errors(location: str) -> None:
    with pytest.raises(RuntimeError), take(location):
        raise RuntimeError("password=canary")
    record = read_lease(location)
    assert record is not None
    assert (record.outcome, record.error) == (DriverOutcome.FAILED, "RuntimeError")


def test_a_driver_says_whether_a_restart_can_help(location: str) -> None:
    for error, terminal in ((InvalidArgument("topic", "is missing."), True), (LeaseLost(location, 1, 2), False)):
        with pytest.raises(LakestreamError), take(location):
            raise error
        record = read_lease(location)
        assert record is not None
        assert (record.error, record.terminal) == (str(error), terminal)


def test_a_stop_reaches_the_driver_that_it_was_meant_for_and_no_later_one(location: str) -> None:
    assert not request_stop(location, "a person")
    with take(location) as lease:
        assert not lease.stop_requested()
        assert request_stop(location, "a person")
        assert lease.stop_requested()
    record = read_lease(location)
    assert record is not None
    assert record.outcome is DriverOutcome.STOPPED
    assert not request_stop(location, "a person")
    assert not take(location).stop_requested()


@pytest.mark.parametrize("name", list(INPUTS))
def test_a_checkpoint_of_something_else_is_refused_even_when_nobody_uses_it(location: str, name: str) -> None:
    take(location).release(DriverOutcome.DONE)
    with pytest.raises(OtherInputs, match=rf"it belongs to {name} '{INPUTS[name]}', not 'other'.*of its own"):
        take(location, inputs={**INPUTS, name: "other"})
    assert take(location).record.generation == 2


@pytest.mark.parametrize("left", [b"", b'{"generation": 2, "hol', b"\x00" * 300, b"null"])
def test_a_damaged_lease_is_held_for_its_time_and_nobodys_after_it(location: str, left: bytes) -> None:
    take(location).release(DriverOutcome.DONE)
    lost = take(location)
    damage(location, 2, left)
    assert read_lease(location) is None
    with pytest.raises(LeaseHeld, match=r"lease file lease-00000002\.json is damaged; it can be taken over 60 s after"):
        take(location)
    # Its duration is over as soon as it began.
    with pytest.raises(OtherInputs, match="topic 'clicks', not 'other'"):
        take(location, ttl=0, inputs={**INPUTS, "topic": "other"})
    assert take(location, ttl=0).record.generation == 3
    with pytest.raises(LeaseLost):
        lost.beat()


def test_a_holder_mends_its_damaged_lease(location: str) -> None:
    lease = take(location)
    damage(location, 1, b"")
    lease.beat()
    assert read_lease(location) == lease.record


def damage(location: str, generation: int, left: bytes) -> None:
    open_folder(f"{location}.lakestream").write(f"lease-{generation:08d}.json", left)


_RECORD = {
    "generation": 1, "fingerprint": "f", "holder": "x", "inputs": INPUTS, "application_id": "", "ui_url": "",
    "taken_at": 1e9, "beat_at": 1e9, "ttl": 60.0, "outcome": None, "error": "", "terminal": False,
    "process": {"pid": 1, "session": 1, "started": 1, "host": "elsewhere", "machine": "another"},
}  # fmt: skip
_ODD = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(-(10**400), 10**400),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)
_ODD_RECORDS = st.builds(
    lambda name, value: json.dumps({**_RECORD, name: value}).encode(), st.sampled_from(sorted(_RECORD)), _ODD
)
_CUT = st.integers(0, 700).map(lambda end: json.dumps(_RECORD).encode()[:end])


@given(st.binary(max_size=40) | _CUT | _ODD_RECORDS | st.just(b"[" * 100_000))
@example(json.dumps({**_RECORD, "beat_at": 1e15}).encode())
def test_whatever_is_in_a_lease_blocks_nobody_for_longer_than_its_time(left: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        location = f"{folder}/checkpoint"
        damage(location, 1, left)
        file = Path(f"{location}.lakestream", "lease-00000001.json")
        for long_ago in (time.time() - 100, time.time() + 10**9):
            os.utime(file, (long_ago, long_ago))
            # What it belongs to, it may still say; and of a lease that can be read the holder's own time counts.
            known = read_lease(location)
            if known is not None and known.ttl > TTL_SECONDS:
                return
            assert HeldLease.take(location, "f", "a test").record.generation == 2
            file.with_name("lease-00000002.json").unlink()


@given(st.binary(max_size=40) | st.dictionaries(st.sampled_from(sorted(DriverProgress.__dataclass_fields__)), _ODD).map(
    lambda value: json.dumps(value).encode()))  # fmt: skip
def test_whatever_is_in_the_progress_a_driver_goes_on(left: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        open_folder(f"{folder}/checkpoint.lakestream").write("progress.json", left)
        read_progress(f"{folder}/checkpoint")
        ProgressLog(f"{folder}/checkpoint").report(BatchProgress(1, 2, 3))
        assert read_progress(f"{folder}/checkpoint").newest is not None


def test_a_fingerprint_is_of_the_values_not_of_their_order() -> None:
    assert fingerprint_of({"a": 1, "b": [1]}) == fingerprint_of({"b": [1], "a": 1})
    assert fingerprint_of({"a": 1}) != fingerprint_of({"a": 2})


def test_sigterm_gives_the_lease_back(tmp_path: Path) -> None:
    location = str(tmp_path / "checkpoint")
    program = (
        "import sys, time\nfrom airflow_lakestream.driver.lease import HeldLease\n"
        "with HeldLease.take(sys.argv[1], 'f', 'test'):\n    print('works', flush=True)\n    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, location], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"works\n"
        process.terminate()
        assert process.wait(60) == 1
    lease = read_lease(location)
    assert lease is not None
    assert (lease.outcome, lease.terminal) == (DriverOutcome.FAILED, False)
    assert lease.error.startswith("ended by SIGTERM")
