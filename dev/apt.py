"""Debian's packages, for parts that a test needs and the machine may lack."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from dev.errors import AptFails

_WITHIN_S = 300


def has_apt(*, as_root: bool = False) -> bool:
    """Tell whether this is a Debian, or one like it, that can be asked."""
    return shutil.which("apt-get") is not None and (not as_root or os.geteuid() == 0)


def apt_get(*arguments: str, folder: Path | None = None) -> None:
    """Run apt-get, which asks nothing. Raises AptFails."""
    done = subprocess.run(
        ["apt-get", "--quiet", *arguments],
        cwd=folder,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_WITHIN_S,
    )
    if done.returncode != 0:
        raise AptFails(f"apt-get {arguments[0]} fails: {(done.stderr or done.stdout).strip()[-1000:]}")
