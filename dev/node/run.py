"""Runs the programs of a node: `python -m dev.node.run FOLDER`, where `plan.json` has the ports; ends them at SIGTERM.

One node at a time is on a machine: a second one waits for the first one's end.
"""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from dev.locks import file_lock
from dev.node import image, pki, programs
from dev.node.settings import ADDRESS, BRIDGE, CONTAINERS, Plan, Ports

# Where programs write, whatever their settings say: a folder of memory is mounted there, for them alone.
_PLACES = ("/run/containerd", "/run/netns", "/var/lib/cni", "/var/lib/kubelet", "/var/log/containers")
_CGROUPS = Path("/sys/fs/cgroup")
# The kubelet sets these for a machine of its own.
_OF_MACHINE = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")
_WITHIN_S = 300.0


class Ended(Exception):
    """SIGTERM came."""


class Node:
    """The programs of one node, as children of this process."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._made: list[Path] = []
        self._before = {name: Path("/proc/sys", name).read_text() for name in _OF_MACHINE}

    def start(self) -> None:
        """Start all, each when what it needs is there."""
        folder = self._plan.folder
        _drop_bridge()
        _drop_cgroups()
        self._mount_places()
        for command in (
            ("ip", "link", "add", BRIDGE, "type", "bridge"),
            ("ip", "addr", "add", f"{ADDRESS}/24", "dev", BRIDGE),
            ("ip", "link", "set", BRIDGE, "up"),
        ):
            subprocess.run(command, check=True)
        pki.make(self._plan.keys, self._plan.url, self._plan.addresses())
        self._plan.write()
        (folder / "logs").mkdir()
        for name, command in self._plan.commands().items():
            self.run(name, command)
            if name == "containerd":
                self._await("containerd", lambda: self.ctr("version").returncode == 0)
                self._end_containers()
                self._bring_images()
            if name == "api-server":
                self._await("the API server", self._is_ready)
        self._await("the node", lambda: b"True" in self._ready_condition())
        # The kubelet is up, and has changed them.
        self._set(self._before)

    def run(self, name: str, command: list[str]) -> None:
        """Start one program; its pid and its command are in files, so that a test can stop and start it."""
        tools = [programs.DEBIAN / part for part in ("usr/bin", "usr/sbin", "sbin", "bin")]
        path = os.pathsep.join([*map(str, tools), os.environ["PATH"]])
        with (self._plan.folder / "logs" / f"{name}.log").open("ab") as log:
            environment = {**os.environ, "PATH": path}
            # In a session of its own: the signal that ends this process is not for them.
            child = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self._plan.folder, env=environment, start_new_session=True
            )
        self._children[name] = child
        (self._plan.folder / f"{name}.pid").write_text(str(child.pid))

    def watch(self) -> None:
        """Start again what a test has stopped and wants back: a file `<name>.wanted` says so."""
        while True:
            for name, command in self._plan.commands().items():
                wanted = self._plan.folder / f"{name}.wanted"
                if wanted.exists() and self._children[name].poll() is not None:
                    wanted.unlink()
                    self.run(name, command)
            time.sleep(0.2)  # between two looks at the node, which reports no end

    def stop(self) -> None:
        """End all, pods too, and leave the machine as it was; within seconds, since nothing is kept."""
        self._end(*(name for name in self._children if name != "containerd"))
        self._end_containers()
        self._end("containerd")
        _drop_bridge()
        _drop_cgroups()
        for place in _PLACES:
            subprocess.run(["umount", "-R", "-l", place], check=False)
        for folder in reversed(self._made):
            folder.rmdir()
        self._set(self._before)

    def ctr(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """Ask containerd."""
        command = [programs.debian("ctr"), "-a", str(self._plan.socket), "-n", "k8s.io", *arguments]
        return subprocess.run(command, capture_output=True, check=False)

    def _mount_places(self) -> None:
        for place in map(Path, _PLACES):
            missing = [folder for folder in (*reversed(place.parents), place) if not folder.exists()]
            place.mkdir(parents=True, exist_ok=True)
            self._made += missing
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)

    def _end_containers(self) -> None:
        for end in (("tasks", "rm", "-f"), ("containers", "rm")):
            left = self.ctr(end[0], "ls", "-q").stdout.decode().split()
            if left:
                self.ctr(*end, *left)

    def _bring_images(self) -> None:
        there = self.ctr("images", "ls", "-q").stdout.decode().split()
        for name, archive in zip((image.PAUSE, image.NAME), image.archives(), strict=True):
            mark = CONTAINERS / f"{archive.stem}.imported"
            if name in there and mark.exists():
                continue
            done = self.ctr("images", "import", str(archive))
            if done.returncode:
                raise RuntimeError(f"{archive} can't be imported: {done.stderr.decode()[-500:]}")
            mark.touch()

    def _end(self, *names: str) -> None:
        children = [self._children[name] for name in names if name in self._children]
        for child in children:
            child.kill()
        for child in children:
            child.wait()

    def _await(self, what: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _WITHIN_S
        while not ready():
            gone = [name for name, child in self._children.items() if child.poll() is not None]
            if gone or time.monotonic() > deadline:
                logs = f"{', '.join(gone) or 'nothing'} ended, see {self._plan.folder}/logs"
                raise RuntimeError(f"ERROR: {what} did not come up: {logs}")
            time.sleep(0.2)  # between two looks at the node, which reports no end

    def _is_ready(self) -> bool:
        return b"ok" in self._asked("/readyz")

    def _ready_condition(self) -> bytes:
        told = self._asked("/api/v1/nodes/node")
        try:
            conditions = json.loads(told)["status"]["conditions"]
        except (KeyError, ValueError):
            return b""
        return b"".join(one["status"].encode() for one in conditions if one["type"] == "Ready")

    def _asked(self, path: str) -> bytes:
        token = (self._plan.keys / "tokens.csv").read_text().partition(",")[0]
        request = urllib.request.Request(f"{self._plan.url}{path}", headers={"Authorization": f"Bearer {token}"})
        trusted = ssl.create_default_context(cafile=self._plan.keys / "ca.crt")
        try:
            with urllib.request.urlopen(request, timeout=5, context=trusted) as answer:
                return bytes(answer.read())
        except OSError:
            return b""

    def _set(self, values: dict[str, str]) -> None:
        for name, value in values.items():
            Path("/proc/sys", name).write_text(value)


def _drop_bridge() -> None:
    told = subprocess.run(["ip", "-json", "link", "show", "master", BRIDGE], capture_output=True, check=False).stdout
    for link in json.loads(told or b"[]"):
        subprocess.run(["ip", "link", "del", link["ifname"]], check=False)
    subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True, check=False)


def _drop_cgroups() -> None:
    """Remove the control groups of pods that are over; one with a process in it stays."""
    for pods in (*_CGROUPS.glob("kubepods"), *_CGROUPS.glob("*/kubepods")):
        for folder, _, _ in os.walk(pods, topdown=False):
            with suppress(OSError):
                Path(folder).rmdir()


def main(folder: Path) -> int:
    """Run a node until SIGTERM; return the exit code."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Ended

    signal.signal(signal.SIGTERM, end)
    plan = Plan(folder, Ports(**json.loads((folder / "plan.json").read_text())))
    with file_lock(programs.CACHE / ".node.lock"):
        node = Node(plan)
        try:
            node.start()
            (folder / "ready").touch()
            node.watch()
        except Ended:
            return 0
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            node.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
