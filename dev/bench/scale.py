"""What more executors are good for: landings and merges by one and by two, with the driver's CPU seconds apart.

A standalone cluster of two workers, one core each. A session gets warm with small landings or first batches, then
what is measured follows: no figure has the start of Python, of a JVM or of an executor in it. Spark's own `MERGE INTO`
merges the same events into a twin of the mirror, in the same run.

By itself: `make bench ONLY=scale`, more than an hour.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import Any

from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.policies import TableFormat
from airflow_lakestream.delta.protocol import read_commit
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.spark.app_config import AppConfig
from dev.bench.commits import Bookkeeper
from dev.bench.figures import Figure
from dev.bench.lab import Lab
from dev.bench.lake import CATALOG, NAMESPACE, Lake
from dev.bench.peers.landing_app import configuration
from dev.bench.peers.spark import missing
from dev.bench.rows import DDL, ROWS
from dev.bench.shop import changes
from dev.bench.topics import Filled
from dev.sources.sending import Sender

EXECUTORS = (1, 2)
FILES = 10_000
MIRRORS = (5_000_000, 25_000_000)
CHANGES = (10_000, 200_000)
# That the largest mirror remembers while it gets the most changes.
DELETIONS = 10_000_000
# The first ones warm the session: until then, most of the driver's CPU is the JVM's compiler.
BATCHES, WARM = 7, 4
# Of the CPU seconds that the driver may have of a landing of two million records, or of a merge of 200,000 changes.
DRIVERS_SHARE = 0.1
DRIVERS_MIB = 300
MODES = ("copy-on-write", "merge-on-read")
# Delta has but one way; measured with the smaller mirror.
DELTA = "Delta"
# As docs/spark.md advises for clusters, where the driver's JVM has little to do. Not for the peer, which plans in it.
_JAVA = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


@dataclass(frozen=True)
class Cluster:
    """The master's address, and the workers' processes."""

    master: str
    workers: Sequence[int]

    def settings(self, executors: int) -> dict[str, str]:
        """Return what an application asks for: so many executors of one core."""
        return {
            "spark.master": self.master,
            "spark.executor.cores": "1",
            "spark.cores.max": str(executors),
            "spark.executor.memory": "1g",
        }

    @property
    def env(self) -> Mapping[str, str]:
        """The environment of a driver: executors run this Python."""
        return {**os.environ, "PYSPARK_PYTHON": sys.executable}

    @property
    def words(self) -> str:
        """The processes, as the programs are told."""
        return ",".join(map(str, self.workers))


def measure(lab: Lab, scale: float) -> Iterator[Figure]:
    """Measure all of it; yield the figures. Raises AssertionError if something was landed wrongly."""
    if (lacking := missing(ROWS[0], lab)) is not None:
        raise AssertionError(lacking)
    master, workers = lab.stack.up_spark_workers(2, cores=1)
    cluster = Cluster(master.master, [worker.pid for worker in workers])
    yield from _landings(lab, cluster)
    for rows in MIRRORS:
        for count in CHANGES:
            most = (rows, count) == (MIRRORS[-1], CHANGES[-1])
            deletions = int(DELETIONS * scale) if most else 0
            yield from _merges(lab, cluster, int(rows * scale), max(100, int(count * scale)), deletions)


def _landings(lab: Lab, cluster: Cluster) -> Iterator[Figure]:
    topics = {name: lab.topic(name) for name in ("json", "json-wide")}
    many = [lab.topic(f"json-many-{number:02}") for number in range(50)]
    together = Filled("^json-many-.*", sum(one.records for one in many), 0)
    for executors in EXECUTORS:
        of = f"{executors} executor{'s' if executors > 1 else ''}"
        cases: Mapping[str, tuple[Filled, str]] = {
            f"{topics['json'].records:,} records": (topics["json"], "landed"),
            f"a topic of 1,000 partitions, {topics['json-wide'].records:,} records": (topics["json-wide"], "landed"),
            f"{len(many)} topics by regex, {together.records:,} records": (together, "{topic}"),
            f"a table of {FILES:,} files, {topics['json'].records:,} records": (topics["json"], "filled"),
        }
        for number, (case, (topic, table)) in enumerate(cases.items()):
            lab.say(f"{of}: {case}")
            with lab.lake(f"scale-{executors}-{number}") as lake:
                if table == "filled":
                    keeper = Bookkeeper(lake.folder, table=f"{NAMESPACE}.{table}")
                    keeper.seed(1, FILES)
                told = _run(lab, cluster, lake, executors, topic, table)
            yield from _figures(f"{case}, {of}", told["runs"][-1:], bound=number == 0)


def _run(lab: Lab, cluster: Cluster, lake: Lake, executors: int, topic: Filled, table: str) -> dict[str, Any]:
    # Both know the columns: a new table's are not guessed while one measures.
    given = {"schema": DDL, "schema_evolution": "add" if table == "filled" else "none"}
    warm = {f"warm-{number}": (lab.topic("json-short"), f"warm_{number}") for number in range(WARM)}
    wanted = {**warm, "measured": (topic, table)}
    files = []
    for name, (one, into) in wanted.items():
        config = configuration(lab, lake, one, {**given, "table": f"{NAMESPACE}.{into}"})
        files.append(_write(config, lake, name, cluster.settings(executors)))
    told, _ = lab.run_program("scaled_app", {"configs": ",".join(files), "workers": cluster.words}, cluster.env)
    return told


def _write(config: AppConfig, lake: Lake, name: str, settings: Mapping[str, str]) -> str:
    spark = {**config.spark, **_JAVA, **settings}
    one = replace(config, spark=spark, checkpoint_location=f"{config.checkpoint_location}-{name}")
    return str(one.write(lake.folder / f"{name}.json"))


def _merges(lab: Lab, cluster: Cluster, rows: int, count: int, deletions: int) -> Iterator[Figure]:
    case = f"{count:,} changes of {rows:,} rows"
    case += f", {deletions:,} deletions remembered" if deletions else ""
    topic = Filled(f"shop.public.orders-{rows}-{count}", count * BATCHES, 0)
    offsets = _send(lab, topic, rows, count)
    modes = MODES if "merge_mode" in {one.name for one in fields(MirrorConfig)} else MODES[:1]
    ways = (*modes, *((DELTA,) if rows <= MIRRORS[0] else ()))
    with lab.lake(f"scale-mirror-{rows}-{count}") as lake:
        lab.say(f"a mirror of {rows:,} rows")
        names = {
            (way, executors): f"{lake.folder}/{way}-{executors}"
            if way == DELTA
            else f"{NAMESPACE}.{way.replace('-', '_')}_{executors}"
            for way in ways
            for executors in EXECUTORS
        }
        arguments = {"folder": lake.folder, "table": f"{NAMESPACE}.orders", "topic": topic.name, "rows": rows}
        arguments |= {"twins": ",".join([*names.values(), f"{NAMESPACE}.peer"]), "changes": count}
        arguments |= {"batches": BATCHES, "deletions": deletions}
        lab.run_program("mirrored_table", arguments, os.environ)
        cpu: dict[tuple[str, int], float] = {}
        written: dict[tuple[str, int], float] = {}
        for (mode, executors), table in names.items():
            of = f"{mode}, {executors} executor{'s' if executors > 1 else ''}"
            lab.say(f"{case}: {of}")
            more = {"merge_mode": mode} if modes[1:] and mode != DELTA else {}
            told = _mirror(lab, cluster, lake, topic, table, executors, offsets, more)
            runs = told["runs"][WARM:]
            yield from _figures(f"{case}, {of}", runs, bound=count >= CHANGES[1] * lab.scale)
            peak = told["python_peak_mib"]
            yield Figure(
                f"{case}, {of}", "driver's Python above start", peak, "MiB", f"<= {DRIVERS_MIB}", peak <= DRIVERS_MIB
            )
            written[mode, executors], cpu[mode, executors] = _written(lake, table), _total(runs)
            yield Figure(f"{case}, {of}", "written by a batch", written[mode, executors], "MB")
        # What is asked of a large mirror: of a small one, more is Spark's own work than the merge's.
        small, is_large = count < CHANGES[1] * lab.scale, rows >= MIRRORS[-1] * lab.scale
        for executors in EXECUTORS if modes[1:] else ():
            new, old = ((mode, executors) for mode in reversed(MODES))
            more, most = f"{case}, {executors} executors", 1 / 3 if small else 1 / 2
            ratio = cpu[new] / cpu[old]
            bound = (f"<= {most:.2f}", ratio <= most) if is_large else (None, None)
            yield Figure(more, "merge-on-read / copy-on-write, CPU", ratio, "ratio", *bound)
            ratio = written[new] / written[old]
            bound = ("<= 0.01", ratio <= 0.01) if small else (None, None)
            yield Figure(more, "merge-on-read / copy-on-write, bytes", ratio, "ratio", *bound)
        lab.say(f"{case}: MERGE INTO")
        peer = _total(_merge_into(lab, cluster, lake)["runs"][WARM:])
        yield Figure(f"{case}, MERGE INTO", "CPU of all processes", peer, "s")
        ours = min(seconds for (way, _), seconds in cpu.items() if way != DELTA)
        bound = (">= 3", peer / ours >= 3) if is_large else (None, None)
        yield Figure(case, "MERGE INTO / best of ours, CPU", peer / ours, "ratio", *bound)


def _mirror(
    lab: Lab,
    cluster: Cluster,
    lake: Lake,
    topic: Filled,
    table: str,
    executors: int,
    offsets: int,
    more: Mapping[str, Any],
) -> dict[str, Any]:
    landing = {"table": table, "key": ["id"], **more}
    limits = {"max_batches": BATCHES, "max_offsets_per_trigger": offsets}
    app = f"cdc_to_{TableFormat.of(table)}"
    config = configuration(lab, lake, topic, landing, app, **limits)
    path = _write(config, lake, Path(table).name, cluster.settings(executors))
    arguments = {"configs": path, "workers": cluster.words}
    return lab.run_program("scaled_app", arguments, cluster.env)[0]


def _merge_into(lab: Lab, cluster: Cluster, lake: Lake) -> dict[str, Any]:
    config = configuration(lab, lake, Filled("none", 0, 0), {"table": f"{NAMESPACE}.peer"})
    catalog = f"spark.sql.catalog.{CATALOG}"
    settings = {
        **config.spark,
        **cluster.settings(EXECUTORS[-1]),
        "spark.sql.extensions": _EXTENSIONS,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": f"jdbc:sqlite:{lake.database}",
        f"{catalog}.warehouse": lake.uri,
        f"{catalog}.jdbc.schema-version": "V1",
    }
    path = lake.folder / "merge.json"
    path.write_text(json.dumps(settings))
    events = ",".join(str(lake.folder / f"events-{batch}.parquet") for batch in range(BATCHES))
    arguments = {"settings": path, "workers": cluster.words, "table": f"{NAMESPACE}.peer", "events": events}
    return lab.run_program("merge_into", arguments, cluster.env)[0]


def _send(lab: Lab, topic: Filled, rows: int, count: int) -> int:
    """Fill a topic of one partition with the changes of all batches; return the records of a batch."""
    sender, sent = Sender(lab.kafka.client_config(), topic.name, 1), 0
    try:
        for value in changes(rows, topic.records, recent=False):
            sender.send(value, b"")
            sent += 1
            if not sent % 1_000:
                sender.poll()
    finally:
        sender.close()
    return sent // BATCHES + 1


def _written(lake: Lake, table: str) -> float:
    if TableFormat.of(table) is TableFormat.DELTA:
        opened = DeltaStorage().open(table)
        assert opened is not None
        actions = read_commit(DeltaStorage().store(table), opened.version) or ()
        return sum(action["add"]["size"] for action in actions if "add" in action) / 1e6
    head = lake.catalog().load_table(table).current_snapshot()
    assert head is not None
    assert head.summary is not None
    return int(head.summary["added-files-size"] or 0) / 1e6


def _total(runs: Sequence[Mapping[str, float]]) -> float:
    return median(run["python"] + run["jvm"] + run["executors"] for run in runs)


def _figures(case: str, runs: Sequence[Mapping[str, float]], *, bound: bool) -> Iterator[Figure]:
    yield Figure(case, "seconds", median(run["seconds"] for run in runs), "s")
    for who, words in (("python", "driver's Python"), ("jvm", "driver's JVM"), ("executors", "executors")):
        yield Figure(case, f"CPU of {words}", median(run[who] for run in runs), "s")
    share = median((run["python"] + run["jvm"]) / (run["python"] + run["jvm"] + run["executors"]) for run in runs)
    verdict = (f"<= {DRIVERS_SHARE}", share <= DRIVERS_SHARE) if bound else (None, None)
    yield Figure(case, "driver's share of the CPU", share, "ratio", *verdict)
