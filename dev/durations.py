"""The record of how long tests, fixtures and runs of pytest took: `artifacts/durations.json`, and a report of it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from dev.locks import file_lock
from dev.service import CHECKOUT

RECORD = CHECKOUT / "artifacts" / "durations.json"


@dataclass
class Durations:
    """Seconds by test and phase, by run and fixture (one for each start), and the newest run of each name."""

    tests: dict[str, dict[str, float]] = field(default_factory=dict)
    fixtures: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    runs: dict[str, dict[str, float | str]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path = RECORD) -> Durations:
        """Read the record; an empty one if there is no readable file."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return cls()

    def seconds_of_files(self) -> dict[str, float]:
        """Sum the tests of each file, in seconds."""
        sums: dict[str, float] = defaultdict(float)
        for test, phases in self.tests.items():
            sums[test.partition("::")[0]] += sum(phases.values())
        return sums


def record(
    name: str,
    tests: Mapping[str, Mapping[str, float]],
    fixtures: Mapping[str, Sequence[float]],
    seconds: float,
    path: Path = RECORD,
) -> None:
    """Add a run to the record, in one step; tests of files that are gone leave it.

    :param name: of the run; the newest run of a name replaces the one before.
    :param tests: seconds of each test by its phase: setup, call, teardown.
    :param fixtures: seconds of each start of a fixture.
    :param seconds: of the run as a whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(path.with_suffix(".lock")):
        known = Durations.read(path)
        known.tests |= {test: dict(phases) for test, phases in tests.items()}
        known.tests = {test: phases for test, phases in known.tests.items() if _file_is_there(test)}
        known.fixtures[name] = {fixture: list(starts) for fixture, starts in fixtures.items()}
        known.runs[name] = {"seconds": round(seconds, 1), "tests": len(tests), "at": datetime.now(UTC).isoformat()}
        scratch = path.with_suffix(".new")
        scratch.write_text(json.dumps(asdict(known), indent=1))
        scratch.replace(path)


def report(durations: Durations, count: int) -> Iterator[str]:
    """Yield the lines of a report: runs, the `count` tests that took longest, files, and starts of fixtures."""
    yield "runs of pytest:"
    for name, run in sorted(durations.runs.items(), key=lambda entry: str(entry[1]["at"])):
        yield f"  {run['seconds']:>9} s  {run['tests']:>6} tests  {name}"
    sums = {test: sum(phases.values()) for test, phases in durations.tests.items()}
    yield f"\nthe {count} longest of {len(sums)} tests, {sum(sums.values()):.0f} s together (setup, call, teardown):"
    for test in sorted(sums, key=lambda test: -sums[test])[:count]:
        phases = durations.tests[test]
        parts = "  ".join(f"{phases.get(phase, 0):7.1f}" for phase in ("setup", "call", "teardown"))
        yield f"  {sums[test]:7.1f} s  {parts}  {test}"
    files = durations.seconds_of_files()
    yield f"\nthe {count} longest of {len(files)} files:"
    yield from (f"  {files[file]:7.1f} s  {file}" for file in sorted(files, key=lambda file: -files[file])[:count])
    yield "\nfixtures, which start services among other things (starts, seconds together, longest start):"
    starts: dict[str, list[float]] = defaultdict(list)
    for of_run in durations.fixtures.values():
        for fixture, seconds in of_run.items():
            starts[fixture] += seconds
    for fixture in sorted(starts, key=lambda fixture: -sum(starts[fixture]))[:count]:
        seconds = starts[fixture]
        yield f"  {len(seconds):>5}  {sum(seconds):8.1f} s  {max(seconds):7.1f} s  {fixture}"


def _file_is_there(test: str) -> bool:
    return (CHECKOUT / test.partition("::")[0]).is_file()
