"""What was measured, as it is kept in `.bench/latest.json`: written after every run, so that an interrupt loses one."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dev.bench.figures import Figure
from dev.service import CHECKOUT

FOLDER = CHECKOUT / ".bench"
LATEST = FOLDER / "latest.json"
PREVIOUS = FOLDER / "previous.json"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One run of one row.

    :param seconds: from the first line of the work to its end; the start of Python, Airflow or a JVM is not in it,
        unless the row says so.
    :param peak_pss: bytes, of the whole process tree over its whole life; 0 where it was not watched.
    :param watched: its memory was watched, which made it slower; see `undisturbed`.
    :param commit_seconds: the median of its commits: manifests written, and the catalog's answer.
    :param first_commit_seconds: from the first line of the work to the first snapshot.
    """

    row: str
    run: int
    records: int
    value_bytes: int
    seconds: float
    cpu_seconds: float
    peak_rss: int
    peak_pss: int
    files: int | None = None
    commits: int | None = None
    commit_seconds: float | None = None
    first_commit_seconds: float | None = None
    watched: bool = True

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.seconds


@dataclass
class Results:
    """All that one `make bench` has measured so far."""

    machine: dict[str, str]
    records: int
    started: str
    samples: list[Sample] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Why a row, or a run of it, was not measured."""

    def save(self, path: Path = LATEST) -> None:
        """Write all of it, in one step."""
        path.parent.mkdir(exist_ok=True)
        scratch = path.with_suffix(".new")
        scratch.write_text(json.dumps(asdict(self), indent=1) + "\n")
        scratch.replace(path)

    @classmethod
    def load(cls, path: Path = LATEST) -> Results:
        """Read what was saved."""
        kept: dict[str, Any] = json.loads(path.read_text())
        kept["samples"] = [Sample(**sample) for sample in kept["samples"]]
        kept["figures"] = [Figure(**figure) for figure in kept["figures"]]
        return cls(**kept)


def keep_previous() -> None:
    """Put the results of an earlier run aside, so that those of two runs never mix."""
    if LATEST.exists():
        LATEST.replace(PREVIOUS)
