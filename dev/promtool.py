"""Prometheus's own tool, which checks and tests alert rules: the machine's, or Debian's, unpacked and not installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from dev.apt import apt_get, has_apt
from dev.errors import AptFails, NoPromtool

VARIABLE = "LAKESTREAM_PROMTOOL"
_WITHIN_S = 120


def have_promtool(home: Path) -> str:
    """Return the path of promtool; unpack Debian's package into `home` where the machine has none.

    The package itself would start a server.
    """
    own = home / "prometheus" / "usr" / "bin" / "promtool"
    for given in (os.environ.get(VARIABLE), shutil.which("promtool"), own):
        if given and Path(given).exists():
            return str(given)
    problem = "there is no apt-get"
    if has_apt():
        try:
            return _unpacked(home / "prometheus", own)
        except (AptFails, subprocess.SubprocessError) as e:
            problem = str(e)
    raise NoPromtool(
        f"There is no promtool here, and {problem}. Install Prometheus, or say where one is, "
        f"{VARIABLE}=/path/to/promtool."
    )


def _unpacked(folder: Path, tool: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        apt_get("update")
    apt_get("download", "prometheus", folder=folder)
    [package, *_] = sorted(folder.glob("prometheus_*.deb"))
    subprocess.run(["dpkg", "-x", package, folder], check=True, capture_output=True, timeout=_WITHIN_S)
    package.unlink()
    return str(tool)
