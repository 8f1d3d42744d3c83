"""`make bench-report`: docs/benchmarks.md and its chart, from what `make bench` has measured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dev.bench.bounds import by_row, undisturbed, verdicts
from dev.bench.figures import Figure
from dev.bench.lab import PEERS_PYTHON
from dev.bench.results import LATEST, Results
from dev.bench.rows import ROWS
from dev.bench.summary import markdown
from dev.service import CHECKOUT

PAGE = CHECKOUT / "docs" / "benchmarks.md"
CHART = CHECKOUT / "docs" / "images" / "benchmarks.png"

_PAGE = """\
# Benchmarks

Written by `make bench-report` from one run of `make bench` ({started}, {runs}).
All rows read the same topics on the same machine, in turn, round by round: {machine}.
Ratios are what carries over to another machine; rates do not.

![Records per second by peer and format](images/benchmarks.png)

## Table

{table}

- A row is measured from the first line of its work (`execute()`, the dlt pipeline, the start of the Spark query) to its
  end. The start of Python and Airflow is in no rate; that of Spark's JVM is where the row says so. kcat's whole run
  counts, half a second of it being kcat's own start and end.
- Rates are medians over the runs; the spread is the distance of the fastest run from the slowest, as a share of the
  median. MB are those of the records' values, uncompressed.
- Memory is the peak of the whole process tree over its whole life: in the PSS shared pages count once. It is that of
  each row's first run, which counts for nothing else where there are others: to look at it five times a second takes 6%
  of two cores from an extract by three processes. That run also warms the broker's JVM and the system's caches.
- CPU seconds are those of the process tree while the rate was measured.
- A commit is the manifests and the catalog's answer, median of the commits of a run. The first commit is the time of
  the table's first snapshot. Files are data files.

## What has to hold

{bounds}

### What bounds the extract

kcat counts bytes in C and keeps no record. `confluent-kafka` makes a Python object of each record, and each
of its parts (time, key, value, headers) is one more call: under one interpreter lock, while librdkafka's own threads,
Arrow and DuckDB work at the same time. The table's CPU seconds show the possible gain on all cores: the broker
takes its part of them too, and the first half second of a task goes to imports and connections, which is a
quarter of two million records' time. What was gained already: the cyclic garbage collector walks past records and
imports no more, librdkafka's pause for full queues is 20 ms and not a second, values go to Arrow as one buffer for each
chunk, of a size that stays in the processor's cache, messages are not asked for what is known of all of them (their
partition, that they are no error), a process for each core reads and decodes, and these wait for a first look at the
columns no longer than it takes. On two cores "n processes" is two. A bound that is missed stays missed, and is shown
above.

## How it was run

- Topics of 4 partitions, lz4, made by `dev/bench/topics.py`: the same clickstream events in each format, some 200 bytes
  as JSON (smaller in Avro and Protobuf); 1 KB, 1 MiB and 10 MiB with a text of random hexadecimal digits besides. Avro
  and Protobuf come in Confluent's framing, with their schemas in an Apicurio registry. One broker, on the same machine.
- Every run lands in an empty table of a catalog in SQLite with its warehouse on the local disk. A run whose table does
  not hold all records once is an error, not a row.
- Extract rows are real task runs of an Airflow (`dag.test()`), with the defaults of `KafkaExtractOperator` besides what
  the row says; "n processes" is its own choice of `parallelism`. With 1% bad records, the good ones land in the table
  and the others in its reject table.
- They, and those of `ConsumeFromTopicOperator`, run with what `pip install airflow-lakestream[protobuf]` brings. Where
  pandas is installed too, as with the extra for Spark, pyarrow imports it: 0.1 s more at the start of each task.
- `ConsumeFromTopicOperator` runs `apply_function_batch` with `json.loads`, `Table.from_pylist` and one PyIceberg append
  for each batch, without types for times and without the records' places; the number of records is configured, which
  spares it the wait for one more. Its appends get slower with every snapshot: a longer topic is read at a lower rate.
- dlt reads as its Kafka source does, a dict for each record, with its default of one worker for each step.
- Spark is a plain app on all cores, with `from_json` and Iceberg's own writer, `availableNow`, with its default memory:
  the first query of a session is cold, the second warm. "Start counted" is from the app's first line on.
- Slow peers read the first records of the same topic only: the column of records says how many.
{versions}
{left_out}"""

_LEDGER = """
## What the ledger, the audit, the commands and the page cost

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
    PAGE.write_text(render(results))
    print(f"{PAGE.relative_to(CHECKOUT)} is written.")
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
        bounds=_figures(list(verdicts(results.samples))),
        versions="- Versions: " + ", ".join(f"{name} {version}" for name, version in machine.items()) + ".",
        left_out=_left_out(results),
    )
    return page + (_LEDGER.format(figures=_figures(results.figures)) if results.figures else "")


def _runs(results: Results) -> str:
    counts = sorted({len(undisturbed(runs)) for runs in by_row(results.samples).values()})
    return f"runs of each row: {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))}"


def _left_out(results: Results) -> str:
    titles = {row.name: row.title for row in ROWS}
    # What a command printed belongs to the terminal; its first line says what happened.
    told = [f"- {titles.get(name, name)}: {why.splitlines()[0]}" for name, why in results.left_out.items()]
    return "\n## Left out\n\n" + "\n".join(told) + "\n" if told else ""


def _figures(figures: Sequence[Figure]) -> str:
    titles = {row.name: row.title for row in ROWS}
    lines = ["| what | measured | value | bound | |", "| --- | --- | --: | --- | --- |"]
    for figure in figures:
        verdict = {None: "", True: "holds", False: "**does not hold**"}[figure.holds]
        value = f"{figure.value:,.2f} {figure.unit if figure.unit != 'ratio' else ''}".strip()
        case = titles.get(figure.case, figure.case)
        lines.append(f"| {case} | {_measured(figure.metric, titles)} | {value} | {figure.bound or ''} | {verdict} |")
    return "\n".join(lines)


def _measured(metric: str, titles: dict[str, str]) -> str:
    """Write a ratio with the title of the other row."""
    what, _, over = metric.partition(" / ")
    return f"{what} / {titles[over]}" if over in titles else metric


if __name__ == "__main__":
    sys.exit(main())
