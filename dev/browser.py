"""A Chromium for the walk through the demo: the machine's own, or Debian's, which root can install."""

from __future__ import annotations

import os
import shutil

from dev.apt import apt_get, has_apt
from dev.errors import AptFails, NoBrowser

VARIABLE = "LAKESTREAM_CHROMIUM"

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Without a font each letter is an empty box.
_PACKAGES = ("chromium", "fonts-liberation")


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
        if not has_apt(as_root=True):
            raise
    try:
        apt_get("update")
        apt_get("install", "--yes", "--no-install-recommends", *_PACKAGES)
    except AptFails as e:
        raise NoBrowser(f"There is no Chromium here, and {e}") from e
    return find_chromium()
