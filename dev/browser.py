"""A Chromium for the walk through the demo: the machine's own, or Debian's, which root can install."""

from __future__ import annotations

import os
import shutil
import subprocess

from dev.errors import NoBrowser

VARIABLE = "LAKESTREAM_CHROMIUM"

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Without a font each letter is an empty box.
_PACKAGES = ("chromium", "fonts-liberation")
_WITHIN_S = 300


def find_chromium() -> str:
    """Return the path of a Chromium or a Chrome of this machine."""
    if (given := os.environ.get(VARIABLE)) and shutil.which(given) is None:
        raise NoBrowser(f"{VARIABLE} is {given}, and there is no such program.")
    for name in (given, *_NAMES):
        if name and (found := shutil.which(name)):
            return found
    raise NoBrowser(
        "There is no Chromium here: install one (Debian: apt install chromium), or say where one is, "
        f"{VARIABLE}=/path/to/chrome."
    )


def have_chromium() -> str:
    """Return the path of a Chromium; install Debian's where there is none and this is root."""
    try:
        return find_chromium()
    except NoBrowser:
        if shutil.which("apt-get") is None or os.geteuid() != 0:
            raise
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *_PACKAGES]):
        done = subprocess.run(
            ["apt-get", "--quiet", *command],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_WITHIN_S,
        )
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()[-1000:]
            raise NoBrowser(f"There is no Chromium here, and apt-get {command[0]} fails: {said}")
    return find_chromium()
