"""What deferred sensors cost a triggerer: the CPU of Airflow's own one, idle and with all of them waiting.

    python -m dev.bench.sensors -n 1000 --subjects 20 --minutes 3

Half of the sensors look at consumer groups, half at ledgers of tables; all are behind and poll every 60 seconds.
`--tasks-per-dag` says how they are spread over DAGs: to start a trigger, Airflow reads its whole DAG. With
`--looks-only` their triggers run in this process, without Airflow's triggerer. Shares are of CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from dev.bench.airflow_home import airflow_env
from dev.bench.lake import NAMESPACE, Lake
from dev.bench.machine import describe
from dev.service import CHECKOUT
from dev.services.airflow import database_of
from dev.services.kafka import Kafka
from dev.stack import Stack

PARTITIONS = 4
RECORDS = 200
POLL = 60.0
_DAG = """
from airflow.sdk import DAG
from airflow_lakestream.sensors.checkpoint_lag import CheckpointLagSensor

with DAG({dag_id!r}, schedule=None) as dag:
    for n, arguments in enumerate({arguments!r}):
        CheckpointLagSensor(task_id=f"sense_{{n}}", deferrable=True, poke_interval={poll}, **arguments)
"""


def subjects(kafka: Kafka, lake: Lake, count: int) -> list[dict[str, Any]]:
    """Make topics with consumers that are behind; return what a sensor of each is given."""
    admin = AdminClient(kafka.client_config())
    names = [f"topic-{n}" for n in range(count)]
    for made in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        made.result(60)
    time.sleep(2)  # leaders of new partitions; nothing here is measured yet
    found = []
    for n, name in enumerate(names):
        _produce(kafka, name)
        if n % 2:
            _commit(admin, f"g{n}", name)
            found.append({"topic": name, "group_id": f"g{n}"})
        else:
            _land(kafka, lake, name, f"{NAMESPACE}.t{n}")
            _produce(kafka, name)
            found.append({"topic": name, "table": f"{NAMESPACE}.t{n}", "consumer_group": "g"})
    return found


def _produce(kafka: Kafka, topic: str) -> None:
    producer = Producer(kafka.client_config())
    for n in range(RECORDS * PARTITIONS):
        producer.produce(topic, json.dumps({"id": n}), partition=n % PARTITIONS)
    producer.flush(60)


def _commit(admin: AdminClient, group: str, topic: str) -> None:
    offsets = [TopicPartition(topic, p, RECORDS // 2) for p in range(PARTITIONS)]
    while True:
        answer = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, offsets)])[group].result(60)
        if all(one.error is None for one in answer.topic_partitions):
            return
        time.sleep(0.5)  # the first group of a broker waits for its coordinator


def _land(kafka: Kafka, lake: Lake, topic: str, table: str) -> None:
    from airflow_lakestream.core.landing.algorithm import land
    from airflow_lakestream.run.job import ExtractConfig, build_job

    config = ExtractConfig(topic=topic, table=table, consumer_group="g", schema="id bigint")
    land(build_job(config, kafka.client_config(), lake.catalog(), run_id=topic))


def defer_all(folder: Path, arguments: list[dict[str, Any]], per_dag: int) -> None:
    """Put runs of DAGs of so many sensors each into the database, whose tasks have deferred."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager

    DagBundlesManager().sync_bundles_to_db()
    for first in range(0, len(arguments), per_dag):
        _defer(folder, f"sensors_{first}", arguments[first : first + per_dag])


def _defer(folder: Path, dag_id: str, arguments: list[dict[str, Any]]) -> None:
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models.dagbag import DBDagBag
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState, TaskInstanceState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    file = folder / f"{dag_id}.py"
    file.write_text(_DAG.format(dag_id=dag_id, arguments=arguments, poll=POLL))
    bag = DagBag(str(file))
    if bag.import_errors:
        raise AssertionError(bag.import_errors)
    sync_bag_to_db(bag, "dags-folder", None)
    now = datetime.now(UTC)
    with create_session() as session:
        run = (
            DBDagBag()
            .get_latest_version_of_dag(dag_id, session=session)
            .create_dagrun(
                run_id="measured",
                logical_date=now,
                data_interval=(now, now),
                run_after=now,
                conf={},
                run_type=DagRunType.MANUAL,
                triggered_by=DagRunTriggeredByType.TEST,
                state=DagRunState.RUNNING,
                session=session,
            )
        )
        for ti in run.get_task_instances(session=session):
            sensor = bag.dags[dag_id].get_task(ti.task_id)
            trigger = Trigger("airflow_lakestream.triggers.look.LookTrigger", sensor._trigger_kwargs(time.time()))
            session.add(trigger)
            session.flush()
            ti.trigger_id, ti.state, ti.start_date = trigger.id, TaskInstanceState.DEFERRED, now
            ti.next_method, ti.next_kwargs, ti.try_number = "execute_complete", {}, 1
            ti.trigger_timeout = now + timedelta(days=7)
            # The triggerer writes to the same file, and waits no longer than a minute for its turn.
            session.commit()


def await_running(count: int, log: Path) -> None:
    """Wait until the triggerer, which counts them each minute, has so many triggers."""
    deadline = time.monotonic() + 900
    while f" {count} triggers currently running" not in log.read_text(errors="replace"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not {count} triggers within 15 minutes:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(1)  # between two looks at the log


def settle(process: psutil.Process) -> None:
    """Wait until what comes up is up: two spans in a row that take about the same."""
    before, after = 9.0, 5.0
    while abs(before - after) > 0.05:
        before, after = after, cores(process, 20)[0]


def cores(process: psutil.Process, seconds: float) -> tuple[float, float]:
    """Return (the share of a core that a process tree takes over a while, its memory in MiB)."""
    before, began = used(process), time.monotonic()
    time.sleep(seconds)  # this is the measured while
    share = (used(process) - before) / (time.monotonic() - began)
    memory = sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))
    return share, memory / 2**20


def used(process: psutil.Process) -> float:
    """Return the CPU seconds that a process tree has taken."""
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system for one in times)


async def looks_alone(count: int, given: list[dict[str, Any]], minutes: float) -> float:
    """Return the share of a core that the triggers take in this process, all polling."""
    from airflow_lakestream.triggers.look import LookTrigger

    async def fired(arguments: dict[str, Any]) -> None:
        trigger = LookTrigger("checkpoint_lag", poll_interval=POLL, timeout=7 * 86_400, began=time.time(), **arguments)
        async for event in trigger.run():
            raise AssertionError(f"it was to wait: {event}")

    waiting = [asyncio.ensure_future(fired(given[n % len(given)])) for n in range(count)]
    await asyncio.sleep(1.5 * POLL)  # the first looks import what they need
    before, began = time.process_time(), time.monotonic()
    ended, _ = await asyncio.wait(waiting, timeout=minutes * 60)
    share = (time.process_time() - before) / (time.monotonic() - began)
    for one in ended:
        one.result()
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return share


def measure(count: int, of: int, minutes: float, per_dag: int, looks_only: bool) -> None:
    """Measure, and print what came out."""
    with Stack.owned("sensors") as stack:
        kafka = stack.up_kafka()
        folder = stack.folder / "bench"
        lake = Lake(folder / "lake")
        (lake.folder / "warehouse").mkdir(parents=True)
        env = {
            **airflow_env(folder / "airflow"),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database_of(folder / "airflow"),
            "AIRFLOW__TRIGGERER__CAPACITY": str(count + 100),
            "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"conn_type": "kafka", "extra": kafka.client_config()}),
            "AIRFLOW_CONN_ICEBERG_DEFAULT": lake.connection(),
        }
        os.environ.update(env)
        given = subjects(kafka, lake, of)
        if looks_only:
            share = asyncio.run(looks_alone(count, given, minutes))
            print(describe())
            print(f"{count} deferred sensors on {of} subjects, the looks alone: {share:.2%} of a core")
            return
        log = folder / "triggerer.log"
        command = [sys.executable, "-m", "airflow", "triggerer", "--skip-serve-logs"]
        with log.open("ab") as output:
            triggerer = subprocess.Popen(command, cwd=CHECKOUT, env=env, stdout=output, stderr=output)
        try:
            process = psutil.Process(triggerer.pid)
            settle(process)
            idle, idle_memory = cores(process, minutes * 60)
            before = used(process)
            defer_all(folder, [given[n % of] for n in range(count)], per_dag)
            await_running(count, log)
            time.sleep(POLL)  # the first looks import what they need
            started = used(process) - before
            settle(process)
            busy, busy_memory = cores(process, minutes * 60)
        finally:
            triggerer.kill()
            triggerer.wait()
    print(describe())
    print(f"{count} triggers of DAGs of {per_dag} tasks started: {started:.0f} s of CPU, their first looks included")
    print(f"idle: {idle:.1%} of a core, {idle_memory:.0f} MiB")
    print(f"{count} deferred sensors on {of} subjects, a look each {POLL:.0f} s: {busy:.1%}, {busy_memory:.0f} MiB")
    print(f"added: {busy - idle:.1%} of a core, {busy_memory - idle_memory:.0f} MiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-n", type=int, default=1000, help="how many sensors")
    parser.add_argument("--subjects", type=int, default=20, help="how many topics and tables they look at")
    parser.add_argument("--minutes", type=float, default=3, help="how long each state is measured")
    parser.add_argument("--tasks-per-dag", type=int, default=50, help="how they are spread over DAGs")
    parser.add_argument("--looks-only", action="store_true", help="the triggers alone, without Airflow's triggerer")
    asked = parser.parse_args()
    measure(asked.n, asked.subjects, asked.minutes, asked.tasks_per_dag, asked.looks_only)
