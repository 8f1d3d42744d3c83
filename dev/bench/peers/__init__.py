"""Who is measured: one module each, with `missing(lab)`, and `run(rows, lab, number)` for the rows of one group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Protocol, cast

from dev.bench.lab import Lab
from dev.bench.results import Sample
from dev.bench.rows import Row


class Peer(Protocol):
    """What a peer's module has."""

    def missing(self, row: Row, lab: Lab) -> str | None:
        """Return what is not here that it needs, with the remedy; None when all is."""

    def run(self, rows: Sequence[Row], lab: Lab, number: int) -> Mapping[str, Sample]:
        """Read the topic once; return what was seen, by row. Raises CommandFailed, LandedWrong."""


class LandedWrong(Exception):
    """A run left out records, or doubled them: its speed means nothing."""

    def __init__(self, row: Row, expected: int, landed: int, what: str = "records", where: str = "landed") -> None:
        super().__init__(f"{row.name}: of {expected:,} {what} {landed:,} {where}")


def resolve_peer(row: Row) -> Peer:
    """Return the module that runs the row."""
    return cast("Peer", import_module(f"dev.bench.peers.{row.peer}"))
