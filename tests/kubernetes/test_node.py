"""The node itself: it ends without a trace, however its owner ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from dev.node import programs
from dev.node.image import PAUSE
from dev.processes import ProcessId
from dev.services.kubernetes import Kubernetes
from dev.stack import Stack
from tests.support.broker import poll_until
from tests.support.pods import PATIENCE

pytestmark = pytest.mark.own_parts

_OWNER = """
import json, sys
from dataclasses import asdict
from dev.stack import Stack

with Stack.owned("tests-node") as stack:
    node = stack.up_kubernetes()
    print(json.dumps([asdict(node), vars(stack._service("kubernetes").process("leash"))]), flush=True)
    sys.stdin.readline()
"""
# Where containerd, runc, the network's plugins and the kubelet write by themselves.
_PLACES = (
    *("/run/containerd", "/run/netns", "/var/lib/cni", "/etc/cni", "/opt/cni", "/opt/containerd"),
    *("/var/lib/kubelet", "/var/log/containers", "/var/log/pods", "/usr/libexec/kubernetes"),
)
_SETTINGS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")
_POD = {
    "metadata": {"name": "waits"},
    "spec": {"containers": [{"name": "waits", "image": PAUSE, "imagePullPolicy": "Never"}]},
}


def traces() -> dict[str, object]:
    """Return all of the machine that a node has its hands on."""
    links = json.loads(subprocess.run(["ip", "-json", "link"], capture_output=True, check=True).stdout)
    programs_up = [process.info["exe"] or "" for process in psutil.process_iter(["exe"])]
    tables = Path("/proc/net/ip_tables_names")
    return {
        "interfaces": sorted(link["ifname"] for link in links),
        "mounts": sorted(Path("/proc/mounts").read_text().splitlines()),
        "control groups": sorted(map(str, Path("/sys/fs/cgroup").glob("**/kubepods*"))),
        "tables of iptables": tables.read_text() if tables.exists() else "",
        "settings": {name: Path("/proc/sys", name).read_text() for name in _SETTINGS},
        "folders": [place for place in _PLACES if Path(place).exists()],
        "processes": [exe for exe in programs_up if exe.startswith(str(programs.CACHE.resolve()))],
    }


@pytest.mark.parametrize("way", ["down", "SIGKILL"])
def test_a_node_leaves_the_machine_as_it_was(stack: Stack, way: str) -> None:
    # One node at a time is on a machine; the next test starts another.
    stack._service("kubernetes").remove()
    before = traces()
    command = [sys.executable, "-c", _OWNER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        state, leash = json.loads(owner.stdout.readline())
        node = Kubernetes(**state)
        poll_until(lambda: _has_account(node), "the namespace to be ready", PATIENCE)
        node.core.create_namespaced_pod("default", _POD)
        pod = node.core.read_namespaced_pod
        poll_until(lambda: pod("waits", "default").status.phase == "Running", "the pod to run", PATIENCE)
        assert traces() != before
        if way == "SIGKILL":
            owner.kill()
    # The end of its standard input is the owner's word to take all down.
    assert ProcessId(**leash).wait_gone(PATIENCE)
    assert traces() == before
    assert not os.path.exists(node.folder)  # noqa: PTH110  # a text, as the node records it


def _has_account(node: Kubernetes) -> bool:
    return any(one.metadata.name == "default" for one in node.core.list_namespaced_service_account("default").items)
