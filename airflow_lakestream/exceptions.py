"""Base classes of all deliberate errors of this package.

There is one root, so that a caller can catch any error of lakestream. `Terminal` and `Transient` are markers: only the
operators read them, to let Airflow know whether a retry can help. Facts are attributes; the text says what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class Terminal:
    """Marker of an error after which the same call fails again, until a person changes something."""


class Transient:
    """Marker of an error after which the same call may succeed later."""


class LakestreamError(Exception):
    """Root of all errors raised by airflow_lakestream."""


class InvalidArgument(LakestreamError, Terminal, ValueError):
    """An argument with an impossible value; `argument` is its name."""

    def __init__(self, argument: str, problem: str, remedy: str = "") -> None:
        self.argument = argument
        super().__init__(f"{argument}: {problem}" + (f" {remedy}" if remedy else ""))


class UnknownValue(InvalidArgument):
    """A value that is not in the list of allowed values of `argument`; the text has the nearest allowed value."""

    def __init__(self, argument: str, value: object, known: Iterable[str]) -> None:
        self.value = value
        self.known = tuple(known)
        near = get_close_matches(str(value).lower(), self.known, 1)
        remedy = f"Did you mean {near[0]!r}?" if near else ""
        super().__init__(argument, f"{value!r} is not one of {', '.join(map(repr, self.known))}.", remedy)


# The package is not on PyPI: it is installed from a clone, or by a wheel as in docs/deploy.md.
_INSTALL = "pip install '.{}' --constraint dev/constraints.txt, in a clone"


def install_command(extra: str = "") -> str:
    """Return the command that installs the package, with an extra if one is given."""
    return _INSTALL.format(f"[{extra}]") + f" (or the wheel with its extra {extra})" if extra else _INSTALL.format("")


class MissingExtra(LakestreamError, Terminal, ImportError):
    """A package of an extra is missing; the text has the command for the installation."""

    def __init__(self, extra: str, missing: str | None) -> None:
        super().__init__(f"{missing} is not installed: {install_command(extra)}", name=missing)


class BadRecord(LakestreamError, Terminal):
    """A record that can't become a row without loss."""

    def __init__(self, topic: str, partition: int, offset: int, reason: str, remedy: str = "") -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.reason = reason
        super().__init__(f"{topic}[{partition}] offset {offset}: {reason}" + (f". {remedy}" if remedy else ""))


class AirflowTooOld(LakestreamError, Terminal):
    """The installed version of Airflow lacks a feature that the caller needs."""
