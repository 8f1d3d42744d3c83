"""Kubernetes' programs, built by Go from its modules, and those of Debian, unpacked; all in one folder, once.

The folder is of the user, not of a checkout: a build takes some 14 minutes of a processor.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from dev.apt import apt_get, has_apt
from dev.errors import JarsUnavailable
from dev.locks import file_lock
from dev.progress import Say, quiet
from dev.services import golang

VERSION = "1.34.3"
DNS_VERSION = "1.13.1"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "airflow-lakestream" / "kubernetes"
BIN = CACHE / f"v{VERSION}"
DEBIAN = CACHE / "debian"

# The largest first: what they share is compiled once.
_PROGRAMS = ("kube-apiserver", "kubelet", "kube-controller-manager", "kube-scheduler")
_PACKAGES = ("etcd-server", "containerd", "runc", "containernetworking-plugins", "busybox-static", "mmdebstrap")
_DNS_SOURCE = Path(__file__).with_name("Dns.go")
_DNS = f"coredns-{DNS_VERSION}"
_REPLACED = re.compile(r"^\t(k8s\.io/\S+) => ", re.MULTILINE)
_REQUIRED = re.compile(r"^\t(\S+ v\S+)", re.MULTILINE)


def debian(name: str) -> str:
    """Return the path of a program of Debian's."""
    found = [path for folder in ("usr/bin", "usr/sbin", "sbin", "bin") if (path := DEBIAN / folder / name).exists()]
    return str(found[0])


def dns() -> str:
    """Return the path of CoreDNS."""
    return str(BIN / _DNS)


def missing() -> list[str]:
    """Return the names of the programs that are not there yet."""
    lacking = [name for name in (*_PROGRAMS, _DNS) if not (BIN / name).is_file()]
    return [*lacking, *(() if (DEBIAN / ".unpacked").is_file() else ("containerd",))]


def build(say: Say = quiet) -> None:
    """Have all programs; safe for several processes at once. Raises JarsUnavailable, AptFails."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with file_lock(CACHE / ".programs.lock"):
        if not (DEBIAN / ".unpacked").is_file():
            _unpack()
        lacking = [name for name in _PROGRAMS if not (BIN / name).is_file()]
        if lacking:
            say(f"kubernetes: building {', '.join(lacking)} (14 minutes of a processor, the first time)")
            _build(lacking)
    steps = (
        ["mod", "init", "dns"],
        ["get", f"github.com/coredns/coredns@v{DNS_VERSION}"],
        ["mod", "tidy"],
        ["build", "-ldflags", "-s -w", "-o", "coredns", "."],
    )
    golang.have(golang.Program(_DNS, steps, "coredns", _DNS_SOURCE), BIN, say)


def _unpack() -> None:
    if not has_apt():
        raise JarsUnavailable("No apt-get: the node takes containerd, runc and etcd from Debian's packages.")
    DEBIAN.mkdir(parents=True, exist_ok=True)
    apt_get("download", *_PACKAGES, folder=DEBIAN)
    for package in DEBIAN.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, DEBIAN], check=True, capture_output=True)
        package.unlink()
    (DEBIAN / ".unpacked").touch()


def _build(names: list[str]) -> None:
    if (go := shutil.which("go")) is None:
        raise JarsUnavailable("No Go, which Kubernetes is built with: install Go 1.26 or newer.")
    module = CACHE / f"module-{VERSION}"
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod -buildvcs=false"}
    if not (module / "go.sum").is_file():
        _write_module(go, module, environment)
    version, minor = "k8s.io/component-base/version", VERSION.split(".")[1]
    told = {"gitVersion": f"v{VERSION}", "gitMajor": "1", "gitMinor": minor, "gitTreeState": "clean"}
    flags = " ".join(["-s -w", *(f"-X {version}.{key}={value}" for key, value in told.items())])
    BIN.mkdir(parents=True, exist_ok=True)
    for name in names:
        part = module / name
        _go(
            [go, "build", "-trimpath", "-ldflags", flags, "-o", part, f"k8s.io/kubernetes/cmd/{name}"],
            module,
            environment,
        )
        # The rename is what makes it complete.
        part.replace(BIN / name)


def _write_module(go: str, module: Path, environment: dict[str, str]) -> None:
    """Write a module that requires Kubernetes and its own modules as they are published.

    Kubernetes itself replaces those by folders that a download of it lacks, so `go install` refuses it.
    """
    module.mkdir(parents=True, exist_ok=True)
    told = _go([go, "mod", "download", "-json", f"k8s.io/kubernetes@v{VERSION}"], CACHE, environment)
    text = (Path(json.loads(told)["Dir"]) / "go.mod").read_text()
    own = f"v0.{VERSION.partition('.')[2]}"
    required = [line.replace(" v0.0.0", f" {own}") for line in _REQUIRED.findall(text)]
    named = {line.split()[0] for line in required}
    required += [f"{name} {own}" for name in _REPLACED.findall(text) if name not in named]
    lines = ["module node", "go 1.24.0", "require (", f"k8s.io/kubernetes v{VERSION}", *required, ")"]
    (module / "go.mod").write_text("\n".join([*lines, ""]))
    imports = [f'import _ "k8s.io/kubernetes/cmd/{name}"' for name in _PROGRAMS]
    (module / "tools.go").write_text("\n".join(["//go:build tools", "", "package tools", "", *imports, ""]))
    # Some tests of dependencies can't be resolved, and are not needed.
    _go([go, "mod", "tidy", "-e"], module, environment)


def _go(command: list[object], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        list(map(str, command)), env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise JarsUnavailable(f"Kubernetes could not be built ({said}): check the network, then run it again.")
    return done.stdout
