"""A broker that pods reach, and streams whose drivers are pods."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.ports import free_ports
from dev.services.kafka import Kafka
from dev.stack import Stack
from tests.support.airflow_home import AirflowHome, Connections
from tests.support.broker import QUICK_CLEANUP
from tests.support.pod_streams import CANARY, PodStream
from tests.support.pods import Namespace


@pytest.fixture(scope="session")
def kafka(stack: Stack) -> Kafka:
    """A broker that listens at the bridge's address, too."""
    ports = stack._kafka_ports
    # Kafka wants another port for each of its listeners.
    (of_pods,) = free_ports(1)
    listeners = f"PLAINTEXT://127.0.0.1:{ports.plain},PODS://{stack.up_kubernetes().ADDRESS}:{of_pods}"
    listeners += f",SASL_SSL://127.0.0.1:{ports.secure}"
    overrides = QUICK_CLEANUP | {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{ports.controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PODS:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
    }
    return stack.up_kafka(overrides=overrides)


@pytest.fixture
def connected(connections: Connections, kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> Connections:
    """Connections that lead pods to the broker, and hold a password."""
    listeners = kafka.overrides["advertised.listeners"].split(",")
    (address,) = [part.removeprefix("PODS://") for part in listeners if part.startswith("PODS://")]
    connections.kafka({"bootstrap.servers": address})
    monkeypatch.setenv("AIRFLOW_CONN_HIDDEN", f'{{"conn_type": "generic", "password": "{CANARY}"}}')
    return connections


@pytest.fixture
def stream(airflow: AirflowHome, connected: Connections, namespace: Namespace, tmp_path: Path) -> PodStream:
    """DAGs of one landing on Kubernetes."""
    return PodStream(airflow, connected, namespace)
