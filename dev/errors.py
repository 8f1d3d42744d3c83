"""What can go wrong in `dev`. The command line prints the text, one line with the remedy in it, and no traceback."""

from __future__ import annotations

from pathlib import Path


class DevError(Exception):
    """Root of all errors that `dev` raises on purpose."""


class JavaMissing(DevError):
    """No usable JDK on this machine."""


class NoBrowser(DevError):
    """No Chromium on this machine, and none can be installed."""


class NoPromtool(DevError):
    """No promtool on this machine, and Debian's can't be had."""


class AptFails(DevError):
    """A command of apt-get failed; the text has its last words."""


class JarsUnavailable(DevError):
    """The jars of a service could not be fetched."""


class SourceMissing(DevError):
    """A source's data is not installed."""


class SourceFailed(DevError):
    """Kafka did not take what a source sent."""


class ServiceFailed(DevError):
    """A service ended, or did not become ready in time; `log` is its log file."""

    def __init__(self, service: str, problem: str, log: Path) -> None:
        self.service = service
        self.log = log
        super().__init__(f"{service} {problem}; its log is {log}")


class DiskFull(DevError):
    """The disk has too little room for a service."""


class ServiceConflict(DevError):
    """The service is up already, started with other settings."""


class UnknownService(DevError):
    """No service of that name."""


class NotUp(DevError):
    """The service is not up in this stack."""


class UnknownSuite(DevError):
    """No suite of tests has this name."""


class UnknownBase(DevError):
    """The commit that a change is compared with is not in this checkout."""


class BuildFailed(DevError):
    """git or uv could not make an installation to compare with."""


class DemoFailed(DevError):
    """The demo did not get to its end."""
