"""`make bench AGAINST=<commit or wheel>`: another build and this checkout in turn, until their ratio is known.

Rates of two runs of `make bench` can't be compared: a machine differs from itself by more than a change does. Here each
block runs the other build, this checkout, this checkout, the other build, so that a drift of the machine takes as much
from both; a block gives one ratio. Blocks go on until the interval of 95% around their mean (of logarithms, by
Student's t) is narrow, and lies on one side of the bound.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dev.bench.builds import install_commit_or_wheel, install_working_tree, source_of
from dev.bench.lab import Installation, Lab
from dev.bench.peers import resolve_peer
from dev.bench.process_tree import run_measured
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
        return f"{self.value:.3f} +/- {self.half_width:.3f}"


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


def compare_parsing(ref: str, clock: Clock) -> int:
    """Import an operator and parse a DAG of both commits in turn; print the ratios; return 1 unless both hold.

    One environment imports either source, so that nothing has to be built. The CPU of a new process is measured, after
    Airflow's own import.
    """
    other, this = source_of(ref), CHECKOUT
    # They also compile.
    parse(other), parse(this)
    found = {"import": Ratio(), "parse": Ratio()}
    while any(one.holds is None for one in found.values()) and len(found["import"].logs) < MOST:
        first, second, third, fourth = (parse(where) for where in (other, this, this, other))
        for at, ratio in enumerate(found.values()):
            ratio.add([1 / second[at], 1 / third[at]], [1 / first[at], 1 / fourth[at]])
        clock.say(", ".join(f"{name} {ratio}" for name, ratio in found.items()))
    print(f"This checkout as a multiple of {ref}, with half of the 95% interval; below {1 - SLOWER:g} is slower.")
    for name, ratio in found.items():
        print(f"{name:14} {ratio}   {len(ratio.logs)} blocks   {_WORDS[ratio.holds]}")
    return 0 if all(one.holds for one in found.values()) else 1


def parse(source: Path) -> tuple[float, float]:
    """Return the CPU seconds of the import and of the DAG, in a new process."""
    program = [sys.executable, str(CHECKOUT / "dev" / "bench" / "programs" / "parsing.py"), str(source)]
    # Else a source whose code is not compiled would be compiled in each run.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = run_measured(program, {**env, "PYTHONPATH": str(source)}, watch=False)
    imported, parsed = done.output.strip().splitlines()[-1].split()
    return float(imported), float(parsed)


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
