import json
import os
import subprocess
import sys
import time

import pytest

from dev.errors import DiskFull, NotUp, ServiceFailed
from dev.ports import free_ports, listening
from dev.processes import ProcessId
from dev.service import ServiceFolder
from dev.stack import Stack, all_stacks, sweep


@pytest.fixture
def folder(tmp_path):
    found = ServiceFolder("toy", tmp_path / "stack" / "toy")
    found.prepare()
    yield found
    found.remove(grace=1)


def start(folder, script, owner=None):
    return folder.start([sys.executable, "-c", script], owner, os.environ, grace=2)


def until(done, seconds=20):
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_state_is_read_as_it_was_written_and_by_nobody_else(folder):
    assert folder.read_state() is None
    folder.write_state({"password": "secret", "ports": {"plain": 1}})
    assert folder.read_state() == {"password": "secret", "ports": {"plain": 1}}
    assert (folder.path / "state.json").stat().st_mode & 0o077 == 0


def test_a_service_runs_until_it_is_removed(folder):
    leash = start(folder, "import time; print('hello', flush=True); time.sleep(600)")
    folder.wait_ready(lambda: "hello" in folder.log.read_text(), leash, seconds=20)
    service = folder.process("service")
    assert folder.running
    assert service.alive
    folder.remove()
    assert not service.alive
    assert leash.wait(20) is not None
    assert not folder.path.exists()


def test_no_service_is_started_on_a_full_disk(folder, monkeypatch):
    monkeypatch.setattr("dev.service._LEAST_FREE", 1 << 62)
    with pytest.raises(DiskFull, match=r"is not started: its disk has \d+ MiB free.*; free some\.$"):
        folder.prepare()


def test_a_service_that_ends_while_starting_is_an_error_with_its_last_words(folder):
    leash = start(folder, "raise SystemExit('ERROR: no disk')")
    with pytest.raises(ServiceFailed, match=r"toy ended while starting \(ERROR: no disk\); its log is .*service.log"):
        folder.wait_ready(lambda: False, leash, seconds=20)


def test_a_service_that_never_gets_ready_is_an_error(folder):
    leash = start(folder, "import time; time.sleep(600)")
    with pytest.raises(ServiceFailed, match=r"was not ready after 0 s \(it logged nothing\)"):
        folder.wait_ready(lambda: False, leash, seconds=0)


def test_a_service_that_ignores_sigterm_is_killed_after_its_grace(folder):
    script = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    leash = start(folder, script)
    folder.wait_ready(lambda: "deaf" in folder.log.read_text(), leash, seconds=20)
    service = folder.process("service")
    folder.remove(grace=2)
    assert not service.alive


def test_children_that_left_the_process_group_go_as_well(folder, tmp_path):
    script = f"""
import pathlib, subprocess, time
stray = subprocess.Popen(["sleep", "600"], start_new_session=True)
pathlib.Path({str(tmp_path / "stray")!r}).write_text(str(stray.pid))
print("ready", flush=True)
time.sleep(600)
"""
    leash = start(folder, script)
    folder.wait_ready(lambda: "ready" in folder.log.read_text(), leash, seconds=20)
    stray = ProcessId.of(int((tmp_path / "stray").read_text()))
    folder.remove()
    until(lambda: not stray.alive)


def test_a_recycled_pid_is_not_taken_for_ours():
    own = ProcessId.own()
    assert own.alive
    assert not ProcessId(own.pid, own.started - 3600).alive


@pytest.mark.parametrize("way", ["SIGKILL", "exit"])
def test_the_owner_gone_takes_process_and_data_along(tmp_path, way):
    script = f"""
import os, sys, json
from pathlib import Path
from dev.stack import Stack
stack = Stack.owned("toy", home=Path({str(tmp_path)!r}))
folder = stack._service("kafka")
folder.prepare()
leash = folder.start(["sleep", "600"], stack._owner, os.environ)
folder.wait_ready(lambda: True, leash, 20)
# A forked child holds the pipe open as well, and lives on.
child = os.fork()
if child == 0:
    os.closerange(0, 3)
    import time; time.sleep(60); os._exit(0)
print(json.dumps([str(stack.folder), folder.process("service").pid, child]), flush=True)
sys.stdin.readline() if {way!r} == "SIGKILL" else os._exit(0)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, text=True) as owner:
        path, pid, child = json.loads(owner.stdout.readline())
        service, stray = ProcessId.of(pid), ProcessId.of(child)
        if way == "SIGKILL":
            owner.kill()
        owner.wait()
        until(lambda: not service.alive)
        until(lambda: not os.path.exists(path))  # noqa: PTH110
        stray.stop(grace=1)


def test_a_service_that_ends_in_order_does_so_when_its_owner_is_gone(tmp_path):
    script = f"""
import pathlib, signal, sys
signal.signal(15, lambda *_: sys.exit(pathlib.Path({str(tmp_path / "ended")!r}).touch()))
print("ready", flush=True)
signal.pause()
"""
    with Stack.owned("toy", home=tmp_path) as owned:
        folder = owned._service("kafka")
        folder.prepare()
        leash = folder.start([sys.executable, "-c", script], owned._owner, os.environ, grace=30, orderly=True)
        folder.wait_ready(lambda: "ready" in folder.log.read_text(), leash, seconds=20)
    assert (tmp_path / "ended").exists()
    assert not owned.folder.exists()


def test_a_service_that_another_process_started_in_a_stack_lives_and_dies_with_the_owner(tmp_path):
    script = """
import os, sys
from pathlib import Path
from dev.stack import Stack
stack = Stack.joined(sys.argv[2], home=Path(sys.argv[1]))
folder = stack._service("kafka")
folder.prepare()
folder.wait_ready(lambda: True, folder.start(["sleep", "600"], stack._owner, os.environ), 20)
"""
    with Stack.owned("shared", home=tmp_path) as owned:
        subprocess.run([sys.executable, "-c", script, str(tmp_path), owned.name], check=True)
        service = owned._service("kafka").process("service")
        assert service.alive
    # Without the seconds that a service gets which its stack has to stop.
    assert not service.alive
    assert not owned.folder.exists()


def test_a_stack_whose_owner_and_leash_are_gone_is_swept(tmp_path):
    dead = subprocess.Popen(["true"])
    identity = {"pid": dead.pid, "started": 0.0}
    dead.wait()
    left = tmp_path / "stacks" / "tests-1-abc"
    left.mkdir(parents=True)
    (left / "owner.json").write_text(json.dumps(identity))
    alive = tmp_path / "stacks" / "demo-2-def"
    alive.mkdir()
    (alive / "owner.json").write_text(json.dumps(vars(ProcessId.own())))
    (tmp_path / "stacks" / "default").mkdir()
    sweep(tmp_path)
    assert [stack.name for stack in all_stacks(tmp_path)] == ["default", "demo-2-def"]


def test_owned_stacks_never_share_a_name(tmp_path):
    with Stack.owned("t", home=tmp_path) as one, Stack.owned("t", home=tmp_path) as other:
        assert one.folder != other.folder
    assert list(all_stacks(tmp_path)) == []


def test_an_owned_stack_that_was_taken_down_stays_down(tmp_path):
    with Stack.owned("t", home=tmp_path) as stack:
        pass
    with pytest.raises(NotUp, match="has been taken down"):
        stack.up_kafka()


def test_asking_for_a_broker_that_is_not_up_says_how_to_start_it(tmp_path):
    with pytest.raises(NotUp, match="kafka is not up in stack s: python -m dev up kafka --stack s"):
        Stack("s", home=tmp_path).kafka()


def test_free_ports_differ_and_are_free():
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert not any(listening(port) for port in ports)
