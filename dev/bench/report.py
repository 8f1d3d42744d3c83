"""`make bench-report`: docs/benchmarks.md, its chart and dev/BOUNDS.md, from what `make bench` has measured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from dev.bench.bounds import by_row, undisturbed, verdicts
from dev.bench.figures import Figure
from dev.bench.lab import PEERS_PYTHON
from dev.bench.programs.measured import BATCH
from dev.bench.results import LATEST, Results
from dev.bench.rows import ROWS
from dev.bench.summary import markdown
from dev.service import CHECKOUT

PAGE = CHECKOUT / "docs" / "benchmarks.md"
BOUNDS = CHECKOUT / "dev" / "BOUNDS.md"
CHART = CHECKOUT / "docs" / "images" / "benchmarks.png"

_PAGE = """\
# Benchmarks

Speed, memory and cost of landings next to other tools: one run of `make bench` ({started}, {runs}), on {machine}.
`make bench-report` writes this page. All rows read the same topics in turn. Ratios hold on other machines; rates do
not.

![Records per second by peer and format](images/benchmarks.png)

## Table

{table}

- A row's time is from the first line of its work (`execute()`, the dlt pipeline, the start of the Spark query) to its
  end, without the start of Python, Airflow and, unless the row has "start counted", of Spark's JVM. kcat's own start
  and end count, half a second.
- Rates are medians over the runs. CPU seconds and peak PSS are of the process tree.
- A commit is the manifests and the catalog's answer, median.

## What bounds the extract

`confluent-kafka` makes Python objects of each record, under one interpreter lock; kcat counts bytes in C. The broker
needs the same cores, and the first half second of a task goes to imports. On two cores "n processes" is two.

## How it was run

- Topics of 4 partitions, lz4, on one broker on the same machine: the same clickstream events in each format, some 200
  bytes as JSON (smaller in Avro and Protobuf, with an Apicurio registry); 1 KB, 1 MiB and 10 MiB with random text.
- Every run lands in an empty table, with a catalog in SQLite and the warehouse on the local disk, and has to have all
  records once.
- Extract rows are task runs of an Airflow (`dag.test()`), with the operator's defaults except as the row specifies.
- `ConsumeFromTopicOperator` runs `apply_function_batch` with `json.loads`, `Table.from_pylist` and one PyIceberg
  append for each batch. Appends get slower with every snapshot.
- dlt reads as its Kafka source does, a dict for each record, with its defaults.
- Spark is a plain app on all cores, with `from_json`, Iceberg's writer and `availableNow`: the first query of a session
  is cold, the second warm.
{versions}
{left_out}"""

_BOUNDS = """\
# Bounds of the benchmark

What the rows of [the benchmark](../docs/benchmarks.md) have to hold next to each other, and the costs of each step:
`make bench-report` writes this page.

## Ratios

{bounds}

## Rows

The spread is (fastest - slowest) / median. Memory is of a row's first run, which is not timed if the row has more runs.

{table}

## Other costs

{figures}
"""

_LEDGER = """
## Other costs

Changes are merged into a mirror of 5,000,000 rows in one batch: updates and deletions of "any row", or, as "new rows
mostly", nine of ten of the newest tenth of the rows. "CPU" in microseconds is per change.

{figures}
"""


def main() -> int:
    """Write page and chart from the latest results, or from those of the file that is named."""
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else LATEST
    if not source.exists():
        print(f"{source} is not there: make bench writes it.")
        return 1
    results = Results.load(source)
    if not results.samples:
        print(f"{source} holds no run of any row yet.")
        return 1
    for page, text in ((PAGE, render(results)), (BOUNDS, render_bounds(results))):
        page.write_text(text)
        print(f"{page.relative_to(CHECKOUT)} is written.")
    if not PEERS_PYTHON.exists():
        print(f"No chart: {PEERS_PYTHON} is not there; make bench installs it.")
        return 1
    CHART.parent.mkdir(exist_ok=True)
    subprocess.run([PEERS_PYTHON, "-m", "dev.bench.chart", source, CHART], cwd=CHECKOUT, check=True)
    print(f"{CHART.relative_to(CHECKOUT)} is written.")
    return 0


def render(results: Results) -> str:
    """Return the page."""
    machine = dict(results.machine)
    page = _PAGE.format(
        started=results.started[:10],
        runs=_runs(results),
        machine=machine.pop("machine"),
        table=markdown(results),
        versions="- Versions: " + ", ".join(f"{name} {version}" for name, version in machine.items()) + ".",
        left_out=_left_out(results),
    )
    return page + (
        _LEDGER.format(figures=_other_costs(_without_steps(results.figures), is_for_users=True))
        if results.figures
        else ""
    )


def render_bounds(results: Results) -> str:
    """Return the maintainers' page: the bounds with their verdicts, and each step of a batch."""
    return _BOUNDS.format(
        bounds=_figures(list(verdicts(results.samples))),
        table=markdown(results, whole=True),
        figures=_other_costs(results.figures) or "None measured.",
    )


def _runs(results: Results) -> str:
    counts = sorted({len(undisturbed(runs)) for runs in by_row(results.samples).values()})
    return f"runs of each row: {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))}"


def _left_out(results: Results) -> str:
    titles = {row.name: row.title for row in ROWS}
    # What a command printed belongs to the terminal; its first line says what happened.
    told = [f"- {titles.get(name, name)}: {why.splitlines()[0]}" for name, why in results.left_out.items()]
    return "\n## Left out\n\n" + "\n".join(told) + "\n" if told else ""


def _figures(figures: Sequence[Figure], *, is_for_users: bool = False) -> str:
    titles = {row.name: row.title for row in ROWS}
    lines = ["| what | measured | value |", "| --- | --- | --: |"]
    if not is_for_users:
        lines = ["| what | measured | value | bound | |", "| --- | --- | --: | --- | --- |"]
    for figure in figures:
        verdict = {None: "", True: "holds", False: "**does not hold**"}[figure.holds]
        value = f"{figure.value:,.2f} {figure.unit if figure.unit != 'ratio' else ''}".strip()
        case = titles.get(figure.case, figure.case)
        bound = "" if is_for_users else f" {figure.bound or ''} | {verdict} |"
        lines.append(f"| {case} | {_measured(figure.metric, titles)} | {value} |{bound}")
    return "\n".join(lines)


def _without_steps(figures: Sequence[Figure]) -> list[Figure]:
    """Leave out the steps of a batch, each of which has a figure of its CPU, and keep the whole batch."""
    steps = {(one.case, one.metric.removesuffix(": CPU")) for one in figures if one.metric.endswith(": CPU")}
    kept = BATCH
    return [
        one for one in figures if (name := one.metric.removesuffix(": CPU")) == kept or (one.case, name) not in steps
    ]


def _other_costs(figures: Sequence[Figure], *, is_for_users: bool = False) -> str:
    """Write cases with the same metrics, one after the other, as columns of one table, and the others as lines.

    :param is_for_users: without the bounds, which `dev/BOUNDS.md` has.
    """
    cases: dict[str, list[Figure]] = {}
    for figure in figures:
        cases.setdefault(figure.case, []).append(figure)
    groups = [list(group) for _, group in groupby(cases.values(), lambda case: [figure.metric for figure in case])]
    single = [figure for group in groups if len(group) == 1 for figure in group[0]]
    return "\n\n".join(
        [
            *([_figures(single, is_for_users=is_for_users)] if single else []),
            *(_columns(group, is_for_users=is_for_users) for group in groups if len(group) > 1),
        ]
    )


def _columns(cases: Sequence[Sequence[Figure]], *, is_for_users: bool) -> str:
    """Write a column for each case, and a line for each metric."""
    lines = [
        "| | " + " | ".join(case[0].case for case in cases) + (" |" if is_for_users else " | bound |"),
        "| --- |" + " --: |" * len(cases) + ("" if is_for_users else " --- |"),
    ]
    for line in zip(*cases, strict=True):
        unit = "" if line[0].unit == "ratio" or line[0].unit in line[0].metric.split() else f", {line[0].unit}"
        failed = [figure.case for figure in line if figure.holds is False]
        bound = f"{line[0].bound}: " + (f"**does not hold** ({', '.join(failed)})" if failed else "holds")
        values = " | ".join(f"{figure.value:,.{0 if figure.value >= 1000 else 2}f}" for figure in line)
        bounds = "" if is_for_users else f" {bound if line[0].bound else ''} |"
        lines.append(f"| {line[0].metric.strip()}{unit} | {values} |{bounds}")
    return "\n".join(lines)


def _measured(metric: str, titles: dict[str, str]) -> str:
    """Write a ratio with the title of the other row."""
    what, _, over = metric.partition(" / ")
    return f"{what} / {titles[over]}" if over in titles else metric


if __name__ == "__main__":
    sys.exit(main())
