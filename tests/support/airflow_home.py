"""A real Airflow of the test session: a home of its own, whose database is made when the first test asks for it.

    def test_something(airflow, connections):
        run = airflow.run(dag, {"table": "lake.t"})      # dag.test(): real parsing, rendering, API and database
        run.state, run.task("land").xcom, run.task("land").tries, run.asset_events, run.errors

Airflow reads its settings once, when it is first imported, so this plugin has to come before that.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dev.locks import file_lock
from dev.services.airflow import database_of, database_settings
from dev.stack import HOME, Stack

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.sdk import DAG
    from pyiceberg.catalog import Catalog

CHECKOUT = Path(__file__).parents[2]
DAGS = CHECKOUT / "dags"
KAFKA_CONNECTION = "AIRFLOW_CONN_KAFKA_DEFAULT"
ICEBERG_CONNECTION = "AIRFLOW_CONN_ICEBERG_DEFAULT"

_BUNDLE = "airflow.dag_processing.bundles.local.LocalDagBundle"


def settings(home: Path) -> dict[str, str]:
    """Return the environment of an Airflow that lives in `home`: it knows the checkout's DAGs, and what tests write."""
    folders = {"dags-folder": DAGS, "written": home / "written"}
    bundles = [{"name": name, "classpath": _BUNDLE, "kwargs": {"path": str(path)}} for name, path in folders.items()]
    return {
        "AIRFLOW_HOME": str(home),
        # A triggerer and task processes write to the file as well, and wait their turn.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database_of(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        # A DAG that a test has changed is known as it is now, and not as it was half a minute ago.
        "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "0",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
        "AIRFLOW__LOGGING__COLORED_CONSOLE_LOG": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }


def pytest_configure(config: pytest.Config) -> None:
    """Make the home, and lead every Airflow of this process and its children to it: never to the user's own.

    Its database is a file, or a new PostgreSQL where LAKESTREAM_AIRFLOW_DATABASE says "postgresql".
    """
    if "airflow" in sys.modules:
        raise pytest.UsageError("Airflow was imported before the tests could give it a home.")
    for name in [name for name in os.environ if name.startswith("AIRFLOW")]:
        del os.environ[name]
    home = Path(tempfile.mkdtemp(prefix="lakestream-airflow-"))
    (home / "written").mkdir()
    os.environ.update(settings(home))
    config.stash[_HOME], config.stash[_SERVERS] = home, (servers := ExitStack())
    if os.environ.get("LAKESTREAM_AIRFLOW_DATABASE") == "postgresql":
        postgres = servers.enter_context(Stack.owned("tests-airflow")).up_postgres()
        os.environ.update(database_settings(postgres.new_database("airflow")))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the home, and end the server of its database."""
    if (home := config.stash.get(_HOME, None)) is not None:
        shutil.rmtree(home, ignore_errors=True)
        config.stash[_SERVERS].close()


_HOME = pytest.StashKey[Path]()
_SERVERS = pytest.StashKey[ExitStack]()


@dataclass
class TaskResult:
    """What became of one task of a run."""

    state: str
    tries: int
    xcom: Any
    rendered: dict[str, Any]


@dataclass
class Run:
    """What became of a run, as Airflow's database has it; `errors` are those that its tasks ended a try with."""

    dag_id: str
    run_id: str
    state: str
    errors: list[BaseException] = field(default_factory=list)

    def task(self, task_id: str = "land") -> TaskResult:
        """Look at a task."""
        from airflow.models.renderedtifields import RenderedTaskInstanceFields
        from airflow.models.taskinstance import TaskInstance
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        key = {"dag_id": self.dag_id, "run_id": self.run_id, "task_id": task_id}
        with create_session() as session:
            ti = session.scalars(select(TaskInstance).filter_by(**key)).one()
            xcom = session.scalars(select(XComModel).filter_by(**key, key="return_value")).one_or_none()
            rendered = session.scalars(select(RenderedTaskInstanceFields).filter_by(**key)).one_or_none()
            return TaskResult(
                state=str(ti.state),
                tries=ti.try_number,
                xcom=None if xcom is None else _decoded(xcom.value),
                rendered=rendered.rendered_fields if rendered else {},
            )

    @property
    def asset_events(self) -> list[tuple[str, dict[str, Any]]]:
        """Return (the asset's URI, the event's extra) of the events that the run's tasks caused."""
        from airflow.models.asset import AssetEvent
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            wanted = select(AssetEvent).filter_by(source_dag_id=self.dag_id, source_run_id=self.run_id)
            return [(event.asset.uri, dict(event.extra)) for event in session.scalars(wanted)]


@dataclass
class TaskProcess:
    """A task's supervisor, and what the task has logged so far."""

    supervisor: subprocess.Popen[bytes]
    log_file: Path

    @property
    def log(self) -> str:
        """Everything that the log page of the UI would show."""
        return self.log_file.read_text() if self.log_file.exists() else ""

    def wait(self, seconds: float = 180) -> None:
        """Wait for the end of the try."""
        self.supervisor.wait(seconds)

    def terminate(self) -> None:
        """Do what a worker that is drained does: the supervisor hands the signal on to the task."""
        self.supervisor.send_signal(signal.SIGTERM)


class AirflowHome:
    """The session's Airflow, with its database made."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def dag(self, file: Path) -> DAG:
        """Parse a file as Airflow does, and return its one DAG."""
        return next(iter(self.bag(file).dags.values()))

    def bag(self, folder: Path) -> Any:
        """Parse a file or a folder as Airflow does; an error of parsing is an error."""
        try:
            from airflow.dag_processing.dagbag import DagBag
        except ImportError:  # Airflow 3.1
            from airflow.models.dagbag import DagBag

        bag = DagBag(str(folder))
        if bag.import_errors:
            raise AssertionError(bag.import_errors)
        return bag

    def run(self, dag: DAG, conf: Mapping[str, Any] | None = None, **options: Any) -> Run:
        """Run the DAG by `dag.test()`, all tries of its tasks included.

        :param conf: what the trigger form would send.
        :param options: of `dag.test()`, such as `logical_date`.
        """
        self._make_known(dag)
        errors: list[BaseException] = []

        def remember(context: Any) -> None:
            errors.append(context["exception"])

        for task in dag.tasks:
            task.on_failure_callback = task.on_retry_callback = [remember]
        with _own_signals():
            done: DagRun = dag.test(run_conf=dict(conf or {}), **options)
        return Run(dag.dag_id, done.run_id, str(done.state), errors)

    def clear_and_run(self, dag: DAG, run: Run, task_id: str = "land") -> None:
        """Clear a task of a finished run, as the button in the UI does, and run it again."""
        from airflow.models.taskinstance import TaskInstance, clear_task_instances
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            wanted = select(TaskInstance).filter_by(dag_id=run.dag_id, run_id=run.run_id, task_id=task_id)
            clear_task_instances(list(session.scalars(wanted)), session)
        with create_session() as session:
            session.scalars(wanted).one().try_number += 1
        self.run_task(dag, run, task_id)

    def run_task(self, dag: DAG, run: Run, task_id: str) -> None:
        """Run a task of a run that was started, in this process; or go on with one that has waited."""
        from airflow.models.taskinstance import TaskInstance
        from airflow.sdk.definitions.dag import _run_task
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            wanted = select(TaskInstance).filter_by(dag_id=run.dag_id, run_id=run.run_id, task_id=task_id)
            ti = session.scalars(wanted).one()
            ti.try_number = max(1, ti.try_number)
            session.flush()
            session.expunge(ti)
        with _own_signals():
            _run_task(ti=ti, task=dag.get_task(task_id))

    def write(self, name: str, text: str) -> Path:
        """Write a DAG file into the folder of DAGs that tests write."""
        file = self.path / "written" / f"{name}.py"
        file.write_text(text)
        return file

    def start(self, dag: DAG, conf: Mapping[str, Any] | None = None, state: str = "running") -> Run:
        """Make a run as the scheduler does, and leave its tasks to `process`; or leave it `"queued"`."""
        from airflow.models.dagbag import DBDagBag
        from airflow.utils.session import create_session
        from airflow.utils.state import DagRunState
        from airflow.utils.types import DagRunTriggeredByType, DagRunType

        self._make_known(dag)
        now = datetime.now(UTC)
        with create_session() as session:
            known = DBDagBag().get_latest_version_of_dag(dag.dag_id, session=session)
            run = known.create_dagrun(
                run_id=f"manual__{now.isoformat()}",
                logical_date=now,
                data_interval=(now, now),
                run_after=now,
                conf=dict(conf or {}),
                run_type=DagRunType.MANUAL,
                triggered_by=DagRunTriggeredByType.TEST,
                state=DagRunState(state),
                session=session,
            )
            return Run(dag.dag_id, run.run_id, str(run.state))

    @contextmanager
    def process(self, run: Run, file: Path, task_id: str = "land") -> Iterator[TaskProcess]:
        """Run one try of a task in a real task process, below Airflow's supervisor."""
        log = f"{run.dag_id}-{uuid.uuid4().hex}.log"
        where = [file.parent.name, file.name, run.dag_id, run.run_id, task_id, log]
        with (self.path / "supervisor.log").open("ab") as output:
            command = [sys.executable, "-m", "tests.support.task_process", *where]
            supervisor = subprocess.Popen(command, cwd=CHECKOUT, stdout=output, stderr=output)
        try:
            yield TaskProcess(supervisor, self.path / "logs" / log)
        finally:
            if supervisor.poll() is None:
                supervisor.kill()
                supervisor.wait()

    def _make_known(self, dag: DAG) -> None:
        """Put the DAG into the database; `dag.test()` itself knows only those of Airflow's DAG folders."""
        try:
            from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
        except ImportError:  # Airflow 3.1
            from airflow.models.dagbag import DagBag, sync_bag_to_db
        from airflow.dag_processing.bundles.manager import DagBundlesManager

        DagBundlesManager().sync_bundles_to_db()
        bag = DagBag(os.devnull)
        bag.bag_dag(dag)
        sync_bag_to_db(bag, "written", None)


def _decoded(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


@contextmanager
def _own_signals() -> Iterator[None]:
    """Take the handlers back that a task run in this process leaves behind."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.fixture(scope="session")
def airflow(pytestconfig: pytest.Config) -> AirflowHome:
    """Give the Airflow of this process of pytest."""
    home = pytestconfig.stash[_HOME]
    if "sqlite" in os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]:
        _copy_template(home / "airflow.db")
    else:
        _make_database()
    return AirflowHome(home)


def _copy_template(database: Path) -> None:
    """Copy a migrated database, which the first test run with these versions of Airflow and its providers makes."""
    installed = sorted({f"{dist.name} {dist.version}" for dist in distributions() if "airflow" in dist.name.lower()})
    versions = hashlib.sha256(" ".join([sys.version, *installed]).encode()).hexdigest()[:16]
    template = HOME / "airflow" / f"{versions}.db"
    with file_lock(template.with_suffix(".lock")):
        if not template.exists():
            _make_database()
            _copy(database, scratch := template.with_suffix(".new"))
            scratch.replace(template)
            return
    _copy(template, database)


def _copy(one: Path, other: Path) -> None:
    # A copy of the file would lack what is still in the write-ahead log, and not be seen by whoever has it open: a look
    # for a connection or a variable makes an empty database before a test asks for this one.
    with closing(sqlite3.connect(one)) as source, closing(sqlite3.connect(other)) as copy:
        source.backup(copy)


def _make_database() -> None:
    from airflow.utils import db

    db.initdb()


class FailsOnce:
    """A post_execute hook: the rows are landed, and then the worker is lost, as far as Airflow knows."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, context: Any, result: Any) -> None:
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("lost after the landing")


@dataclass
class Connections:
    """The two default connections of one test, in the environment and nowhere else; `catalog` is what iceberg opens."""

    catalog: Catalog
    warehouse: Path
    _patch: pytest.MonkeyPatch

    def kafka(self, extra: Mapping[str, Any] | None) -> None:
        """Let the Kafka connection say something else; None removes it."""
        self._set(KAFKA_CONNECTION, "kafka", extra)

    def iceberg(self, extra: Mapping[str, Any] | None) -> None:
        """Let the Iceberg connection say something else; None removes it."""
        self._set(ICEBERG_CONNECTION, "iceberg", extra)

    def lake_in(self, folder: Path) -> None:
        """Let the Iceberg connection open a catalog in a folder."""
        self.iceberg({"type": "sql", **_catalog_in(folder)})

    def _set(self, name: str, kind: str, extra: Mapping[str, Any] | None) -> None:
        if extra is None:
            self._patch.delenv(name, raising=False)
        else:
            self._patch.setenv(name, json.dumps({"conn_type": kind, "extra": dict(extra)}))


@pytest.fixture
def connections(kafka: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Connections:
    """Give connections to the session's broker, and to a new catalog of this test."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("iceberg_default", **_catalog_in(tmp_path))
    given = Connections(catalog, tmp_path / "warehouse", monkeypatch)
    given.kafka(kafka.client_config())
    given.lake_in(tmp_path)
    return given


def _catalog_in(folder: Path) -> dict[str, str]:
    return {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": (folder / "warehouse").as_uri()}
