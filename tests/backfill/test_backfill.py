"""`airflow backfill create` on a whole real Airflow: a day of hours, four at a time; again; and with a run killed.

Minutes long, so not part of `make test`: `make test SUITES=backfill`.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pendulum
import pytest

from dev.service import CHECKOUT
from dev.services.airflow import Airflow, database_settings
from dev.services.kafka import Kafka
from dev.stack import Stack
from tests.support.broker import Producing, Topics, poll_until
from tests.support.lake import assert_files_are_whole

DAG, TOPIC, TABLE = "clickstream_backfill", "clickstream", "lake.clickstream"
DAY = pendulum.now("UTC").start_of("day").subtract(days=2)
HOURS, PER_HOUR, PARTITIONS = 24, 40, 2
LAST_HOUR = DAY.add(hours=HOURS - 1)
LONG = 600


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack.owned("backfill") as stack:
        yield stack


@pytest.fixture(scope="module")
def kafka(stack: Stack) -> Kafka:
    kafka = stack.up_kafka()
    from confluent_kafka.admin import AdminClient

    config = kafka.client_config()
    Topics(AdminClient({**config, "log_level": 2}))(PARTITIONS, name=TOPIC)
    produce = Producing(config)
    # The last record lies behind the day: its last hour is over, too.
    count = HOURS * PER_HOUR + 1
    step = 3_600_000 // PER_HOUR
    for partition in range(PARTITIONS):
        stamps = [int(DAY.timestamp() * 1000) + n * step for n in range(count)]
        values = [b'{"timestamp":"%s","n":%d}' % (DAY.isoformat().encode(), n) for n in range(count)]
        produce(TOPIC, partition, values, timestamps=stamps)
    return kafka


@pytest.fixture(scope="module")
def airflow(stack: Stack, kafka: Kafka) -> Airflow:
    airflow = stack.up_airflow()
    poll_until(lambda: airflow.api.has_dag(DAG), f"{DAG} to be parsed", 180)
    airflow.api.unpause(DAG)
    return airflow


def backfill(airflow: Airflow, *options: str, until: pendulum.DateTime = LAST_HOUR) -> None:
    """Create a backfill of the day's hours, up to that of `until`, by Airflow's own command."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
    environment |= {
        "AIRFLOW_HOME": airflow.home,
        "AIRFLOW__CORE__DAGS_FOLDER": str(CHECKOUT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        **database_settings(airflow.database),
    }
    command = [sys.executable, "-m", "airflow", "backfill", "create", "--dag-id", DAG, "--max-active-runs", "4"]
    # One at a time, and the scheduler takes its time to call one completed.
    poll_until(
        lambda: all(b["completed_at"] for b in backfills(airflow)), "the backfill before to be completed", 120, every=1
    )
    command += ["--from-date", DAY.isoformat(), "--to-date", until.isoformat(), *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def backfills(airflow: Airflow) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = airflow.api.get(f"/backfills?dag_id={DAG}")["backfills"]
    return found


def hours(airflow: Airflow) -> list[dict[str, Any]]:
    """Return the task instances of the day's hours."""
    found: list[dict[str, Any]] = airflow.api.get(
        f"/dags/{DAG}/dagRuns/~/taskInstances?limit=100&logical_date_gte={DAY.isoformat().replace('+', '%2B')}"
        f"&logical_date_lt={DAY.add(hours=HOURS).isoformat().replace('+', '%2B')}"
    )["task_instances"]
    return found


def await_success(airflow: Airflow, since: str = "", count: int = HOURS) -> list[dict[str, Any]]:
    """Wait until so many hours have succeeded after `since`, and return the task instances."""

    def done() -> bool:
        tasks = hours(airflow)
        for task in tasks:
            assert task["state"] != "failed", "\n".join(airflow.api.task_log(task)[-30:])
        ended = [t for t in tasks if t["state"] == "success" and t["end_date"] > since]
        return len(ended) == count

    poll_until(done, f"{count} hours to be landed", LONG, every=1)
    return hours(airflow)


def assert_landed_once(airflow: Airflow) -> None:
    table = airflow.catalog().load_table(TABLE)
    columns = ("_kafka_partition", "_kafka_offset", "n")
    rows = table.scan(selected_fields=columns).to_arrow()
    found = Counter(zip(*(rows[name].to_pylist() for name in columns), strict=True))
    assert found == Counter((p, n, n) for p in range(PARTITIONS) for n in range(HOURS * PER_HOUR))
    assert_files_are_whole(table, leftovers_of_a_kill=True)


def most_at_once(tasks: list[dict[str, Any]]) -> int:
    edges = sorted(itertools.chain(((t["start_date"], 1) for t in tasks), ((t["end_date"], -1) for t in tasks)))
    return max(itertools.accumulate(step for _, step in edges))


@pytest.fixture(scope="module")
def first(airflow: Airflow) -> list[dict[str, Any]]:
    """Backfill the day for the first time.

    One hour goes first. Where several tasks at once are the first to report an asset for an alias, Airflow makes the
    asset for each of them, and fails all tasks but one once they have succeeded.
    """
    backfill(airflow, until=DAY)
    await_success(airflow, count=1)
    backfill(airflow)
    return await_success(airflow)


def test_a_day_of_hours_four_at_a_time_lands_once(airflow: Airflow, first: list[dict[str, Any]]) -> None:
    assert_landed_once(airflow)
    assert 2 <= most_at_once(first) <= 4


def test_backfilled_again_with_reprocessing_and_replace_it_has_the_same_rows(
    airflow: Airflow, first: list[dict[str, Any]]
) -> None:
    before = max(task["end_date"] for task in first)
    backfill(airflow, "--reprocess-behavior", "completed", "--dag-run-conf", '{"replace": true}')
    await_success(airflow, since=before)
    assert_landed_once(airflow)
    operations = [s.summary.operation.value for s in airflow.catalog().load_table(TABLE).snapshots() if s.summary]
    assert operations.count("overwrite") == HOURS


def test_a_run_killed_in_the_middle_and_cleared_has_the_same_rows(
    airflow: Airflow, first: list[dict[str, Any]]
) -> None:
    def running() -> dict[str, Any] | None:
        return next((t for t in hours(airflow) if t["state"] == "running" and t["pid"]), None)

    victim = first[5]
    clear(airflow, victim)
    poll_until(lambda: running() is not None, "a task to run", LONG, every=0.5)
    task = running()
    assert task is not None
    for pid in family(task["pid"]):
        os.kill(pid, signal.SIGKILL)
    gone = ("failed", "up_for_retry", "success")
    poll_until(lambda: state_of(airflow, task) in gone, "the killed task to be noticed", LONG)

    clear(airflow, task)
    poll_until(lambda: state_of(airflow, task) == "success", "the cleared task to land", LONG)
    assert_landed_once(airflow)


def clear(airflow: Airflow, task: dict[str, Any]) -> None:
    """Clear one task instance, as the button in the UI does."""
    body = {"dry_run": False, "only_failed": False, "task_ids": [task["task_id"]], "dag_run_id": task["dag_run_id"]}
    airflow.api.send("POST", f"/dags/{DAG}/clearTaskInstances", body)


def state_of(airflow: Airflow, task: dict[str, Any]) -> str:
    (found,) = [t for t in hours(airflow) if t["dag_run_id"] == task["dag_run_id"]]
    return str(found["state"])


def family(pid: int) -> list[int]:
    """Return a process and all that descend from it, the youngest first."""
    done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [*(one for child in done.stdout.split() for one in family(int(child))), pid]
