"""Checks of a landing's rows before publication, and errors of failed checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from airflow_lakestream.exceptions import LakestreamError, Terminal

if TYPE_CHECKING:
    from airflow_lakestream.core.ports import RowSchema

# The relation with the landing's rows, by which a statement reads them.
RELATION = "landing"
# Remedy for failed checks if the task itself reads the records.
AGAIN = (
    "Mend what writes the records, the decoding or the check, and run the task again (clear it): it reads the same "
    "offsets again, and replaces the branch."
)


@dataclass(frozen=True, slots=True)
class RowCountCheck:
    """Allowed number of rows of a landing, fixed or as a multiple of the last week's mean.

    :param least: the fewest rows allowed; None for no such limit, as for each limit.
    :param most: the most rows allowed.
    :param least_of_week: the fewest rows allowed, as a multiple of the mean.
    :param most_of_week: the most rows allowed, as a multiple of the mean.
    """

    least: int | None = None
    most: int | None = None
    least_of_week: float | None = None
    most_of_week: float | None = None

    @property
    def asks_history(self) -> bool:
        """Whether the check needs the counts of earlier landings."""
        return self.least_of_week is not None or self.most_of_week is not None

    def problem(self, rows: int, usual: float | None) -> str | None:
        """Return the problem with a number of rows, or None.

        :param usual: the mean number of rows of the last week's landings; None if unknown, and then only fixed limits
            apply.
        """
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
class LandingChecks:
    """Conditions for the rows of each commit.

    :param statements: SQL statements, each of which must return no rows.
    :param not_null: columns without NULL.
    :param unique: columns that together are a key.
    :param freshness: the maximal number of seconds since the newest record's time.
    """

    statements: tuple[str, ...] = ()
    not_null: tuple[str, ...] = ()
    unique: tuple[str, ...] = ()
    row_count: RowCountCheck | None = None
    freshness: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A failed check: its name, the problem, and a few of the failing rows as text."""

    check: str
    problem: str
    rows: Sequence[str] = ()

    def __str__(self) -> str:
        return f"{self.check}: {self.problem}" + "".join(f"\n    {row}" for row in self.rows)


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows of a landing before the commit, in Parquet files with these columns.

    :param files: the size of each file, by path.
    :param open: opens a file for reading.
    :param rows: the expected number of rows.
    :param usual: the mean number of rows of the last week's landings; None without landings, or if no check needs it.
    :param values: values of partition columns that a file lacks, as text, by the file's path.
    """

    columns: RowSchema
    files: Mapping[str, int]
    open: Callable[[str], Any]
    rows: int
    usual: float | None = None
    values: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)


class RowChecker(Protocol):
    """Checker of a landing's rows before publication."""

    checks: LandingChecks

    def check_columns(self, columns: RowSchema) -> None:
        """Raise InvalidArgument if the checks don't fit the columns."""

    def findings(self, written: StagedRows) -> Sequence[Finding]:
        """Return the failed checks. Raises InvalidArgument, and errors of reading the files."""


class ChecksFailed(LakestreamError, Terminal):
    """Rows of a landing failed checks. The rows are on a branch, if any, and the ledger is unchanged."""

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
