"""What has to hold: ratios between rows of one run, and limits of single rows; with the verdicts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dev.bench.figures import Figure
from dev.bench.results import Sample
from dev.bench.rows import ROWS

MIB = 2**20
MOST_PSS_MIB = 768
FIRST_COMMIT_S = 3


@dataclass(frozen=True)
class Ratio:
    """The rate of one row over that of another is at least so much; with None it only informs.

    :param most_cpu: instead, its CPU seconds over those of the other are at most so much.
    """

    row: str
    over: str
    least: float | None
    most_cpu: float | None = None


RATIOS = (
    Ratio("json", "kcat", 0.5),
    Ratio("json", "spark-warm", 3),
    Ratio("json", "spark-cold", None),
    Ratio("json", "spark-start", None),
    Ratio("json", "dlt", 25),
    Ratio("json", "airflow-user", 5),
    Ratio("json", "airflow-user-10000", None),
    Ratio("raw", "kcat", 0.6),
    Ratio("avro", "json", 1),
    Ratio("protobuf", "json", 1),
    Ratio("json-bad", "json", 0.7),
    Ratio("json", "json-1", None),
    Ratio("app-json-warm", "spark-warm", 1.3),
    Ratio("app-json-cold", "spark-cold", 1.3),
    Ratio("app-json-start", "spark-start", None),
    Ratio("app-avro-warm", "app-json-warm", 1),
    Ratio("app-protobuf-warm", "app-json-warm", 1),
    Ratio("app-json-warm", "json", None),
    Ratio("app-joined-warm", "spark-joined-warm", None, most_cpu=2 / 3),
    Ratio("fan-out-executors", "fan-out-one", 1.5),
    Ratio("connect", "connect-unproven", None),
    Ratio("flink", "flink-unproven", None),
)
# Where nothing but the start counts: a large topic's first commit comes when `max_batch_bytes` is full.
FIRST_COMMIT_ROW = "json-few"
# What the operator adds to the very same app.
SUBMIT_ROWS, SUBMIT_S = ("submit", "submit-bare"), 3


def undisturbed(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return the runs whose times count: those that were not watched, or all of a row that was only watched."""
    return [sample for sample in samples if not sample.watched] or samples


def median(samples: Sequence[Sample], name: str) -> float | None:
    """Return the median of a column over the runs that it counts of; None where the row has no such column."""
    is_memory = name in ("peak_rss", "peak_pss")
    counted = [sample for sample in samples if sample.watched] if is_memory else undisturbed(samples)
    values = [value for sample in counted if (value := getattr(sample, name)) is not None]
    return statistics.median(values) if values else None


def by_row(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """Return the samples of each row, in the table's order."""
    found = {row.name: [sample for sample in samples if sample.row == row.name] for row in ROWS}
    return {name: runs for name, runs in found.items() if runs}


def verdicts(samples: Sequence[Sample]) -> Iterator[Figure]:
    """Yield a figure for each bound whose rows were measured."""
    rows = by_row(samples)
    for ratio in RATIOS:
        if ratio.row in rows and ratio.over in rows:
            yield _ratio(ratio, rows)
    ours = [sample for row in ROWS if row.peer == "extract" for sample in rows.get(row.name, ())]
    if ours:
        # One that is too large says enough, and the table has them all.
        largest = max(ours, key=lambda sample: sample.peak_pss)
        peak = largest.peak_pss / MIB
        metric = "peak PSS, the largest of all extract rows"
        yield Figure(largest.row, metric, peak, "MiB", f"< {MOST_PSS_MIB}", peak < MOST_PSS_MIB)
    if FIRST_COMMIT_ROW in rows:
        seconds = median(rows[FIRST_COMMIT_ROW], "first_commit_seconds") or 0.0
        holds = seconds < FIRST_COMMIT_S
        yield Figure(FIRST_COMMIT_ROW, "execute() to first commit", seconds, "s", f"< {FIRST_COMMIT_S}", holds)
    if all(name in rows for name in SUBMIT_ROWS):
        operator, bare = (median(rows[name], "seconds") or 0.0 for name in SUBMIT_ROWS)
        added = operator - bare
        yield Figure("submit", "seconds added to spark-submit", added, "s", f"< {SUBMIT_S}", added < SUBMIT_S)


def _ratio(ratio: Ratio, rows: Mapping[str, Sequence[Sample]]) -> Figure:
    over = f"/ {ratio.over}"
    if (most := ratio.most_cpu) is not None:
        value = _over(ratio, rows, "cpu_seconds")
        return Figure(ratio.row, f"CPU {over}", value, "ratio", f"<= {most:.2f}", value <= most)
    value = _over(ratio, rows, "rate")
    if ratio.least is None:
        return Figure(ratio.row, f"rate {over}", value, "ratio")
    return Figure(ratio.row, f"rate {over}", value, "ratio", f">= {ratio.least:g}", value >= ratio.least)


def _over(ratio: Ratio, rows: Mapping[str, Sequence[Sample]], name: str) -> float:
    return (median(rows[ratio.row], name) or 0) / (median(rows[ratio.over], name) or 1)
