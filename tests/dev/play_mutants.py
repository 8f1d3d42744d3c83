"""Plays the mutants: `make mutants`, or `make mutants ONLY=lease` for the rows whose name has that word."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from dev.errors import DevError
from dev.service import CHECKOUT
from dev.suites.graph import files_in
from dev.suites.running import NEWEST, OLDEST
from dev.suites.tools import known, missing
from tests.dev import mirror_mends, table_mends, value_mends
from tests.dev.crossing_mutants import MUTANTS, CrossingMutant

# What git does not have, and tests use: linked into the copy.
_LINKED = (".dev", ".venv", ".venv-airflow-3.1", ".site")
_PYTHONS: Mapping[str, str] = {"compat": OLDEST}
# How pytest begins what an assertion, `pytest.raises`, `pytest.fail` or the fault harness says, and an error of the
# package's own where the test expects none.
_ASSERTED = ("assert", "AssertionError", "Failed:", "tests.support.fault_oracle.Violation:", "airflow_lakestream.")
ALL = (*MUTANTS, *table_mends.MENDS, *value_mends.MENDS, *mirror_mends.MENDS)


@dataclass(frozen=True)
class Ran:
    """A run of a test: how many of its cases passed, why others failed, and whether a fixture or an import did."""

    passed: int
    failed: tuple[str, ...]
    is_error: bool

    @classmethod
    def read(cls, report: Path, test: str) -> Ran:
        """Read of pytest's report what is about a test; without a report nothing passed."""
        cases = [one for one in _cases(report) if _is_of(one, test)]
        passed = sum(not {one.tag for one in case} & {"failure", "error", "skipped"} for case in cases)
        failed = tuple(one.get("message", "") for case in cases for one in case.iter("failure"))
        return cls(passed, failed, not cases or any(case.find("error") is not None for case in cases))

    @property
    def holds(self) -> bool:
        """Whether some passed and none failed."""
        return self.passed > 0 and not self.failed and not self.is_error

    @property
    def asserted(self) -> str:
        """The first line of the assertion that failed; empty without one."""
        return "" if self.is_error else next((_line(one) for one in self.failed if one.startswith(_ASSERTED)), "")

    def __str__(self) -> str:
        if self.failed:
            return _line(self.failed[0])
        return "no test, or an error before it" if self.is_error else f"{self.passed} passed"


def _line(text: str) -> str:
    return text.partition("\n")[0][:120]


def _cases(report: Path) -> list[ElementTree.Element]:
    return list(ElementTree.parse(report).iter("testcase")) if report.is_file() else []


def _is_of(case: ElementTree.Element, test: str) -> bool:
    """Tell whether a case of a report is one of a test, by its node id with parameters or without."""
    file, _, wanted = test.partition("::")
    name = case.get("name", "")
    in_file = case.get("classname") == file.removesuffix(".py").replace("/", ".")
    return in_file and wanted in (name, name.partition("[")[0])


class MutantPlay:
    """A copy of the checkout in which one mutant after the other is put and taken out; the checkout stays as it is.

    :param mutants: all that are played.
    """

    def __init__(self, copy: Path, mutants: Sequence[CrossingMutant]) -> None:
        self._copy = copy
        self._mutants = mutants
        self._whole: dict[str, Ran] = {}
        for path in files_in(CHECKOUT):
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / path, copy / path)
        for name in _LINKED:
            if (CHECKOUT / name).exists():
                (copy / name).symlink_to(CHECKOUT / name)

    def play(self, mutant: CrossingMutant) -> tuple[bool, str]:
        """Return whether a mutant is caught by a test that passes without it, and what was seen."""
        whole = self._without(mutant)
        if not whole.holds:
            return False, f"without the mutant: {whole}"
        path = self._copy / mutant.file
        path.write_text(mutant.applied_to(path.read_text()))
        began = time.monotonic()
        try:
            self._run(mutant.suite, "--maxfail=1", mutant.test)
        finally:
            shutil.copy2(CHECKOUT / mutant.file, path)
        ran = Ran.read(self._report, mutant.test)
        return bool(ran.asserted), f"{time.monotonic() - began:.0f} s | {ran}"

    def _without(self, mutant: CrossingMutant) -> Ran:
        """Return how a test runs without any mutant: those of a suite run together."""
        if mutant.test not in self._whole:
            tests = list(dict.fromkeys(one.test for one in self._mutants if one.suite == mutant.suite))
            self._run(mutant.suite, *tests)
            self._whole |= {test: Ran.read(self._report, test) for test in tests}
        return self._whole[mutant.test]

    @property
    def _report(self) -> Path:
        return self._copy / "report.xml"

    def _run(self, suite: str, *arguments: str) -> None:
        # The environment knows its own checkout: the copy's modules come before, in subprocesses as well.
        environment = {**os.environ, "PYTHONPATH": str(self._copy)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._report.unlink(missing_ok=True)
        command = [
            str(CHECKOUT / _PYTHONS.get(suite, NEWEST)),
            "-m",
            "pytest",
            f"--junitxml={self._report}",
            *arguments,
        ]
        with (CHECKOUT / "artifacts" / "mutants.log").open("a") as output:
            subprocess.run(command, cwd=self._copy, env=environment, stdout=output, stderr=output, check=False)


def play(chosen: Sequence[CrossingMutant]) -> Iterator[bool]:
    """Play mutants, print a line for each, and yield whether it was caught."""
    (CHECKOUT / "artifacts").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        ground = MutantPlay(Path(folder), chosen)
        for one in chosen:
            caught, said = ground.play(one)
            print(f"{'caught' if caught else 'MISSED'} | {one.name} | {one.suite} | {one.test} | {said}", flush=True)
            yield caught


def main(argv: Sequence[str] | None = None) -> int:
    """Play the mutants that are asked for, and return 1 if any was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.dev.play_mutants", description=__doc__)
    parser.add_argument("--only", default="", help="words of the name; default: all")
    arguments = parser.parse_args(argv)
    chosen = [one for one in ALL if arguments.only in one.name]
    if not chosen:
        print(f"No mutant's name has {arguments.only!r}: {'; '.join(one.name for one in ALL)}.", file=sys.stderr)
        return 2
    try:
        suites = known([one.suite for one in chosen])
        problems = list(missing(suites))
    except DevError as error:
        problems = [str(error)]
    if problems:
        print(*problems, sep="\n", file=sys.stderr)
        return 2
    made = sorted({target for suite in suites for target in suite.prepared_by})
    if made and subprocess.run(["make", "--no-print-directory", *made], cwd=CHECKOUT, check=False).returncode:
        return 2
    caught = list(play(chosen))
    print(f"{sum(caught)} of {len(caught)} mutants are caught by the suites that the graph chose.")
    return 0 if all(caught) else 1


if __name__ == "__main__":
    sys.exit(main())
