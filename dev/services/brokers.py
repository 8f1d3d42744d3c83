"""Three brokers of one Kafka, each in a rack of its own and a controller, too: one of them may die.

Whatever is made has three copies, of which two have to have a record before it counts. Leaders move only when a broker
goes, and when somebody asks for it; clients that say their rack may read from the copy in it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from dev.java import Jdk
from dev.leash import PIDS_FILE
from dev.locks import file_lock
from dev.ports import LOOPBACK, free_ports, listening
from dev.service import Owner, ServiceFolder, clean_environment
from dev.services.kafka import format_disk, jvm_options, log_properties, new_cluster_id, write_settings

NODES = (1, 2, 3)

_READY_WITHIN_S = 90
# Of a broker, for another start with the data that it had.
_COMMAND = "command.json"


@dataclass(frozen=True)
class Plan:
    """What the brokers have to know of each other before the first one starts."""

    cluster_id: str
    clients: dict[str, int]
    controllers: dict[str, int]
    """Ports, by node."""

    @classmethod
    def of(cls, folder: Path) -> Plan:
        """Return that of a stack: it is made once."""
        file = folder / "brokers.json"
        with file_lock(folder / "brokers.lock"):
            if not file.exists():
                ports = free_ports(2 * len(NODES))
                names = [str(node) for node in NODES]
                clients, controllers = (dict(zip(names, half, strict=True)) for half in (ports[:3], ports[3:]))
                file.write_text(json.dumps(asdict(cls(new_cluster_id(), clients, controllers))))
        return cls(**json.loads(file.read_text()))

    @property
    def bootstrap(self) -> str:
        """The brokers, as clients address them."""
        return ",".join(f"{LOOPBACK}:{port}" for port in self.clients.values())


@dataclass(frozen=True)
class Broker:
    """One of the brokers, as its clients see it; `bootstrap` has them all."""

    node: int
    address: str
    bootstrap: str
    pid: int
    folder: str

    @property
    def rack(self) -> str:
        """Where it stands."""
        return f"rack-{self.node}"

    @property
    def ports(self) -> dict[str, int]:
        """Its ports, by listener."""
        return {"plain": int(self.address.rsplit(":", 1)[1])}

    def client_config(self) -> dict[str, str]:
        """Return the settings of a confluent_kafka client of all of them."""
        return {"bootstrap.servers": self.bootstrap}

    def healthy(self, timeout: float = 2) -> bool:
        """Whether this broker itself answers a request for metadata."""
        if not listening(self.ports["plain"]):
            return False
        client = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        try:
            return self.node in client.list_topics(timeout=timeout).brokers
        except KafkaException:
            return False

    @property
    def service(self) -> ServiceFolder:
        """What it has on disk, and its processes."""
        return ServiceFolder(Path(self.folder).name, Path(self.folder))

    def start_again(self, owner: Owner | None) -> Broker:
        """Start the broker that was killed or stopped once more, with the data that it had."""
        command = json.loads((self.service.path / _COMMAND).read_text())
        # What it says of the process before would pass for news of this one.
        (self.service.path / PIDS_FILE).unlink(missing_ok=True)
        return _start(self.service, command, owner, self)


@dataclass(frozen=True)
class Setup:
    """What a broker is started with."""

    node: int
    plan: Plan
    jars: Path
    jdk: Jdk
    owner: Owner | None


def start(folder: ServiceFolder, setup: Setup) -> Broker:
    """Start a new broker in `folder`, and wait until it answers, for which it needs another one."""
    folder.prepare()
    write_settings(folder.path, _properties(folder.path, setup.node, setup.plan))
    java = [str(setup.jdk.java), *jvm_options(folder.path, setup.jars)]
    format_disk(folder, java, setup.plan.cluster_id)
    settings = str(folder.path / "server.properties")
    command = [*java, "-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "kafka.Kafka", settings]
    (folder.path / _COMMAND).write_text(json.dumps(command))
    address = f"{LOOPBACK}:{setup.plan.clients[str(setup.node)]}"
    return _start(folder, command, setup.owner, Broker(setup.node, address, setup.plan.bootstrap, 0, str(folder.path)))


def _start(folder: ServiceFolder, command: list[str], owner: Owner | None, broker: Broker) -> Broker:
    leash = folder.start(command, owner, clean_environment(drop=("KAFKA_",)))
    return folder.ready(broker, leash, _READY_WITHIN_S)


def _properties(folder: Path, node: int, plan: Plan) -> dict[str, str]:
    plain = f"PLAINTEXT://{LOOPBACK}:{plan.clients[str(node)]}"
    return {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "broker.rack": f"rack-{node}",
        "controller.quorum.voters": ",".join(f"{name}@{LOOPBACK}:{port}" for name, port in plan.controllers.items()),
        "listeners": f"{plain},CONTROLLER://{LOOPBACK}:{plan.controllers[str(node)]}",
        "advertised.listeners": plain,
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "auto.leader.rebalance.enable": "false",
        "unclean.leader.election.enable": "false",
        # A broker that is dead is known to be so within seconds, and one on a busy machine is not taken for dead.
        "broker.session.timeout.ms": "6000",
        "broker.heartbeat.interval.ms": "1000",
        "controller.quorum.fetch.timeout.ms": "3000",
        **log_properties(folder, copies=len(NODES)),
    }
