"""`make bench AGAINST=<commit or wheel>`: another build and this checkout in turn, until their ratio is known.

Rates of two runs of `make bench` can't be compared: a machine differs from itself by more than a change does. Here each
block runs the other build, this checkout, this checkout, the other build, so that a drift of the machine takes as much
from both; a block gives one ratio. Blocks go on until the interval of 95% around their mean (of logarithms, by
Student's t) is narrow, and lies on one side of the bound.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from dev.bench.builds import install_commit_or_wheel, install_working_tree, source_of
from dev.bench.lab import Installation, Lab
from dev.bench.lake import NAMESPACE, new_lake
from dev.bench.peers import resolve_peer
from dev.bench.process_tree import run_measured
from dev.bench.programs.measured import BATCH
from dev.bench.results import Sample
from dev.bench.rows import Row
from dev.progress import Clock
from dev.service import CHECKOUT

# A row may be this much slower than the other build, and use as much more CPU.
SLOWER = 0.03
# The ratio is known within this much, to either side.
NARROW = 0.015
FEWEST, MOST = 3, 15
_WORDS = {True: "holds", False: "SLOWER", None: "NOT DECIDED"}
# Student's t for 95% to both sides, by degrees of freedom from 1 on.
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14)


@dataclass
class Ratio:
    """How many times as fast as the other build this checkout is, or how sparing of CPU: one figure for each block."""

    logs: list[float] = field(default_factory=list)

    def add(self, ours: Sequence[float], others: Sequence[float]) -> None:
        """Add a block: the rates of both builds."""
        self.logs.append(statistics.fmean(map(math.log, ours)) - statistics.fmean(map(math.log, others)))

    @property
    def value(self) -> float:
        """The geometric mean over the blocks."""
        return math.exp(statistics.fmean(self.logs))

    @property
    def half_width(self) -> float:
        """Half of the 95% interval, as a share of the ratio; infinite below two blocks."""
        count = len(self.logs)
        if count < 2:
            return math.inf
        return _T[min(count - 1, len(_T)) - 1] * statistics.stdev(self.logs) / math.sqrt(count)

    @property
    def holds(self) -> bool | None:
        """Whether the ratio is above the bound; None while the interval is wide, or has the bound in it."""
        if len(self.logs) < FEWEST or self.half_width > NARROW:
            return None
        above = statistics.fmean(self.logs) - math.log(1 - SLOWER)
        return None if abs(above) < self.half_width else above > 0

    def __str__(self) -> str:
        return f"{self.value:.3f} +/- {self.half_width:.3f}" if self.logs else "not measured"


@dataclass
class Comparison:
    """One row, measured of both builds."""

    row: Row
    rate: Ratio = field(default_factory=Ratio)
    cpu: Ratio = field(default_factory=Ratio)
    ours: list[Sample] = field(default_factory=list)
    others: list[Sample] = field(default_factory=list)
    watched: list[Sample] = field(default_factory=list)
    """The run before the blocks, whose memory was watched: of the other build, of this checkout."""

    def add_block(self, ours: Sequence[Sample], others: Sequence[Sample]) -> None:
        """Add the runs of one block."""
        self.ours += ours
        self.others += others
        self.rate.add([run.rate for run in ours], [run.rate for run in others])
        self.cpu.add([1 / run.cpu_seconds for run in ours], [1 / run.cpu_seconds for run in others])

    @property
    def holds(self) -> bool | None:
        """Whether neither rate nor CPU got worse; None if one of them is not decided."""
        verdicts = (self.rate.holds, self.cpu.holds)
        return False if False in verdicts else None if None in verdicts else True

    @property
    def line(self) -> str:
        """The row as it is printed."""
        other, this = (_cpu_per_million(runs) for runs in (self.others, self.ours))
        memory = " -> ".join(f"{run.peak_pss / 2**20:,.0f}" for run in self.watched)
        return (
            f"{self.row.name:14} rate {self.rate}   CPU {self.cpu}   {other:.2f} -> {this:.2f} CPU s per million   "
            f"{memory} MiB   {len(self.rate.logs)} blocks   {_WORDS[self.holds]}"
        )


def compare(rows: Sequence[Row], ref: str, lab: Lab, clock: Clock, budget: float) -> int:
    """Measure the rows of both builds; print the ratios; return 1 unless each row holds.

    :param budget: seconds after which no further block begins.
    """
    other, this = install_commit_or_wheel(ref, clock.say), install_working_tree(clock.say)
    found = [_compare(row, other, this, lab, clock, budget) for row in rows]
    print(f"This checkout as a multiple of {ref}, with half of the 95% interval; below {1 - SLOWER:g} is slower.")
    print("\n".join(one.line for one in found))
    return 0 if all(one.holds for one in found) else 1


def _compare(row: Row, other: Installation, this: Installation, lab: Lab, clock: Clock, budget: float) -> Comparison:
    run = _runner(row, lab)
    found = Comparison(row)
    lab.watches = True
    # They also fill the caches of broker and system, and compile.
    found.watched += (run(other), run(this))
    lab.watches = False
    while found.holds is None and len(found.rate.logs) < MOST and clock.elapsed < budget:
        first, second, third, fourth = (run(where) for where in (other, this, this, other))
        found.add_block((second, third), (first, fourth))
        clock.say(f"{row.name}: rate {found.rate}, CPU {found.cpu}")
    return found


def compare_programs(programs: Sequence[Program], ref: str, clock: Clock, budget: float) -> int:
    """Run programs with the sources of both commits in turn; print the ratios of CPU; return 1 unless all hold.

    One environment imports either source, so that nothing has to be built.

    :param budget: seconds after which no further block begins.
    """
    other, this, lines, all_hold = source_of(ref), CHECKOUT, [], True
    for program in programs:
        # They also compile.
        program.measure(other), program.measure(this)
        found = {name: Ratio() for name in program.names}
        while (
            any(one.holds is None for one in found.values())
            and len(found[program.names[0]].logs) < MOST
            and clock.elapsed < budget
        ):
            first, second, third, fourth = (program.measure(where) for where in (other, this, this, other))
            for at, ratio in enumerate(found.values()):
                ratio.add([1 / second[at], 1 / third[at]], [1 / first[at], 1 / fourth[at]])
            clock.say(", ".join(f"{name} {ratio}" for name, ratio in found.items()))
        for name, ratio in found.items():
            lines.append(f"{name:28} {ratio}   {len(ratio.logs)} blocks   {_WORDS[ratio.holds]}")
            all_hold &= ratio.holds is True
    print(f"This checkout as a multiple of {ref}, with half of the 95% interval; below {1 - SLOWER:g} is slower.")
    print("\n".join(lines))
    return 0 if all_hold else 1


@dataclass(frozen=True)
class Program:
    """A program that measures the package of a source, in a process of its own."""

    names: tuple[str, ...]
    """Names of the figures."""
    measure: Callable[[Path], tuple[float, ...]]
    """Returns the CPU seconds of a source, a figure for each name."""


def parse(source: Path) -> tuple[float, ...]:
    """Return the CPU seconds of an operator's import, after Airflow's own, and of a DAG, in a new process."""
    return tuple(map(float, _run(source, "parsing", str(source)).split()))


def commit(source: Path, snapshots: int) -> tuple[float, ...]:
    """Return the median CPU seconds of a landing on a table of so many snapshots."""
    return (float(_run(source, "committing", str(source), str(snapshots))),)


def merge(source: Path, changes: int, rows: int = 1_000_000) -> tuple[float, ...]:
    """Return the median CPU seconds of a merge of changes into a mirror, by the source's own program."""
    with tempfile.TemporaryDirectory() as folder, new_lake(Path(folder) / "lake") as lake:
        result = lake.folder / "result.json"
        options = {"result": result, "table": f"{NAMESPACE}.orders", "folder": lake.folder, "rows": rows}
        words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
        _run(source, "mirroring", *words, "--changes", str(changes), "--batches", "7", own=True)
        batches = json.loads(result.read_text())["batches"][1:]
    return (statistics.median(batch[BATCH][1] for batch in batches),)


PROGRAMS: Mapping[str, Sequence[Program]] = {
    "parse": [Program(("import", "parse"), parse)],
    "commits": [
        *(Program((f"commit at {count} snapshots",), partial(commit, snapshots=count)) for count in (10, 1000)),
        *(Program((f"merge of {count:,} changes",), partial(merge, changes=count)) for count in (10_000, 200_000)),
    ],
}


def _run(source: Path, program: str, *words: str, own: bool = False) -> str:
    """Run a program with the package of a source, and return the last line of its output.

    :param own: the source's own program, which knows the inside of its package; else this checkout's.
    """
    file = (source if own else CHECKOUT) / "dev" / "bench" / "programs" / f"{program}.py"
    # Else a source whose code is not compiled would be compiled in each run.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = run_measured([sys.executable, str(file), *words], {**env, "PYTHONPATH": str(source)}, watch=False)
    return (done.output.strip().splitlines() or [""])[-1]


def _runner(row: Row, lab: Lab) -> Callable[[Installation], Sample]:
    number = 0

    def run(where: Installation) -> Sample:
        nonlocal number
        number += 1
        lab.user = where
        return resolve_peer(row).run([row], lab, number)[row.name]

    return run


def _cpu_per_million(runs: Sequence[Sample]) -> float:
    return statistics.median(run.cpu_seconds / run.records for run in runs) * 1e6
