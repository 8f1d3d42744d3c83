"""Checks of a landing's rows before they show on main: what can be asked, and what is told when one fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_lakestream.core.ports import Conflict, RowSchema
from airflow_lakestream.exceptions import LakestreamError, Terminal

# The relation with the landing's rows, by which a statement reads them.
RELATION = "landing"
# What to do about rows that did not pass, where the task itself reads the records.
AGAIN = (
    "Mend what writes the records, the decoding or the check, and run the task again (clear it): it reads the same "
    "offsets anew, and replaces the branch."
)


@dataclass(frozen=True, slots=True)
class RowCount:
    """How many rows a landing may have: fixed, and as a multiple of what the last week's landings had on average."""

    least: int | None = None
    most: int | None = None
    least_of_week: float | None = None
    most_of_week: float | None = None

    @property
    def asks_history(self) -> bool:
        """Whether the landings before count."""
        return self.least_of_week is not None or self.most_of_week is not None

    def problem(self, rows: int, usual: float | None) -> str | None:
        """Say what is wrong with a number of rows; None if nothing is. Without landings before, only what is fixed."""
        if self.least is not None and rows < self.least:
            return f"{rows} rows, fewer than {self.least}"
        if self.most is not None and rows > self.most:
            return f"{rows} rows, more than {self.most}"
        if usual is None:
            return None
        if self.least_of_week is not None and rows < self.least_of_week * usual:
            return f"{rows} rows, fewer than {self.least_of_week:g} times the last week's mean of {usual:.0f}"
        if self.most_of_week is not None and rows > self.most_of_week * usual:
            return f"{rows} rows, more than {self.most_of_week:g} times the last week's mean of {usual:.0f}"
        return None


@dataclass(frozen=True, slots=True)
class Checks:
    """What has to hold for the rows of each commit.

    :param statements: each has to return no rows.
    :param not_null: columns without NULL.
    :param unique: columns that together are a key.
    :param freshness: the most seconds since the newest record's time.
    """

    statements: tuple[str, ...] = ()
    not_null: tuple[str, ...] = ()
    unique: tuple[str, ...] = ()
    row_count: RowCount | None = None
    freshness: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A check that failed; `rows` are a few of those that broke it."""

    check: str
    problem: str
    rows: Sequence[str] = ()

    def __str__(self) -> str:
        return f"{self.check}: {self.problem}" + "".join(f"\n    {row}" for row in self.rows)


@dataclass(frozen=True, slots=True)
class Written:
    """A landing's rows as they are to be committed: Parquet files with these columns.

    :param files: the size of each, by its path.
    :param open: opens one for reading.
    :param rows: how many rows there have to be.
    :param usual: how many the last week's landings had on average; None if there are none, or nobody asks.
    :param values: of columns that a file's partition has and the file itself lacks, as text, by the file's path.
    """

    columns: RowSchema
    files: Mapping[str, int]
    open: Callable[[str], Any]
    rows: int
    usual: float | None = None
    values: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)


class Auditor(Protocol):
    """Looks at a landing's rows before they show."""

    checks: Checks

    def check_columns(self, columns: RowSchema) -> None:
        """Raise InvalidArgument where the checks don't fit the columns."""

    def findings(self, written: Written) -> Sequence[Finding]:
        """Return the checks that failed. Raises InvalidArgument, and what reading the files raises."""


class ChecksFailed(LakestreamError, Terminal):
    """Rows did not pass: they are on a branch, or there are none, and the ledger is where it was."""

    def __init__(
        self, table: str, offsets: str, branch: str | None, findings: Sequence[Finding], remedy: str = AGAIN
    ) -> None:
        self.table, self.branch, self.findings = table, branch, tuple(findings)
        failed = "\n".join(f"  {finding}" for finding in findings)
        where = "there are no rows to look at."
        if branch is not None:
            where = f"they are kept on the branch {branch} of the table, which engines read by its name."
        super().__init__(
            f"{table}: the rows of {offsets} did not pass {len(findings)} of the checks, so main and the ledger are as "
            f"they were; {where}\n{failed}\n{remedy}"
        )


class BranchDropped(Conflict):
    """The branch with a landing's rows was dropped before they were published."""

    def __init__(self, table: str, branch: str) -> None:
        super().__init__(f"{table}: the branch {branch} was dropped before its rows were published.")
