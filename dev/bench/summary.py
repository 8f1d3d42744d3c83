"""The table: a line for each row with the medians of its runs, for the terminal and as Markdown for the docs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dev.bench.bounds import by_row, median, undisturbed
from dev.bench.results import Results, Sample
from dev.bench.rows import ROWS

MIB = 2**20
NONE = "-"


@dataclass(frozen=True)
class Column:
    """A heading, and the text below for the runs of a row.

    :param is_in_docs: the column is in the documentation's table, too.
    """

    heading: str
    cell: Callable[[Sequence[Sample]], str]
    is_in_docs: bool = True


def _median(name: str, form: str, unit: float = 1) -> Callable[[Sequence[Sample]], str]:
    def cell(runs: Sequence[Sample]) -> str:
        value = median(runs, name)
        return NONE if value is None else format(value / unit, form)

    return cell


def spread(runs: Sequence[Sample]) -> float:
    """Return how far the rates of the runs lie apart, as a share of their median."""
    rates = [run.rate for run in undisturbed(runs)]
    return (max(rates) - min(rates)) / (median(runs, "rate") or 1)


def _megabytes_per_second(runs: Sequence[Sample]) -> str:
    rate = (median(runs, "rate") or 0) * runs[0].value_bytes / runs[0].records / 1e6
    return format(rate, ",.0f" if rate >= 10 else ",.1f")


def _cpu_per_million(runs: Sequence[Sample]) -> str:
    return format((median(runs, "cpu_seconds") or 0) / runs[0].records * 1e6, ",.2f")


COLUMNS = (
    Column("records", lambda runs: format(runs[0].records, ","), is_in_docs=False),
    Column("records/s", _median("rate", ",.0f")),
    Column("spread", lambda runs: f"{spread(runs):.0%}" if len(undisturbed(runs)) > 1 else NONE, is_in_docs=False),
    Column("MB/s", _megabytes_per_second, is_in_docs=False),
    Column("peak PSS, MiB", _median("peak_pss", ",.0f", MIB)),
    Column("peak RSS, MiB", _median("peak_rss", ",.0f", MIB), is_in_docs=False),
    Column("CPU s per million", _cpu_per_million),
    Column("files", _median("files", ",.0f"), is_in_docs=False),
    Column("commits", _median("commits", ",.0f"), is_in_docs=False),
    Column("a commit, ms", _median("commit_seconds", ",.0f", 0.001)),
    Column("first commit after, s", _median("first_commit_seconds", ",.2f")),
    Column("runs", lambda runs: str(len(undisturbed(runs))), is_in_docs=False),
)


def lines(results: Results) -> list[list[str]]:
    """Return the table: the headings, then a line for each row that was measured."""
    titles = {row.name: row.title for row in ROWS}
    table = [["", *(column.heading for column in COLUMNS)]]
    for name, runs in by_row(results.samples).items():
        table.append([titles[name], *(column.cell(runs) for column in COLUMNS)])
    return table


def print_table(results: Results) -> None:
    """Print the table, its columns as wide as they have to be."""
    table = lines(results)
    widths = [max(len(line[place]) for line in table) for place in range(len(table[0]))]
    for line in table:
        first, *others = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join([first, *(cell.strip().rjust(width) for cell, width in zip(others, widths[1:], strict=True))]))


def markdown(results: Results, *, whole: bool = False) -> str:
    """Return the table in Markdown, numbers to the right.

    :param whole: with the columns for maintainers, too.
    """
    kept = [0, *(place for place, column in enumerate(COLUMNS, 1) if whole or column.is_in_docs)]
    heading, *rest = ([line[place] for place in kept] for line in lines(results))
    rule = ["---", *("--:" for _ in heading[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in (heading, rule, *rest))
