"""The demo: real Airflow lands a real Kafka topic in an Iceberg table, run after run, and you watch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial

from rich.console import Console

from dev import lake
from dev.demo_summary import print_more, print_next, print_summary
from dev.errors import DemoFailed
from dev.progress import Clock
from dev.services.airflow import Airflow
from dev.services.kafka import Kafka
from dev.sources.clickstream import produce_clickstream
from dev.sources.sending import ensure_topic
from dev.sources.shop import CAPTURE, open_shop, trade
from dev.stack import Stack

DAG = "clickstream_to_lake"
TOPIC = "clickstream"
TABLE = "lake.clickstream"
PARTITIONS = 4
RUNS = 3

_LOG_LINES = 40
_PARSED_WITHIN_S = 120
_LANDED_WITHIN_S = 600
_LOOK_EVERY_S = 1.0
_TRADES_A_SECOND = 20


def run_demo(rate: float, once: bool, cdc: bool) -> None:
    """Run the demo: with `once` until three runs have landed, else until Ctrl-C.

    :param rate: events of the clickstream a second.
    :param cdc: a PostgreSQL with a shop besides, and Debezium, for the DAGs `customers_mirror` and `orders_cdc`.
    """
    clock = Clock()
    with Stack.owned("demo", say=clock.say) as stack, ThreadPoolExecutor(max_workers=1) as beside:
        try:
            starting = beside.submit(stack.up_airflow)
            kafka = stack.up_kafka(announce=False)
            with _clickstream(kafka, rate, clock), _shop(stack, clock) if cdc else nullcontext():
                _watch(starting.result(), kafka, clock, once, cdc)
        finally:
            clock.say("demo: taking everything down")
            # Before the thread is waited for: an Airflow that is still starting ends at once.
            stack.down()
    clock.say("demo: done, nothing is left running")


def _watch(airflow: Airflow, kafka: Kafka, clock: Clock, once: bool, cdc: bool) -> None:
    _unpause(airflow, clock)
    landings = Landings(airflow, clock)
    _wait(lambda: landings.look() >= RUNS, f"{RUNS} runs to land", _LANDED_WITHIN_S)
    clock.say(f"demo: {landings.runs} runs have landed rows")
    table = lake.open_table(airflow.catalog(), TABLE)
    assert table is not None
    print_summary(Console(), table, airflow, kafka, group=DAG, topic=TOPIC, first_rows_after=landings.first_rows_after)
    if once:
        return
    print_more(Console(), cdc=cdc)
    print_next(Console(), airflow, kafka, table=TABLE, group=DAG)
    clock.say("demo: goes on until Ctrl-C")
    try:
        while True:
            landings.look()
            time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        print()


class Landings:
    """Says each landing once as it appears in the table, and fails when a run of the DAG has failed."""

    def __init__(self, airflow: Airflow, clock: Clock) -> None:
        self.runs = 0
        self.first_rows_after: float | None = None
        self._api = airflow.api
        self._catalog = airflow.catalog()
        self._clock = clock
        self._told: set[int] = set()

    def look(self) -> int:
        """Look at the table and at the DAG's runs; return how many runs have landed rows."""
        table = lake.open_table(self._catalog, TABLE)
        for snapshot in lake.landings(table) if table else ():
            if snapshot.snapshot_id not in self._told:
                self._tell(lake.rows_of(snapshot), snapshot.snapshot_id)
        self.runs = len(lake.runs_landed(table)) if table else 0
        self._fail_with_a_failed_run()
        return self.runs

    def _tell(self, rows: int, snapshot_id: int) -> None:
        if self.first_rows_after is None:
            self.first_rows_after = self._clock.elapsed
            self._clock.say(f"{TABLE}: first rows after {self.first_rows_after:.0f} s")
        self._told.add(snapshot_id)
        self._clock.say(f"{TABLE}: {rows:,} rows landed in snapshot {snapshot_id}")

    def _fail_with_a_failed_run(self) -> None:
        for run in self._api.runs(DAG):
            if run["state"] != "failed":
                continue
            for task in self._api.task_instances(DAG, run["dag_run_id"]):
                if task["state"] == "failed":
                    log = "\n".join(self._api.task_log(task)[-_LOG_LINES:])
                    raise DemoFailed(
                        f"{run['dag_run_id']} failed in task {task['task_id']}; the end of its log:\n{log}"
                    )
            raise DemoFailed(f"{run['dag_run_id']} failed before any of its tasks did.")


def _unpause(airflow: Airflow, clock: Clock) -> None:
    api = airflow.api

    def parsed() -> bool:
        if api.has_dag(DAG):
            return True
        if errors := [error for error in api.import_errors() if DAG in error]:
            raise DemoFailed(f"Airflow could not parse the DAG: {errors[0]}")
        return False

    clock.say(f"airflow: waiting for the DAG {DAG}")
    _wait(parsed, f"Airflow to parse the DAG {DAG}", _PARSED_WITHIN_S)
    api.unpause(DAG)
    clock.say(f"airflow: {DAG} is on, it runs every minute; waiting until {RUNS} runs have landed")


@contextmanager
def _clickstream(kafka: Kafka, rate: float, clock: Clock) -> Iterator[None]:
    """Keep events coming."""
    ensure_topic(kafka.client_config(), TOPIC, PARTITIONS)
    send = partial(produce_clickstream, kafka.client_config(), TOPIC, rate=rate, partitions=PARTITIONS)
    with _kept_going(send, clock, TOPIC, f"{rate:g} events a second into {PARTITIONS} partitions"):
        yield


@contextmanager
def _shop(stack: Stack, clock: Clock) -> Iterator[None]:
    """Keep the tables of a real database changing, their changes sent to Kafka."""
    postgres, connect = stack.up_postgres(), stack.up_connect()
    open_shop(postgres, connect)
    buy = partial(trade, postgres, rate=_TRADES_A_SECOND)
    with _kept_going(buy, clock, CAPTURE, f"{_TRADES_A_SECOND:g} transactions a second in PostgreSQL"):
        yield


@contextmanager
def _kept_going(work: Callable[..., int], clock: Clock, name: str, what: str) -> Iterator[None]:
    """Let `work(stop=event)` go on in a thread of this process; it returns how much it did."""
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=1) as beside:
        working = beside.submit(work, stop=stop)
        clock.say(f"{name}: {what}")
        try:
            yield
        finally:
            stop.set()
        clock.say(f"{name}: {working.result():,} in all")


def _wait(done: Callable[[], bool], what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise DemoFailed(f"Waited {seconds:.0f} s for {what}; see python -m dev logs airflow.")
        time.sleep(_LOOK_EVERY_S)
