"""`python -m dev.bench`: measure the rows of the table in turn, round by round; say which bounds hold.

    make bench ONLY=json,kcat RUNS=3      # rows, groups or peers by name, * for anything; --list shows them
    make bench AGAINST=v0.1.0 ONLY=json   # this checkout beside a commit or a wheel, in turn
    make bench AGAINST=HEAD~9 ONLY=parse  # the same for the import of an operator, and a DAG file

Each run is saved at once in `.bench/latest.json`, so an interrupt loses only the run it meets. `make bench-report`
writes docs/benchmarks.md and dev/BOUNDS.md from that file.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NoReturn

from dev.bench import against, audit, checksums, commands, commits, keys, mirror, page, pipelines, reads, scale, upkeep
from dev.bench.bounds import verdicts
from dev.bench.figures import Figure
from dev.bench.lab import Lab
from dev.bench.machine import describe
from dev.bench.peers import LandedWrong, resolve_peer
from dev.bench.process_tree import CommandFailed
from dev.bench.results import Results, keep_previous
from dev.bench.rows import ROWS, Row, groups
from dev.bench.summary import print_table
from dev.errors import BuildFailed
from dev.progress import Clock
from dev.stack import Stack

RECORDS = 2_000_000
# The first of them is watched: see `Measuring`.
RUNS = 3
# After so many minutes no further run begins. A whole one takes 28 on two idle cores.
BUDGET = 30
# As a shell reports a program that Ctrl-C ended.
INTERRUPTED = 130
# What the ledger costs over the years, a mirror, the commands, checksums, the page: figures of their own, no rows.
LEDGER = ("commits", "audit", "cdc", "commands", "checksums", "pipelines", "page")
# They take long by themselves, so they are measured only where ONLY names them.
ALONE = ("keys", "reads", "scale", "upkeep")


def main() -> int:
    """Measure, print, write; 1 when a bound does not hold."""
    args = _arguments()
    patterns = [word for word in args.only.split(",") if word]
    rows = [row for row in ROWS if not patterns or any(map(row.matches, patterns))]
    ledger = [name for name in (*LEDGER, *ALONE) if name in patterns or (not patterns and name in LEDGER)]
    known = {*LEDGER, *ALONE, *(against.PROGRAMS if args.against else ())}
    unknown = [word for word in patterns if word not in known and not any(row.matches(word) for row in ROWS)]
    if args.list or unknown:
        print("\n".join(f"{row.name:20} {row.title}" for row in ROWS), *LEDGER, *ALONE, sep="\n")
        for word in unknown:
            print(f"None of these rows, groups and peers is {word!r}.")
        return 2 if unknown else 0
    signal.signal(signal.SIGTERM, _end)
    clock = Clock()
    if args.against and patterns and set(patterns) <= against.PROGRAMS.keys():
        programs = [program for name in patterns for program in against.PROGRAMS[name]]
        return against.compare_programs(programs, args.against, clock, args.budget * 60)
    if args.against:
        return _compare(args, rows, clock)
    keep_previous()
    results = Results(describe(), args.records, datetime.now(UTC).isoformat(timespec="seconds"))
    results.save()
    try:
        _measure(args, rows, ledger, results, clock)
    except KeyboardInterrupt:
        clock.say("interrupted: what was measured so far stays in .bench/latest.json")
        _conclude(results)
        return INTERRUPTED
    return _conclude(results)


def _compare(args: argparse.Namespace, rows: Sequence[Row], clock: Clock) -> int:
    compared = [row for row in rows if row.peer == "extract"]
    if not compared:
        print("AGAINST compares rows of the extract; ONLY names none of them.")
        return 2
    with Stack.owned("bench", say=clock.say) as stack:
        lab = Lab(stack, stack.up_kafka(), args.records, args.records / RECORDS, clock.say)
        lab.folder.mkdir()
        return against.compare(compared, args.against, lab, clock, args.budget * 60)


def _measure(
    args: argparse.Namespace, rows: Sequence[Row], ledger: Sequence[str], results: Results, clock: Clock
) -> None:
    with Stack.owned("bench", say=clock.say) as stack:
        lab = Lab(stack, stack.up_kafka(), args.records, args.records / RECORDS, clock.say)
        lab.folder.mkdir()
        Measuring(lab, results, clock, args.budget * 60).measure(rows, args.runs)
        for name in ledger:
            if clock.elapsed > args.budget * 60:
                results.left_out[name] = f"{args.budget:g} minutes were over"
                clock.say(f"left out: {name}: {results.left_out[name]}")
            else:
                clock.say(f"measuring {name}")
                for figure in _measure_ledger(name, lab, args):
                    results.figures.append(figure)
                    results.save()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dev.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="rows, groups or peers by name, with commas; * for anything")
    parser.add_argument("--against", default="", help="a commit or a wheel: compare this checkout with it, in turn")
    parser.add_argument("--runs", type=int, default=RUNS, help="rounds, the first for memory; medians are reported")
    parser.add_argument("--records", type=int, default=RECORDS, help="how many records the 200 B topics hold")
    parser.add_argument("--audited", type=int, default=0, help="how many rows the audited table has")
    parser.add_argument("--gigabytes", type=float, default=1, help="the size of the table that `upkeep` compacts")
    parser.add_argument("--budget", type=float, default=BUDGET, help="minutes after which no further run begins")
    parser.add_argument("--list", action="store_true", help="name the rows")
    return parser.parse_args()


def _end(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _measure_ledger(name: str, lab: Lab, args: argparse.Namespace) -> Iterator[Figure]:
    measures: Mapping[str, Callable[[], Iterator[Figure]]] = {
        "commits": lambda: commits.measure(lab.folder / "commits", lab.say),
        "audit": lambda: audit.measure(lab, args.audited or int(audit.RECORDS * lab.scale)),
        "cdc": lambda: mirror.measure(lab.folder / "mirror", lab.say, lab.scale),
        "commands": lambda: commands.measure(lab),
        "checksums": lambda: checksums.measure(lab),
        "pipelines": lambda: pipelines.measure(lab.folder / "pipelines"),
        "page": lambda: page.measure(lab),
        "keys": lambda: keys.measure(lab, lab.scale),
        "reads": lambda: reads.measure(lab, lab.scale),
        "scale": lambda: scale.measure(lab, lab.scale),
        "upkeep": lambda: upkeep.measure(lab, args.gigabytes),
    }
    return measures[name]()


class Measuring:
    """Goes through the rows, round by round, so that all of them see the same machine.

    In the first round their memory is watched, which takes of their speed, and more where there is much of it; and the
    broker's JVM and the system's caches get warm. Times are those of the others, where a row has any.
    """

    def __init__(self, lab: Lab, results: Results, clock: Clock, budget: float) -> None:
        self._lab = lab
        self._results = results
        self._clock = clock
        self._budget = budget

    def measure(self, rows: Sequence[Row], runs: int) -> None:
        """Measure; what can't run is left out with its reason, and the others go on."""
        there = [group for group in groups(rows) if self._is_there(group)]
        for number in range(1, runs + 1):
            self._lab.watches = number == 1
            for group in there:
                if (group[0].runs or runs) < number or group[0].name in self._results.left_out:
                    continue
                if self._clock.elapsed > self._budget:
                    self._leave_out(group, f"{self._budget / 60:g} minutes were over before run {number}")
                else:
                    self._run(group, number)
        self._lab.watches = True

    def _is_there(self, group: Sequence[Row]) -> bool:
        missing = resolve_peer(group[0]).missing(group[0], self._lab)
        if missing is not None:
            self._leave_out(group, missing)
        return missing is None

    def _run(self, group: Sequence[Row], number: int) -> None:
        try:
            found = resolve_peer(group[0]).run(group, self._lab, number)
        except (CommandFailed, LandedWrong) as e:
            # One peer that fails says nothing about the others.
            self._leave_out(group, str(e))
            return
        for name, sample in found.items():
            watched = f", watched: {sample.peak_pss / 2**20:,.0f} MiB" if sample.watched else ""
            self._clock.say(f"run {number}: {name:20} {sample.rate:>12,.0f} records/s{watched}")
        self._results.samples += found.values()
        self._results.save()

    def _leave_out(self, group: Sequence[Row], why: str) -> None:
        for row in group:
            self._clock.say(f"left out: {row.name}: {why}")
            self._results.left_out[row.name] = why
        self._results.save()


def _conclude(results: Results) -> int:
    if results.samples:
        print_table(results)
    figures = [*verdicts(results.samples), *results.figures]
    print("\n".join(map(str, figures)))
    broken = [figure for figure in figures if figure.holds is False]
    measured = sum(figure.holds is not None for figure in figures)
    print(f"{measured - len(broken)} of {measured} bounds that were measured hold.")
    return 1 if broken else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BuildFailed as error:
        sys.exit(f"bench: {error}")
