"""PostgreSQL 15 with logical decoding, on the loopback only; its programs come as a jar, nobody has to install them.

It refuses to run as root: there it runs as `nobody`, in a folder that belongs to it.
"""

from __future__ import annotations

import lzma
import platform
import secrets
import subprocess
import tarfile
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg

from dev.archives import unpack
from dev.errors import ServiceFailed
from dev.jars import JarSet
from dev.ports import LOOPBACK, free_ports
from dev.service import Owner, ServiceFolder, clean_environment

USERNAME = "lakestream"
DATABASE = "shop"

_READY_WITHIN_S = 60
_VERSION = "15.15.0"
_PROCESSORS = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64v8", "arm64": "arm64v8"}


def jar_set() -> JarSet:
    """Return the jar that holds the programs for this machine."""
    system = platform.system().lower()
    module = f"embedded-postgres-binaries-{system}-{_PROCESSORS.get(platform.machine(), platform.machine())}"
    name = f"postgresql-{_VERSION}-{system}"
    return JarSet(name, (("io.zonky.test.postgres", module, _VERSION),), size="14 MB")


@dataclass(frozen=True)
class Postgres:
    """A running server, as its clients see it."""

    host: str
    port: int
    database: str
    username: str
    password: str
    pid: int
    folder: str

    @property
    def ports(self) -> dict[str, int]:
        """Its ports, by what they are for."""
        return {"sql": self.port}

    def connect(self, timeout: float = 10) -> psycopg.Connection[tuple[object, ...]]:
        """Connect to its database; each statement is its own transaction unless one is begun."""
        return psycopg.connect(
            host=self.host,
            port=self.port,
            dbname=self.database,
            user=self.username,
            password=self.password,
            autocommit=True,
            connect_timeout=int(timeout),
        )

    def new_database(self, name: str) -> str:
        """Make an empty database in the place of any of that name; return its URL, as SQLAlchemy takes it."""
        with self.connect() as connection:
            connection.execute(f"drop database if exists {name} with (force)")
            connection.execute(f"create database {name}")
        return f"postgresql+psycopg://{self.username}:{self.password}@{self.host}:{self.port}/{name}"

    def healthy(self, timeout: float = 2) -> bool:
        """Whether it answers, and has its database."""
        try:
            with self.connect(timeout) as connection:
                return connection.execute("select 1").fetchone() == (1,)
        except psycopg.Error:
            return False


def start(folder: ServiceFolder, jars: Path, owner: Owner | None) -> Postgres:
    """Make a new cluster in `folder`, start it, and wait until its database is there."""
    folder.prepare()
    (port,) = free_ports(1)
    programs = _unpack(jars, folder.path / "postgres")
    data, password = folder.path / "data", secrets.token_hex(12)
    data.mkdir(mode=0o700)
    (folder.path / "password").touch(mode=0o600)
    (folder.path / "password").write_text(password)
    lower = folder.as_nobody([data, folder.path / "password"])
    account = ["-U", USERNAME, f"--pwfile={folder.path / 'password'}", "--auth=scram-sha-256"]
    _run(folder, [*lower, f"{programs}/initdb", "-D", str(data), "-E", "UTF8", "--locale=C", "-N", *account])
    settings = {
        "listen_addresses": LOOPBACK,
        "port": str(port),
        "unix_socket_directories": "",
        "wal_level": "logical",
        "shared_buffers": "32MB",
        # Airflow's five processes have pools, and so have the tests of each worker.
        "max_connections": "300",
        # One for each connector of Debezium's; tests of several workers make them at once.
        "max_replication_slots": "40",
        "max_wal_senders": "40",
        # A database of tests: what a crash of the machine would lose is gone with its folder anyway.
        "fsync": "off",
        "full_page_writes": "off",
    }
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    leash = folder.start([*lower, f"{programs}/postgres", "-D", str(data), *options], owner, clean_environment(("PG",)))
    server = Postgres(LOOPBACK, port, "postgres", USERNAME, password, 0, str(folder.path))
    folder.wait_ready(server.healthy, leash, _READY_WITHIN_S)
    with server.connect() as connection:
        connection.execute(f"create database {DATABASE}")
    service = folder.process("service")
    assert service is not None
    server = Postgres(**{**asdict(server), "database": DATABASE, "pid": service.pid})
    folder.write_state(asdict(server))
    return server


def _unpack(jars: Path, target: Path) -> str:
    """Unpack the programs; return their folder."""
    (jar,) = jars.glob("*.jar")
    with zipfile.ZipFile(jar) as outer:
        (name,) = (name for name in outer.namelist() if name.endswith(".txz"))
        with outer.open(name) as packed, lzma.open(packed) as plain, tarfile.open(fileobj=plain) as inner:
            unpack(inner, target)
    return str(target / "bin")


def _run(folder: ServiceFolder, command: list[str]) -> None:
    with folder.log.open("ab") as log:
        done = subprocess.run(command, cwd=folder.path, stdout=log, stderr=log, check=False, timeout=120)
    if done.returncode != 0:
        raise ServiceFailed(folder.name, f"could not make its cluster ({folder.last_words()})", folder.log)
