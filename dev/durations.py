"""The record of how long tests, fixtures and runs of pytest took: `artifacts/durations.json`, and a report of it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dev.service import CHECKOUT

RECORD = CHECKOUT / "artifacts" / "durations.json"


@dataclass(frozen=True)
class RunRecord:
    """One run of pytest: its beginning (seconds since the epoch), its seconds, its tests by suite and outcome.

    :param failed: ids of its tests that failed.
    """

    began: float
    seconds: float
    suites: Mapping[str, Mapping[str, int]]
    failed: Sequence[str] = field(default_factory=list)


@dataclass
class Durations:
    """Seconds by test and phase, by run and fixture (one for each start), and the newest run of each name."""

    tests: dict[str, dict[str, float]] = field(default_factory=dict)
    fixtures: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    runs: dict[str, RunRecord] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path = RECORD) -> Durations:
        """Read the record; an empty one if there is no readable file."""
        try:
            read = json.loads(path.read_text())
            runs = {name: RunRecord(**run) for name, run in read["runs"].items()}
            return cls(read["tests"], read["fixtures"], runs)
        except (OSError, ValueError, TypeError, KeyError):
            return cls()

    def seconds_of_files(self) -> dict[str, float]:
        """Sum the tests of each file, in seconds."""
        sums: dict[str, float] = defaultdict(float)
        for test, phases in self.tests.items():
            sums[test.partition("::")[0]] += sum(phases.values())
        return sums

    def add(
        self,
        name: str,
        run: RunRecord,
        tests: Mapping[str, Mapping[str, float]],
        fixtures: Mapping[str, Sequence[float]],
    ) -> None:
        """Add a run, which replaces the one of the same name; tests of files that are gone leave the record.

        :param tests: seconds of each test by its phase: setup, call, teardown.
        :param fixtures: seconds of each start of a fixture.
        """
        self.tests |= {test: dict(phases) for test, phases in tests.items()}
        self.tests = {test: phases for test, phases in self.tests.items() if _file_is_there(test)}
        self.fixtures[name] = {fixture: list(starts) for fixture, starts in fixtures.items()}
        self.runs[name] = run

    def write(self, path: Path = RECORD) -> None:
        """Write the record, in one step."""
        scratch = path.with_suffix(".new")
        scratch.write_text(json.dumps(asdict(self), indent=1))
        scratch.replace(path)


def report_durations(durations: Durations, count: int) -> Iterator[str]:
    """Yield the lines of a report: runs, the `count` tests that took longest, files, and starts of fixtures."""
    yield "runs of pytest:"
    for name, run in sorted(durations.runs.items(), key=lambda entry: entry[1].began):
        suites = ", ".join(f"{suite} {sum(counts.values())}" for suite, counts in sorted(run.suites.items()))
        yield f"  {run.seconds:9.1f} s  {name} ({suites})"
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
