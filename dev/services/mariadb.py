"""MariaDB, on the loopback only; its programs come as a jar, nobody has to install them.

It refuses to run as root: there it runs as `nobody`, in a folder that belongs to it.
"""

from __future__ import annotations

import secrets
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pymysql

from dev.errors import ServiceFailed
from dev.ports import LOOPBACK, free_ports
from dev.service import Owner, ServiceFolder, clean_environment

USERNAME = "lakestream"

_READY_WITHIN_S = 120
_TABLES = ("mariadb_system_tables.sql", "mariadb_system_tables_data.sql")


@dataclass(frozen=True)
class MariaDb:
    """A running server, as its clients see it."""

    port: int
    password: str
    pid: int
    folder: str

    @property
    def ports(self) -> dict[str, int]:
        """Its ports, by what they are for."""
        return {"sql": self.port}

    def connect(self, timeout: float = 10) -> pymysql.Connection:
        """Connect to it, to no database; each statement is its own transaction."""
        return pymysql.connect(
            host=LOOPBACK,
            port=self.port,
            user=USERNAME,
            password=self.password,
            autocommit=True,
            connect_timeout=int(timeout),
        )

    def new_database(self, name: str) -> str:
        """Make an empty database in the place of any of that name; return its URL, as SQLAlchemy takes it."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"drop database if exists {name}")
            cursor.execute(f"create database {name}")
        return f"mysql+pymysql://{USERNAME}:{self.password}@{LOOPBACK}:{self.port}/{name}"

    def follow(self, other: MariaDb, *, by: str) -> None:
        """Become a replica of another server, from where its log ends now; what this one's own log has is forgotten.

        :param by: `slave_pos`, or `no` for the log's file and position.
        """
        with other.connect() as connection, connection.cursor() as cursor:
            cursor.execute("show master status")
            file, position, *_ = cursor.fetchone()
            cursor.execute("select @@gtid_binlog_pos")
            (gtids,) = cursor.fetchone()
        where = f", master_log_file='{file}', master_log_pos={position}" if by == "no" else ""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("reset master")
            cursor.execute(f"set global gtid_slave_pos = '{gtids}'")
            cursor.execute(
                f"change master to master_host='{LOOPBACK}', master_port={other.port}, master_user='{USERNAME}', "
                f"master_password='{other.password}', master_ssl_verify_server_cert=0, "
                f"master_use_gtid={by}{where}"
            )
            cursor.execute("start slave")

    def healthy(self, timeout: float = 2) -> bool:
        """Whether it answers."""
        try:
            with self.connect(timeout):
                return True
        except pymysql.Error:
            return False


def start(folder: ServiceFolder, jars: Path, owner: Owner | None, number: int = 1) -> MariaDb:
    """Make new databases in `folder`, start the server, and wait until it answers.

    :param number: tells it from servers that it replicates, or that replicate it.
    """
    folder.prepare()
    (port,) = free_ports(1)
    home = _unpack(jars, folder.path / "programs")
    data, account, password = folder.path / "data", folder.path / "account.sql", secrets.token_hex(12)
    data.mkdir(mode=0o700)
    account.touch(mode=0o600)
    account.write_text(
        f"create user '{USERNAME}'@'{LOOPBACK}' identified by '{password}';\n"
        f"grant all on *.* to '{USERNAME}'@'{LOOPBACK}' with grant option;\n"
    )
    server = [*folder.as_nobody([data, account]), f"{home}/bin/mariadbd", "--no-defaults", f"--basedir={home}"]
    server += [f"--datadir={data}", f"--lc-messages-dir={home}/share", "--innodb-buffer-pool-size=64M"]
    # A database of tests: what a crash of the machine would lose is gone with its folder anyway.
    server += ["--innodb-flush-log-at-trx-commit=0", "--performance-schema=off", "--skip-name-resolve"]
    # Each catalog of a test keeps one until the collector comes.
    server += ["--max-connections=2000"]
    # What Debezium reads: each changed row, before and after.
    server += ["--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-image=FULL", f"--server-id={number}"]
    # As a replica it writes into its own log what it gets.
    server += ["--log-slave-updates"]
    # Without it, events do not say where they are in the log.
    server += ["--binlog-legacy-event-pos=ON"]
    _make_tables(folder, server, home)
    server += [f"--port={port}", f"--bind-address={LOOPBACK}", f"--socket={data / 's'}", f"--pid-file={data / 'pid'}"]
    leash = folder.start([*server, f"--init-file={account}"], owner, clean_environment(("MYSQL", "MARIADB")))
    found = MariaDb(port, password, 0, str(folder.path))
    return folder.ready(found, leash, _READY_WITHIN_S)


def _unpack(jars: Path, target: Path) -> Path:
    """Unpack what the server needs; return its folder."""
    (jar,) = jars.glob("*.jar")
    with zipfile.ZipFile(jar) as packed:
        needed = [name for name in packed.namelist() if name.endswith((".sql", "/mariadbd", "/errmsg.sys"))]
        needed += [name for name in packed.namelist() if "/share/charsets/" in name]
        packed.extractall(target, needed)
    (program,) = target.rglob("bin/mariadbd")
    program.chmod(0o755)
    return program.parent.parent


def _make_tables(folder: ServiceFolder, server: list[str], home: Path) -> None:
    statements = "create database mysql;\nuse mysql;\nset @auth_root_socket=null;\nset @skip_auth_anonymous=1;\n"
    statements += "\n".join((home / "share" / name).read_text() for name in _TABLES)
    with folder.log.open("ab") as log:
        done = subprocess.run(
            [*server, "--bootstrap"],
            input=statements.encode(),
            cwd=folder.path,
            stdout=log,
            stderr=log,
            check=False,
            timeout=120,
        )
    if done.returncode != 0:
        raise ServiceFailed(folder.name, f"could not make its tables (exit {done.returncode})", folder.log)
