"""A stack: a name, a folder, and the services that run in it.

    with Stack.owned("tests") as stack:      # a unique name; it dies with this process, however that ends
        kafka = stack.up_kafka(overrides={"log.retention.check.interval.ms": "500"})
        kafka.bootstrap                      # "127.0.0.1:23456"

`Stack("default")` is what `python -m dev up` works on: its services run until `down`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TypeVar, cast

from dev import jars
from dev.errors import NotUp, ServiceConflict
from dev.java import Jdk, find_jdk
from dev.locks import file_lock
from dev.processes import ProcessId
from dev.progress import Reminder, Say, quiet
from dev.service import CHECKOUT, Owner, ServiceFolder
from dev.services import airflow as airflow_service
from dev.services import azure as azure_service
from dev.services import brokers as brokers_service
from dev.services import connect as connect_service
from dev.services import flink as flink_service
from dev.services import gcs as gcs_service
from dev.services import glue as glue_service
from dev.services import hdfs as hdfs_service
from dev.services import kafka as kafka_service
from dev.services import kubernetes as kubernetes_service
from dev.services import mariadb as mariadb_service
from dev.services import metastore as metastore_service
from dev.services import postgres as postgres_service
from dev.services import registry as registry_service
from dev.services import rest_catalog as rest_catalog_service
from dev.services import s3 as s3_service
from dev.services import spark as spark_service
from dev.services import yarn as yarn_service
from dev.services.airflow import Airflow
from dev.services.azure import Azure
from dev.services.brokers import Broker
from dev.services.catalogue import HANDLES, SERVICES, Service
from dev.services.connect import Connect
from dev.services.flink import Flink, FlinkDaemon
from dev.services.gcs import Gcs
from dev.services.glue import Glue
from dev.services.hdfs import HdfsDaemon
from dev.services.kafka import Kafka
from dev.services.kubernetes import Kubernetes
from dev.services.mariadb import MariaDb
from dev.services.metastore import Metastore
from dev.services.postgres import Postgres
from dev.services.registry import Registry
from dev.services.rest_catalog import RestCatalog
from dev.services.s3 import S3
from dev.services.spark import SparkDaemon
from dev.services.yarn import YarnDaemon

Handle = TypeVar("Handle", bound=Service)

HOME = CHECKOUT / ".dev"
DEFAULT = "default"

_OWNER_FILE = "owner.json"
# The owner holds its writing end open. Services of processes that joined the stack watch it as well.
_PIPE = "owner.pipe"
# Of a Flink's processes, those that may start side by side.
_BEHIND_MANAGER = ("worker", "gateway")


@dataclass(frozen=True)
class ServiceStatus:
    """One service of one stack, looked at just now."""

    service: str
    pid: int | None
    ports: dict[str, int]
    health: str
    folder: Path


class Stack:
    """Services that belong together, in one folder under `home`."""

    def __init__(self, name: str = DEFAULT, *, home: Path = HOME, say: Say = quiet) -> None:
        self.name = name
        self.home = home
        self.folder = home / "stacks" / name
        self._say = say
        self._owner: Owner | None = None
        self._held_open: int | None = None
        self._is_gone = False

    @cached_property
    def _kafka_ports(self) -> kafka_service.Ports:
        return kafka_service.Ports.find()

    @classmethod
    def owned(cls, label: str, *, home: Path = HOME, say: Say = quiet) -> Stack:
        """Make a stack of a unique name that dies with this process: `with Stack.owned("tests") as stack`."""
        sweep(home)
        stack = cls(f"{label}-{os.getpid()}-{secrets.token_hex(3)}", home=home, say=say)
        stack.folder.mkdir(parents=True)
        process = ProcessId.own()
        (stack.folder / _OWNER_FILE).write_text(json.dumps(vars(process)))
        os.mkfifo(stack.folder / _PIPE)
        reader = stack._open_pipe()
        stack._held_open = os.open(stack.folder / _PIPE, os.O_WRONLY)
        stack._owner = Owner(process, reader)
        return stack

    @classmethod
    def joined(cls, name: str, *, home: Path = HOME, say: Say = quiet) -> Stack:
        """Use the owned stack of another process: services that start here die with that process, too."""
        stack = cls(name, home=home, say=say)
        owner = ProcessId(**json.loads((stack.folder / _OWNER_FILE).read_text()))
        stack._owner = Owner(owner, stack._open_pipe())
        return stack

    def _open_pipe(self) -> int:
        # Without O_NONBLOCK the call would wait for the owner's end.
        return os.open(self.folder / _PIPE, os.O_RDONLY | os.O_NONBLOCK)

    def __enter__(self) -> Stack:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def up_kafka(
        self,
        overrides: Mapping[str, str] | None = None,
        *,
        announce: bool = True,
        version: str = jars.KAFKA_VERSION,
    ) -> Kafka:
        """Have a healthy broker: the running one, or a new one.

        :param overrides: lines of server.properties that replace ours.
        :param announce: say so when it was up already.
        :param version: of Kafka, for a new one.
        """
        wanted = dict(overrides or {})
        with self._lock("kafka"):
            running = self._running("kafka", Kafka)
            if running is not None:
                if overrides is not None and running.overrides != wanted:
                    raise ServiceConflict(
                        f"kafka is up in stack {self.name} with other settings ({running.overrides}): "
                        "take it down first, or ask for no overrides."
                    )
                if announce:
                    self._say(f"kafka: already up at {running.bootstrap}")
                return running
            self._refuse_when_gone()
            jdk = find_jdk()
            jar_folder = self._fetch(jars.KAFKAS[version], jdk)
            self._say("kafka: starting")
            setup = kafka_service.Setup(jar_folder, jdk, self._owner, wanted)
            kafka = kafka_service.start(self._service("kafka"), setup, self._kafka_ports)
            self._say(f"kafka: up at {kafka.bootstrap} (SASL_SSL at {kafka.secure_bootstrap})")
            return kafka

    def up_brokers(self) -> list[Broker]:
        """Have three healthy brokers of one Kafka, each in a rack of its own: the running ones, or new ones."""
        self._fetch(jars.KAFKA, find_jdk())
        plan = brokers_service.Plan.of(self.folder)

        def up(node: int) -> Broker:
            def start(folder: ServiceFolder, jdk: Jdk) -> Broker:
                setup = brokers_service.Setup(node, plan, self._fetch(jars.KAFKA, jdk), jdk, self._owner)
                return brokers_service.start(folder, setup)

            return self._up(f"broker-{node}", start, lambda broker: broker.address)

        # All at once: none answers before two of them are there.
        with ThreadPoolExecutor(len(brokers_service.NODES)) as side_by_side:
            return list(side_by_side.map(up, brokers_service.NODES))

    def up_registry(self) -> Registry:
        """Have a healthy schema registry: the running one, or a new one."""

        def start(folder: ServiceFolder, jdk: Jdk) -> Registry:
            (archive,) = self._fetch(jars.REGISTRY, jdk).glob("*.tar.gz")
            return registry_service.start(folder, archive, jdk, self._owner)

        return self._up("registry", start, lambda registry: registry.url)

    def up_s3(self) -> S3:
        """Have a healthy S3: the running one, or a new one."""

        def start(folder: ServiceFolder, jdk: Jdk) -> S3:
            return s3_service.start(folder, s3_service.build(self.home / "bin", self._say), self._owner)

        return self._up("s3", start, lambda s3: s3.url)

    def up_gcs(self, *, careless: bool = False) -> Gcs:
        """Have a healthy model of Google Cloud Storage: the running one, or a new one; see `gcs` for `careless`."""

        def start(folder: ServiceFolder, jdk: Jdk) -> Gcs:
            program = gcs_service.build(self.home / "bin", self._say)
            return gcs_service.start(folder, program, self._owner, careless=careless)

        return self._up("careless-gcs" if careless else "gcs", start, lambda gcs: gcs.url)

    def up_azure(self) -> Azure:
        """Have a healthy Azure: the running one, or a new one."""

        def start(folder: ServiceFolder, jdk: Jdk) -> Azure:
            return azure_service.start(folder, azure_service.install(self.home / "bin", self._say), self._owner)

        return self._up("azure", start, lambda azure: azure.authority)

    def up_postgres(self) -> Postgres:
        """Have a healthy PostgreSQL with logical decoding: the running one, or a new one."""

        def start(folder: ServiceFolder, jdk: Jdk) -> Postgres:
            return postgres_service.start(folder, self._fetch(postgres_service.jar_set(), jdk), self._owner)

        return self._up("postgres", start, lambda postgres: f"{postgres.host}:{postgres.port}/{postgres.database}")

    def up_kubernetes(self) -> Kubernetes:
        """Have a healthy Kubernetes of one node: the running one, or a new one; what it needs has to be made before."""

        def start(folder: ServiceFolder, jdk: Jdk) -> Kubernetes:
            return kubernetes_service.start(folder, self._owner)

        return self._up("kubernetes", start, lambda node: node.url)

    def up_metastore(self, version: str = metastore_service.CURRENT) -> Metastore:
        """Have a healthy metastore of Hive's, of this version: the running one, or a new one."""

        def start(folder: ServiceFolder, jdk: Jdk) -> Metastore:
            (archive,) = self._fetch(jars.METASTORES[version], jdk).glob("*.tar.gz")
            hadoop = self._fetch(jars.HADOOP, jdk)
            setup = metastore_service.Setup(archive, hadoop, jdk, self._owner, version)
            return metastore_service.start(folder, setup)

        name = "metastore" if version == metastore_service.CURRENT else "old-metastore"
        return self._up(name, start, lambda metastore: metastore.uri)

    def up_rest_catalog(self) -> RestCatalog:
        """Have a healthy REST catalog: the running one, or a new one."""

        def start(folder: ServiceFolder, jdk: Jdk) -> RestCatalog:
            return rest_catalog_service.start(folder, self._fetch(jars.REST_CATALOG, jdk), jdk, self._owner)

        return self._up("rest-catalog", start, lambda catalog: catalog.url)

    def up_mariadb(self, number: int = 1) -> MariaDb:
        """Have a healthy MariaDB of this number: the running one, or a new one."""

        def start(folder: ServiceFolder, jdk: Jdk) -> MariaDb:
            return mariadb_service.start(folder, self._fetch(jars.MARIADB, jdk), self._owner, number)

        return self._up("mariadb" if number == 1 else f"mariadb-{number}", start, lambda server: f"port {server.port}")

    def up_glue(self, *, careless: bool = False) -> Glue:
        """Have a healthy model of AWS Glue: the running one, or a new one; see `glue_server` for `careless`."""

        def start(folder: ServiceFolder, jdk: Jdk) -> Glue:
            return glue_service.start(folder, self._owner, careless=careless)

        return self._up("careless-glue" if careless else "glue", start, lambda glue: glue.url)

    def up_connect(self, bootstrap: str | None = None) -> Connect:
        """Have a healthy worker of Kafka Connect with Debezium and Iceberg's sink: the running one, or a new one.

        :param bootstrap: the brokers that it works with; None for this stack's one, which comes up with it.
        """

        def start(folder: ServiceFolder, jdk: Jdk) -> Connect:
            programs, debezium, iceberg = (
                self._fetch(wanted, jdk) for wanted in (jars.CONNECT, jars.DEBEZIUM, jars.ICEBERG_SINK)
            )
            brokers = bootstrap or self.up_kafka(announce=False).bootstrap
            setup = connect_service.Setup(programs, debezium, iceberg, jdk, brokers, self._owner)
            return connect_service.start(folder, setup)

        return self._up("connect", start, lambda connect: connect.url)

    def up_spark(self) -> SparkDaemon:
        """Have a healthy Spark master with one worker of two cores; return the master."""
        return self.up_spark_workers(1, cores=2)[0]

    def up_spark_workers(self, count: int, cores: int) -> tuple[SparkDaemon, Sequence[SparkDaemon]]:
        """Have a healthy Spark master with so many workers of so many cores; return the master and its workers."""
        master = self._up(
            "spark-master",
            lambda folder, jdk: spark_service.start_master(folder, jdk, self._owner),
            lambda found: f"{found.master}, {found.ui}",
        )

        def start(folder: ServiceFolder, jdk: Jdk) -> SparkDaemon:
            return spark_service.start_worker(folder, jdk, self._owner, master.master, cores)

        names = ["spark-worker", "spark-worker-2"][:count]
        return master, [self._up(name, start, lambda found: found.ui) for name in names]

    def up_yarn(self) -> YarnDaemon:
        """Have a healthy YARN of one node; return its ResourceManager."""

        def start(folder: ServiceFolder, jdk: Jdk) -> YarnDaemon:
            return yarn_service.start_resource_manager(folder, self._fetch(jars.YARN, jdk), jdk, self._owner)

        def start_node(folder: ServiceFolder, jdk: Jdk) -> YarnDaemon:
            programs = self._fetch(jars.YARN, jdk)
            return yarn_service.start_node_manager(folder, programs, jdk, self._owner, manager)

        manager = self._up("yarn-manager", start, lambda found: found.url)
        self._up("yarn-node", start_node, lambda found: found.url)
        return manager

    def up_hdfs(self) -> HdfsDaemon:
        """Have a healthy HDFS of one DataNode; return its NameNode."""

        def start(folder: ServiceFolder, jdk: Jdk) -> HdfsDaemon:
            return hdfs_service.start_name_node(folder, self._fetch(jars.HADOOP, jdk), jdk, self._owner)

        def start_node(folder: ServiceFolder, jdk: Jdk) -> HdfsDaemon:
            return hdfs_service.start_data_node(folder, self._fetch(jars.HADOOP, jdk), jdk, self._owner, name_node)

        name_node = self._up("hdfs-name-node", start, lambda found: found.uri)
        self._up("hdfs-data-node", start_node, lambda found: found.uri)
        return name_node

    def up_flink(self, version: str = flink_service.CURRENT, s3: S3 | None = None) -> Flink:
        """Have a healthy Flink of this version: a JobManager, a TaskManager with eight slots, and an SQL Gateway.

        :param s3: where its checkpoints may be; with it the current Flink has what tables in S3 and catalogs of Hive's
            metastore want, too.
        """
        name = "flink" if version == flink_service.CURRENT else "old-flink"

        def start(folder: ServiceFolder, jdk: Jdk) -> FlinkDaemon:
            conf = self.folder / f"{name}-conf"
            distribution = flink_service.libraries(self.home / "jars", version, self._say)
            libraries = distribution, self._fetch(flink_service.JARS[version], jdk)
            setup = flink_service.Setup(libraries, jdk, self._owner, conf, flink_service.Ports.of(conf))
            if s3 is not None:
                setup = replace(
                    setup,
                    libraries=(*libraries, self._fetch(jars.FLINK_LAKES, jdk)),
                    plugins={"s3": self._fetch(jars.FLINK_S3, jdk)},
                    settings=flink_service.with_s3(s3),
                )
            return flink_service.start(folder, setup)

        manager = self._up(f"{name}-manager", start, lambda found: found.url)
        # A TaskManager that comes first waits ten seconds for its manager.
        with ThreadPoolExecutor(2) as both:
            rest = [both.submit(self._up, f"{name}-{one}", start, lambda found: found.url) for one in _BEHIND_MANAGER]
        return Flink(manager, *(one.result() for one in rest))

    def _up(self, name: str, start: Callable[[ServiceFolder, Jdk], Handle], where: Callable[[Handle], str]) -> Handle:
        with self._lock(name):
            running = self._running(name, cast(type[Handle], HANDLES[name]))
            if running is not None:
                self._say(f"{name}: already up at {where(running)}")
                return running
            self._refuse_when_gone()
            jdk = find_jdk()
            self._say(f"{name}: starting")
            started = start(self._service(name), jdk)
            self._say(f"{name}: up at {where(started)}")
            return started

    def _fetch(self, wanted: jars.JarSet, jdk: Jdk) -> Path:
        return jars.fetch(wanted, self.home / "jars", jdk, self._say)

    def up_airflow(self, dags_folder: Path = CHECKOUT / "dags", *, announce: bool = True) -> Airflow:
        """Have a healthy Airflow whose connections lead to this stack's broker, which comes up beside it.

        So does a PostgreSQL, for Airflow's own database.

        :param dags_folder: where its DAGs are; those of the checkout unless said otherwise.
        :param announce: say where it is, and how to log in.
        """
        with self._lock("airflow"):
            running = self._running("airflow", Airflow)
            if running is not None:
                self.up_kafka(announce=False)
                self._say(f"airflow: already up at {running.url}")
                return running
            find_jdk()
            while (airflow := self._start_beside_kafka(dags_folder)) is None:
                self._say("airflow: the broker is at another address than expected; starting again")
            where = f" at {airflow.url} (login {airflow.username}, password {airflow.password})" if announce else ""
            self._say(f"airflow: up{where}")
            return airflow

    def _start_beside_kafka(self, dags_folder: Path) -> Airflow | None:
        """Start both at once, Airflow with the address at which the broker is going to be; None if it is not there."""
        running = self._running("kafka", Kafka)
        expected = running.bootstrap if running else self._kafka_ports.bootstrap
        folder = self._service("airflow")
        with ThreadPoolExecutor(max_workers=1) as beside:
            broker = beside.submit(self.up_kafka, announce=False)
            database = self.up_postgres().new_database("airflow")
            self._say("airflow: starting (half a minute or so)")
            remind = Reminder(self._say, "airflow: still starting, which takes minutes on a busy machine")

            def check() -> None:
                remind()
                if broker.done():
                    broker.result()

            airflow = airflow_service.start(
                folder,
                dags_folder,
                database,
                {"bootstrap.servers": expected},
                self._owner,
                check=check,
            )
            if broker.result().bootstrap == expected:
                return airflow
            folder.remove()
            return None

    def restart_broker(self, broker: Broker) -> Broker:
        """Start one of the three brokers again that was killed or stopped, with the data that it had."""
        return broker.start_again(self._owner)

    def restart_connect(self, connect: Connect) -> Connect:
        """Start a worker of Kafka Connect that was killed again, with its connectors."""
        return connect.start_again(self._owner)

    def kafka(self) -> Kafka:
        """Return the broker that is up in this stack."""
        running = self._running("kafka", Kafka)
        if running is None:
            raise NotUp(f"kafka is not up in stack {self.name}: python -m dev up kafka --stack {self.name}")
        return running

    def _refuse_when_gone(self) -> None:
        # Another thread may still be on its way up while this one takes the stack down.
        if self._is_gone:
            raise NotUp(f"Stack {self.name} has been taken down: make a new one.")

    def down(self) -> list[str]:
        """Stop all services and remove their data; return the names of those that were there."""
        if self._owner is not None:
            return self._down_owned()
        stopped = []
        for name in reversed(SERVICES):
            with self._lock(name):
                if self._service(name).path.exists():
                    self._say(f"{name}: going down")
                    self._service(name).remove()
                    stopped.append(name)
        shutil.rmtree(self.folder, ignore_errors=True)
        return stopped

    def _down_owned(self) -> list[str]:
        # Letting go of the pipe is what death does as well: the way down of every day is the one after a SIGKILL.
        there = [name for name in SERVICES if self._service(name).path.exists()]
        folders = [self._service(name) for name in there]
        leashes = [(leash, folder.orderly_end) for folder in folders if (leash := folder.process("leash"))]
        self._is_gone = True
        if self._held_open is not None:
            os.close(self._held_open)
            self._held_open = None
        for leash, orderly_end in leashes:
            if not leash.wait_gone(20 + orderly_end):
                leash.stop(5)
        shutil.rmtree(self.folder, ignore_errors=True)
        return there

    def status(self) -> list[ServiceStatus]:
        """Look at each service that is, or was, up here."""
        return [self._status_of(name) for name in SERVICES if self._service(name).path.exists()]

    def log_of(self, service: str) -> Path:
        """Path of a service's log."""
        log = self._service(service).log
        if not log.exists():
            raise NotUp(f"{service} has no log in stack {self.name}: it is not up.")
        return log

    def keep_logs(self, folder: Path) -> None:
        """Copy the log of each service that has one into a folder, which is emptied before."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in SERVICES:
            if (log := self._service(name).log).exists():
                shutil.copyfile(log, folder / f"{name}.log")

    def _status_of(self, name: str) -> ServiceStatus:
        folder = self._service(name)
        process = folder.process("service")
        handle = self._handle_of(name)
        if handle is None:
            health = "starting" if folder.running else "not up"
        else:
            health = "healthy" if handle.healthy() else "not answering"
        pid = process.pid if process else None
        return ServiceStatus(name, pid, handle.ports if handle else {}, health, folder.path)

    def _handle_of(self, name: str) -> Service | None:
        return self._running(name, HANDLES[name])

    def _running(self, name: str, handle: type[Handle]) -> Handle | None:
        folder = self._service(name)
        state = folder.read_state()
        return handle(**state) if state and folder.running else None

    def _service(self, name: str) -> ServiceFolder:
        return ServiceFolder(name, self.folder / name)

    def _lock(self, service: str) -> AbstractContextManager[None]:
        return file_lock(self.folder / f"{service}.lock")


def all_stacks(home: Path = HOME) -> Iterator[Stack]:
    """Every stack that has a folder, by name."""
    for folder in sorted((home / "stacks").glob("*/")):
        yield Stack(folder.name, home=home)


def sweep(home: Path = HOME) -> None:
    """Remove stacks whose owner is gone and whose leashes were killed as well (a reboot, say)."""
    for stack in all_stacks(home):
        try:
            owner = ProcessId(**json.loads((stack.folder / _OWNER_FILE).read_text()))
        except (FileNotFoundError, json.JSONDecodeError):
            continue
        if not owner.alive:
            stack.down()
