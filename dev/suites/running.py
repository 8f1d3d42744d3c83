"""Runs suites of tests, those that share services in one run of pytest, and reports each suite at the end."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from dev.durations import Durations, RunRecord
from dev.service import CHECKOUT
from dev.services.kubernetes import lacking
from dev.suites.choice import Choice, choice_of
from dev.suites.table import NIGHTLY, QUICK, SUITES, Suite
from dev.suites.tools import REACHED, known

NEWEST, OLDEST = ".venv/bin/python", ".venv-airflow-3.1/bin/python"
# Each worker takes whole files. Where one dies the run ends: pytest-xdist 3.8 would wait without end for its files.
_SPREAD = ("--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart", "0")
_ALONE = ("--timeout", "0")
# Pytest's exit code of a run that ended, with tests that failed.
_TESTS_FAILED = 1
# More tests that fail are no accident of a busy machine.
_MOST_AGAIN = 12
# Seconds beyond the end of the run's time (`LAKESTREAM_UNTIL`) in which a test may begin once more.
_TIME_AGAIN = 360


@dataclass(frozen=True)
class PytestRun:
    """One run of pytest: the suites that share its services.

    :param python: of the environment that it needs.
    :param only: the files of its suites that it takes; all of them if it is empty.
    :param spreads: whether several workers share the files.
    :param computes: whether its tests seldom wait: more workers than processors would only collect the tests again.
    """

    name: str
    suites: tuple[str, ...]
    python: str = NEWEST
    only: tuple[str, ...] = ()
    spreads: bool = False
    computes: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


# Within a run the suites of long files come first: as long as no durations are known, their files begin in this order.
RUNS = (
    PytestRun("units", ("units", "long"), spreads=True, computes=True),
    PytestRun(
        "services",
        (
            *("engines", "spark", "mirrors", "services", "matrix", "sensors"),
            *("dev", "dags", "integration", "faults", "long"),
        ),
        spreads=True,
    ),
    PytestRun("kubernetes", ("kubernetes",)),
    PytestRun("compat", ("compat",), OLDEST),
    PytestRun("start", ("start",)),
    PytestRun("install", ("install",)),
    PytestRun(
        "page on Airflow 3.1",
        ("page",),
        OLDEST,
        ("tests/page/test_streams.py",),
        environment={"LAKESTREAM_PICTURES": ".dev/pictures-3.1"},
    ),
    PytestRun("page", ("page",)),
    PytestRun("events", ("events",)),
    PytestRun("backfill", ("backfill",)),
)


@dataclass(frozen=True)
class SuiteResult:
    """The tests of one suite in one run, by outcome; a run that left no record has no tests."""

    suite: str
    run: str
    counts: Mapping[str, int]

    @property
    def passed(self) -> bool:
        """Whether tests ran, and none of them failed. A reached file may have no long test."""
        return not self.counts.get("failed", 0) and (self.counts.get("passed", 0) > 0 or self.suite == "long")

    def __str__(self) -> str:
        tests = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.counts.items())) or "no test ran"
        return f"  {'ok  ' if self.passed else 'RED '} {self.suite:<12} {tests}  ({self.run})"


@dataclass(frozen=True)
class PlayedRun:
    """Outcome of one run of pytest.

    :param code: pytest's exit code.
    :param failed: ids of the tests that failed.
    :param again: ids of tests that failed beside others, and passed once more by themselves.
    """

    run: PytestRun
    code: int
    results: Sequence[SuiteResult]
    failed: Sequence[str] = ()
    again: Sequence[str] = ()


def run_suites(names: Sequence[str], *, jobs: int, order: str | None = None, again: bool = False) -> bool:
    """Run suites, print a line for each of them, and return whether all passed.

    :param names: of the suites; "all" for every suite, "reached" for the files of each that the change can reach.
    :param jobs: workers of a run that spreads.
    :param order: a seed, for another order of the files; None for that of the last durations.
    :param again: whether tests that failed, if they are few, are tried once more when all else is over; those that pass
        then are named.
    :raises UnknownSuite: a name is not in the table; nothing has run.
    """
    chosen, choice = known(names), None
    if REACHED in names and (choice := choice_of(CHECKOUT)) is not None:
        print(*choice.lines(), sep="\n", flush=True)
        chosen = [suite for suite in chosen if suite.name in choice.names]
        chosen += [suite for suite in SUITES if choice.has_what_reaches(suite)]
    chosen, left_out = _without_unmade(chosen, names)
    # The suites and tests of a long night are left out of what many wait for, and named.
    nightly = not {*names} <= {*QUICK, REACHED}
    if not nightly:
        left_out += [f"  --   {one.name:<12} left to `make test-all`" for one in chosen if one.nightly]
        left_out += [f"  --   {glob} left to `make test-all`: {why}" for glob, why in NIGHTLY]
        chosen = [suite for suite in chosen if not suite.nightly]
    asked = [(run, of_run) for run in RUNS if (of_run := [suite for suite in chosen if suite.name in run.suites])]
    spread, alone = ([one for one in asked if one[0].spreads is spreads] for spreads in (True, False))
    first = spread[0][1] if spread else []
    left = [] if nightly else ["--nightly=without"]
    # Those that are no tests are targets of the Makefile themselves.
    at_once = {suite.name for suite in chosen if not suite.follows} | _targets(first)
    if not _make(at_once):
        return False

    def play(lane: Sequence[tuple[PytestRun, Sequence[Suite]]], kept: bool) -> list[PlayedRun]:
        return [
            _play(
                run, of_run, paths_of(run, of_run, choice), [*_options(run, of_run, choice, jobs, order), *left], kept
            )
            for run, of_run in lane
            if of_run is first or prepared.result()
        ]

    # Downloads and builds for later runs, and runs of one process, wait much, for the network, a browser, a scheduler:
    # they go on beside those that spread.
    with ThreadPoolExecutor(2) as beside:
        prepared = beside.submit(_make, _targets(suite for _, of_run in asked for suite in of_run) - at_once)
        waiting = beside.submit(play, alone, kept=bool(spread))
        played = [*play(spread, kept=False), *waiting.result()]
    if again:
        played = [_played_again(one) for one in played]
    results = [result for one in played for result in one.results]
    left_out += [f"  --   failed beside others, passed once more: {test}" for one in played for test in one.again]
    print("\nsuites:", *left_out, *results, sep="\n")
    return prepared.result() and all(one.code == 0 for one in played) and all(result.passed for result in results)


def _targets(suites: Iterable[Suite]) -> set[str]:
    """Return the targets of the Makefile that make what suites of tests need."""
    return {target for suite in suites for target in suite.prepared_by}


def _make(targets: set[str]) -> bool:
    """Make targets of the Makefile, and return whether each could be made."""
    make = ["make", "--no-print-directory", f"--jobs={os.cpu_count()}", *sorted(targets)]
    return not targets or subprocess.run(make, cwd=CHECKOUT, check=False).returncode == 0


def _play(
    run: PytestRun, suites: Sequence[Suite], paths: Sequence[str], options: Iterable[str], kept: bool
) -> PlayedRun:
    """Run pytest once on files or tests.

    :param kept: whether to print what it says in one piece at its end, as another run speaks meanwhile.
    """
    began = time.time()
    if not paths:
        return _played(run, suites, began, 0)
    command = [str(CHECKOUT / run.python), "-m", "pytest", *options, *paths]
    title = f"\n{run.name}: {' '.join(command[1:])}"
    if not kept:
        print(title, flush=True)
    environment = {**os.environ, **run.environment, "LAKESTREAM_RUN": run.name}
    out, error = (subprocess.PIPE, subprocess.STDOUT) if kept else (None, None)
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, stdout=out, stderr=error, text=True, check=False)
    if kept:
        print(f"{title}\n{done.stdout}", flush=True)
    return _played(run, suites, began, done.returncode)


def _played_again(one: PlayedRun) -> PlayedRun:
    """Try the tests of a run that failed once more, by themselves; return the run unchanged if one fails again."""
    if one.code != _TESTS_FAILED or len(one.failed) > _MOST_AGAIN:
        return one
    until = float(os.environ.get("LAKESTREAM_UNTIL") or "inf") + _TIME_AGAIN
    environment = {**one.run.environment, "LAKESTREAM_UNTIL": str(until)}
    run = replace(one.run, name=f"{one.run.name}, once more", environment=environment)
    suites = [suite for suite in SUITES if suite.name in {result.suite for result in one.results}]
    second = _play(run, suites, one.failed, _ALONE, kept=False)
    outcomes = {outcome for result in second.results for outcome in result.counts}
    if second.code != 0 or outcomes != {"passed"}:
        return one
    results = [replace(result, counts=_without_failed(result.counts)) for result in one.results]
    return replace(one, code=0, results=results, again=one.failed)


def _without_failed(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of a suite whose failed tests have passed once more."""
    others = {outcome: count for outcome, count in counts.items() if outcome != "failed"}
    return others | ({"passed once more": failed} if (failed := counts.get("failed", 0)) else {})


def _without_unmade(chosen: Sequence[Suite], names: Sequence[str]) -> tuple[list[Suite], list[str]]:
    """Leave out suites that nobody named and whose parts were not made yet; return the others, and a line for each."""
    unmade = [suite for suite in chosen if suite.where_made and suite.name not in names]
    if not unmade or not (missing := lacking()):
        return [*chosen], []
    why = f"not run here: it needs {', '.join(missing)}; made once by `make test SUITES="
    return [suite for suite in chosen if suite not in unmade], [
        f"  --   {one.name:<12} {why}{one.name}`" for one in unmade
    ]


def paths_of(run: PytestRun, suites: Sequence[Suite], choice: Choice | None) -> Sequence[str]:
    """Return the folders of suites in a run, or the files in them that a change can reach, each once."""
    found: list[str] = []
    of_run = [suite for suite in suites if suite.name in run.suites]
    for suite in sorted(of_run, key=lambda suite: run.suites.index(suite.name)):
        folders = suite.folders or _quick_folders(run)
        reached = choice.files(suite.name) if choice is not None else ()
        tests = [path for path in reached if path.startswith(folders) and PurePath(path).match("test_*.py")]
        found += folders if choice is None else tests
    return run.only if run.only and found else list(dict.fromkeys(found))


def _quick_folders(run: PytestRun) -> tuple[str, ...]:
    """Return the folders of a run that have long tests."""
    return tuple(folder for suite in SUITES if suite.name in {*QUICK} & {*run.suites} for folder in suite.folders)


def _options(
    run: PytestRun, suites: Sequence[Suite], choice: Choice | None, jobs: int, order: str | None
) -> Iterator[str]:
    names = {suite.name for suite in suites}
    quick = [suite for suite in QUICK if suite in run.suites]
    if quick:
        long = "with" if names & set(quick) else "only"
        # Files that a change reaches run whole.
        yield f"--long={long if 'long' in names or choice is not None else 'without'}"
    if order is not None:
        yield f"--order={order}"
    workers = min(jobs, os.cpu_count() or 1) if run.computes else jobs
    yield from ("--numprocesses", str(workers), *_SPREAD) if run.spreads else _ALONE


def _played(run: PytestRun, suites: Sequence[Suite], began: float, code: int) -> PlayedRun:
    """Return what the run recorded of its suites; nothing for those that it did not get to."""
    recorded = Durations.read().runs.get(run.name)
    if recorded is None or recorded.began < began - 1:
        recorded = RunRecord(began, 0, {})
    results = [SuiteResult(suite.name, run.name, recorded.suites.get(suite.name, {})) for suite in suites]
    return PlayedRun(run, code, results, recorded.failed)
