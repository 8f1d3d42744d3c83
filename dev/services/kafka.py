"""Kafka in KRaft mode: one node, broker and controller, on the loopback only.

Two listeners for clients: a plain one, and SASL_SSL with SCRAM-SHA-256 and a self-signed certificate. Three brokers of
one cluster are in `brokers`.
"""

from __future__ import annotations

import base64
import secrets
import subprocess
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from dev.errors import ServiceFailed
from dev.java import Jdk
from dev.ports import LOOPBACK, free_ports, listening
from dev.service import Owner, ServiceFolder, clean_environment

USERNAME = "lakestream"

_READY_WITHIN_S = 90
_ATTEMPTS = 3

_LOG4J = """\
<Configuration status="WARN">
  <Appenders>
    <Console name="out" target="SYSTEM_OUT"><PatternLayout pattern="%d{ISO8601} %-5p %c{1}: %m%n"/></Console>
  </Appenders>
  <Loggers><Root level="INFO"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


@dataclass(frozen=True)
class Kafka:
    """A running broker, as its clients see it."""

    bootstrap: str
    secure_bootstrap: str
    username: str
    password: str
    ca_file: str
    pid: int
    folder: str
    overrides: dict[str, str]

    def client_config(self) -> dict[str, str]:
        """Return the settings of a confluent_kafka client for the plain listener."""
        return {"bootstrap.servers": self.bootstrap}

    def secure_client_config(self) -> dict[str, str]:
        """Return the settings of a confluent_kafka client for the SASL_SSL listener."""
        return {
            "bootstrap.servers": self.secure_bootstrap,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": self.username,
            "sasl.password": self.password,
            "ssl.ca.location": self.ca_file,
        }

    @property
    def ports(self) -> dict[str, int]:
        """Its ports, by listener."""
        return {
            "plain": int(self.bootstrap.rsplit(":", 1)[1]),
            "sasl_ssl": int(self.secure_bootstrap.rsplit(":", 1)[1]),
        }

    def healthy(self, timeout: float = 2) -> bool:
        """Whether the broker answers a request for its metadata."""
        if not listening(self.ports["plain"]):
            return False
        # log_level 0: a broker that is not there yet is no news.
        client = AdminClient({**self.client_config(), "log_level": 0})
        try:
            return bool(client.list_topics(timeout=timeout).brokers)
        except KafkaException:
            return False


@dataclass(frozen=True)
class Ports:
    """Where a broker listens."""

    plain: int
    secure: int
    controller: int

    @classmethod
    def find(cls) -> Ports:
        """Find ports that are free now."""
        return cls(*free_ports(3))

    @property
    def bootstrap(self) -> str:
        """The plain listener, as clients address it."""
        return f"{LOOPBACK}:{self.plain}"


@dataclass(frozen=True)
class Setup:
    """What a broker is started with."""

    jars: Path
    jdk: Jdk
    owner: Owner | None
    overrides: dict[str, str]


def start(folder: ServiceFolder, setup: Setup, ports: Ports) -> Kafka:
    """Start a new broker in `folder`, at `ports` if they are still free, and wait until it answers."""
    for attempt in range(1, _ATTEMPTS + 1):
        folder.prepare()
        try:
            return _start_once(folder, setup, ports)
        except ServiceFailed:
            # Between our look at a free port and the broker's bind somebody else may have taken it.
            if attempt == _ATTEMPTS or "Address already in use" not in folder.log.read_text(errors="replace"):
                raise
            ports = Ports.find()
    raise AssertionError("unreachable")


def _start_once(folder: ServiceFolder, setup: Setup, ports: Ports) -> Kafka:
    jdk = setup.jdk
    password, store_password = secrets.token_hex(12), secrets.token_hex(12)
    properties = _properties(folder.path, ports, store_password) | setup.overrides
    write_settings(folder.path, properties)
    java = [jdk.java, *jvm_options(folder.path, setup.jars), *_allowed(properties)]
    with ThreadPoolExecutor(max_workers=1) as beside:
        certifying = beside.submit(_write_certificate, folder, jdk, store_password)
        _format(folder, java, password)
        certificate = certifying.result()
    command = [*java, "-Xms256m", "-Xmx1g", "-XX:+UseG1GC", "kafka.Kafka", str(folder.path / "server.properties")]
    leash = folder.start(command, setup.owner, clean_environment(drop=("KAFKA_",)))
    kafka = Kafka(
        bootstrap=ports.bootstrap,
        secure_bootstrap=f"{LOOPBACK}:{ports.secure}",
        username=USERNAME,
        password=password,
        ca_file=str(certificate),
        pid=0,
        folder=str(folder.path),
        overrides=setup.overrides,
    )
    folder.wait_ready(kafka.healthy, leash, _READY_WITHIN_S)
    service = folder.process("service")
    assert service is not None
    kafka = Kafka(**{**asdict(kafka), "pid": service.pid})
    folder.write_state(asdict(kafka))
    return kafka


def _allowed(properties: Mapping[str, str]) -> list[str]:
    """Return what lets a broker ask for the keys that tokens are signed with: it asks no address that it may not."""
    wanted = [value for key, value in properties.items() if key.endswith("sasl.oauthbearer.jwks.endpoint.url")]
    return [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={','.join(wanted)}"] if wanted else []


def write_settings(folder: Path, properties: Mapping[str, str]) -> None:
    """Write what a broker reads when it starts."""
    _write(folder / "server.properties", "".join(f"{key}={value}\n" for key, value in properties.items()))
    _write(folder / "log4j2.xml", _LOG4J)
    (folder / "tmp").mkdir()


def jvm_options(folder: Path, jars: Path) -> list[str]:
    """Return what each of Kafka's programs is started with, before its class."""
    return [
        # All that a JVM would leave in the machine's temporary folder when killed, native libraries included.
        f"-Djava.io.tmpdir={folder / 'tmp'}",
        "-XX:-UsePerfData",
        "-XX:+ExitOnOutOfMemoryError",
        f"-Dlog4j2.configurationFile={folder / 'log4j2.xml'}",
        "-cp",
        f"{jars}/*",
    ]


def _properties(folder: Path, ports: Ports, store_password: str) -> dict[str, str]:
    listeners = f"PLAINTEXT://{LOOPBACK}:{ports.plain},SASL_SSL://{LOOPBACK}:{ports.secure}"
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{LOOPBACK}:{ports.controller}",
        "listeners": f"{listeners},CONTROLLER://{LOOPBACK}:{ports.controller}",
        "advertised.listeners": listeners,
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(folder / "broker.p12"),
        "ssl.keystore.password": store_password,
        **log_properties(folder, copies=1),
    }


def log_properties(folder: Path, copies: int) -> dict[str, str]:
    """Return what logs are like, also those of Kafka's own topics: so many copies, of which one may be away."""
    replicas, least = str(copies), str(max(1, copies - 1))
    return {
        "log.dirs": str(folder / "data"),
        "auto.create.topics.enable": "false",
        "num.partitions": "1",
        "default.replication.factor": replicas,
        "min.insync.replicas": least,
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": least,
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": least,
        "group.initial.rebalance.delay.ms": "0",
    }


def _write_certificate(folder: ServiceFolder, jdk: Jdk, store_password: str) -> Path:
    """Make the broker's key and self-signed certificate; return the certificate in PEM, for clients."""
    certificate = folder.path / "ca.pem"
    # An elliptic key is made at once; an RSA key takes up to some seconds.
    key = ["-genkeypair", "-keyalg", "EC", "-groupname", "secp256r1", "-dname", "CN=localhost", "-validity", "3650"]
    key += ["-ext", f"SAN=dns:localhost,ip:{LOOPBACK}"]
    store = ["-keystore", "broker.p12", "-storetype", "PKCS12", "-storepass", store_password, "-alias", "broker"]
    for arguments in (key, ["-exportcert", "-rfc", "-file", certificate.name]):
        _run([jdk.tool("keytool"), "-J-XX:TieredStopAtLevel=1", *arguments, *store], folder, "make a certificate")
    return certificate


def _format(folder: ServiceFolder, java: list[str], password: str) -> None:
    scram = f"SCRAM-SHA-256=[name={USERNAME},password={password}]"
    format_disk(folder, java, new_cluster_id(), "--add-scram", scram)


def new_cluster_id() -> str:
    """Make an id, as Kafka's own tool does."""
    while (cluster_id := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return cluster_id


def format_disk(folder: ServiceFolder, java: list[str], cluster_id: str, *more: str) -> None:
    """Prepare the folder of a broker's logs.

    :param java: the program and its options.
    """
    arguments = ["-t", cluster_id, "-c", str(folder.path / "server.properties"), *more]
    # It runs for a second: the full compiler would only cost.
    _run([*java, "-XX:TieredStopAtLevel=1", "kafka.tools.StorageTool", "format", *arguments], folder, "format its disk")


def _run(command: list[str], folder: ServiceFolder, purpose: str) -> None:
    with folder.log.open("ab") as log:
        done = subprocess.run(command, cwd=folder.path, stdout=log, stderr=log, check=False, timeout=120)
    if done.returncode != 0:
        raise ServiceFailed(folder.name, f"could not {purpose} ({folder.last_words()})", folder.log)


def _write(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)
