"""The demo: real Airflow lands a real Kafka topic in an Iceberg table, run after run, and you watch."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from rich.console import Console
from sqlalchemy.exc import OperationalError

from dev import lake
from dev.demo_summary import print_login, print_mirror, print_more, print_next, print_summary
from dev.errors import DemoFailed, DevError, ServiceFailed
from dev.progress import Clock
from dev.service import CHECKOUT
from dev.services.airflow import Airflow
from dev.services.airflow_api import AirflowAway
from dev.services.kafka import Kafka
from dev.services.postgres import Postgres
from dev.sources.clickstream import produce_clickstream
from dev.sources.flights import produce_flights
from dev.sources.sending import ensure_topic
from dev.sources.shop import CAPTURE, CUSTOMERS, count, open_shop, trade
from dev.stack import Stack

DAG = "clickstream_to_lake"
TOPIC = "clickstream"
TABLE = "lake.clickstream"
FLIGHTS = "flights"
MIRROR = "customers_mirror"
MIRRORED = "lake.customers"
PARTITIONS = 4
RUNS = 3

_LOG_LINES = 40
_PARSED_WITHIN_S = 120
_LANDED_WITHIN_S = 600
_LOOK_EVERY_S = 1.0
_TRADES_A_SECOND = 20
_FLIGHTS_SENT = 20_000
# DAGs that can't run without PostgreSQL and Debezium.
NEEDING_POSTGRES = ("customers_mirror.py", "orders_cdc.py")
_LOGS = CHECKOUT / "artifacts" / "demo"
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
# A slow API, and the catalog's file while a task commits.
_PASSING = (AirflowAway, OperationalError)


def run_demo(rate: float, once: bool, cdc: bool) -> None:
    """Run the demo: with `once` until three runs have landed, else until Ctrl-C.

    :param rate: events of the clickstream a second.
    :param cdc: a PostgreSQL with a shop besides, and Debezium, for the DAGs `customers_mirror` and `orders_cdc`.
    """
    clock = Clock()
    with (
        _ended_by_signals(clock),
        Stack.owned("demo", say=clock.say) as stack,
        ThreadPoolExecutor(max_workers=1) as beside,
    ):
        try:
            starting = beside.submit(stack.up_airflow, _dags(stack, cdc=cdc), announce=not once)
            kafka = stack.up_kafka(announce=False)
            sent = produce_flights(kafka.client_config(), FLIGHTS, count=_FLIGHTS_SENT)
            clock.say(f"{FLIGHTS}: {sent:,} flights are in the topic, for the DAG flights_to_lake")
            with _clickstream(kafka, rate, clock), _shop(stack, clock) if cdc else nullcontext() as shop:
                _watch(starting.result(), kafka, clock, once, shop)
        except DevError as e:
            stack.keep_logs(_LOGS)
            clock.say(f"demo: the logs of its services are kept in {_LOGS}")
            if isinstance(e, ServiceFailed):
                # The stack's own folder, with the log that the error names, goes with the stack.
                e.args = (str(e).replace(str(e.log), str(_LOGS / f"{e.service}.log")),)
            raise
        finally:
            clock.say("demo: taking everything down")
            # Before the thread is waited for: an Airflow that is still starting ends at once.
            stack.down()
            clock.say("demo: done, nothing is left running")


def _dags(stack: Stack, *, cdc: bool) -> Path:
    """Make the folder of the demo's DAGs: links to those of the checkout that can run here."""
    folder = stack.folder / "dags"
    folder.mkdir()
    for one in (CHECKOUT / "dags").iterdir():
        if one.name != "__pycache__" and (cdc or one.name not in NEEDING_POSTGRES):
            (folder / one.name).symlink_to(one)
    return folder


@contextmanager
def _ended_by_signals(clock: Clock) -> Iterator[None]:
    """Let SIGTERM, and a terminal that is closed, end the demo as Ctrl-C does."""

    def end(number: int, _: object) -> None:
        for one in _SIGNALS:
            signal.signal(one, signal.SIG_IGN)
        clock.say(f"demo: {signal.Signals(number).name} came")
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(airflow: Airflow, kafka: Kafka, clock: Clock, once: bool, shop: Postgres | None) -> None:
    landings = [Landings(airflow, clock, DAG, TABLE)]
    if shop is not None:
        landings.append(Landings(airflow, clock, MIRROR, MIRRORED))
    for one in landings:
        _unpause(airflow, one.dag, clock)
    clock.say(f"airflow: waiting until {RUNS} runs{' of each' if len(landings) > 1 else ''} have landed")
    _wait(lambda: min(one.look() for one in landings) >= RUNS, f"{RUNS} runs to land", _LANDED_WITHIN_S)
    for one in landings:
        clock.say(f"demo: {one.runs} runs have landed rows in {one.table}")
    catalog = airflow.catalog()
    table = lake.open_table(catalog, TABLE)
    assert table is not None
    print_summary(Console(), table, kafka, group=DAG, topic=TOPIC, first_rows_after=landings[0].first_rows_after)
    if shop is not None:
        mirror = lake.open_table(catalog, MIRRORED)
        assert mirror is not None
        print_mirror(Console(), mirror, kafka, group=MIRROR, topic=f"{CAPTURE}.public.{CUSTOMERS}", rows=count(shop))
    if once:
        return
    print_login(Console(), airflow)
    print_more(Console(), cdc=shop is not None)
    print_next(Console(), airflow, kafka, table=TABLE, group=DAG)
    clock.say("demo: goes on until Ctrl-C")
    try:
        while True:
            _look_again(landings, clock)
            time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        print()


def _look_again(landings: Iterable[Landings], clock: Clock) -> None:
    try:
        for one in landings:
            one.look()
    except _PASSING as problem:
        clock.say(f"demo: looks again, since it could not look now: {problem}")


class Landings:
    """Says each landing once as it appears in a table, and fails when a run of its DAG has failed."""

    def __init__(self, airflow: Airflow, clock: Clock, dag: str, table: str) -> None:
        self.dag = dag
        self.table = table
        self.runs = 0
        self.first_rows_after: float | None = None
        self._api = airflow.api
        self._catalog = airflow.catalog()
        self._clock = clock
        self._told: set[int] = set()

    def look(self) -> int:
        """Look at the table and at the DAG's runs; return how many runs have landed rows."""
        table = lake.open_table(self._catalog, self.table)
        for snapshot in lake.landings(table) if table else ():
            if snapshot.snapshot_id not in self._told:
                self._tell(lake.rows_of(snapshot), snapshot.snapshot_id)
        self.runs = len(lake.runs_landed(table)) if table else 0
        self._fail_with_a_failed_run()
        return self.runs

    def _tell(self, rows: int, snapshot_id: int) -> None:
        if self.first_rows_after is None:
            self.first_rows_after = self._clock.elapsed
            self._clock.say(f"{self.table}: first rows after {self.first_rows_after:.0f} s")
        self._told.add(snapshot_id)
        self._clock.say(f"{self.table}: {rows:,} rows landed in snapshot {snapshot_id}")

    def _fail_with_a_failed_run(self) -> None:
        for run in self._api.runs(self.dag):
            if run["state"] != "failed":
                continue
            for task in self._api.task_instances(self.dag, run["dag_run_id"]):
                if task["state"] == "failed":
                    log = "\n".join(self._api.task_log(task)[-_LOG_LINES:])
                    raise DemoFailed(
                        f"{run['dag_run_id']} failed in task {task['task_id']}; the end of its log:\n{log}"
                    )
            raise DemoFailed(f"{run['dag_run_id']} failed before any of its tasks did.")


def _unpause(airflow: Airflow, dag: str, clock: Clock) -> None:
    api = airflow.api

    def is_on() -> bool:
        if api.has_dag(dag):
            api.unpause(dag)
            return True
        if errors := [error for error in api.import_errors() if dag in error]:
            raise DemoFailed(f"Airflow could not parse the DAG: {errors[0]}")
        return False

    clock.say(f"airflow: waiting for the DAG {dag}")
    _wait(is_on, f"Airflow to parse the DAG {dag}", _PARSED_WITHIN_S)
    clock.say(f"airflow: {dag} is on, it runs every minute")


@contextmanager
def _clickstream(kafka: Kafka, rate: float, clock: Clock) -> Iterator[None]:
    """Keep events coming."""
    ensure_topic(kafka.client_config(), TOPIC, PARTITIONS)
    send = partial(produce_clickstream, kafka.client_config(), TOPIC, rate=rate, partitions=PARTITIONS)
    with _kept_going(send, clock, TOPIC, "events", f"{rate:g} a second into {PARTITIONS} partitions"):
        yield


@contextmanager
def _shop(stack: Stack, clock: Clock) -> Iterator[Postgres]:
    """Keep the tables of a real database changing, their changes sent to Kafka; give the database."""
    postgres, connect = stack.up_postgres(), stack.up_connect()
    open_shop(postgres, connect)
    buy = partial(trade, postgres, rate=_TRADES_A_SECOND)
    with _kept_going(buy, clock, CAPTURE, "transactions", f"{_TRADES_A_SECOND:g} a second in PostgreSQL"):
        yield postgres


@contextmanager
def _kept_going(work: Callable[..., int], clock: Clock, name: str, what: str, pace: str) -> Iterator[None]:
    """Let `work(stop=event)` go on in a thread of this process; it returns how many it made of `what`."""
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=1) as beside:
        working = beside.submit(work, stop=stop)
        clock.say(f"{name}: {what}, {pace}")
        try:
            yield
        finally:
            stop.set()
        clock.say(f"{name}: stopped after {working.result():,} {what}")


def _wait(done: Callable[[], bool], what: str, seconds: float) -> None:
    """Wait until something is done; who does not answer for now is asked again until the time is over."""
    deadline, problem = time.monotonic() + seconds, ""
    while True:
        try:
            if done():
                return
        except _PASSING as e:
            problem = f"; the last look failed: {e}"
        if time.monotonic() > deadline:
            raise DemoFailed(f"Waited {seconds:.0f} s for {what}{problem}.")
        time.sleep(_LOOK_EVERY_S)
