"""Brokers and topics of a cluster, and checks of the network and of TLS between this machine and the brokers."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from airflow_lakestream.core.printable import with_port
from airflow_lakestream.kafka.client import ClientErrors, admin_config, open_client
from airflow_lakestream.kafka.errors import AUTHENTICATION, AUTHORIZATION, KafkaRefused, KafkaUnavailable
from airflow_lakestream.kafka.requests import REQUEST_TIMEOUT, KafkaRequests

_CONNECT_SECONDS = 5.0
_DEFAULT_PORT = 9092


@dataclass(frozen=True)
class BrokerAddress:
    """Host and port of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return with_port(self.host, self.port)

    def problem(self) -> str | None:
        """Return the reason why no connection can be made, or None."""
        try:
            with self._connect():
                return None
        except socket.gaierror:
            return f"the name {self.host!r} is unknown here"
        except TimeoutError:
            return f"nothing answers within {_CONNECT_SECONDS:.0f} s"
        except (OSError, UnicodeError, OverflowError) as e:
            return str(getattr(e, "strerror", None) or e).lower()

    def speaks_tls(self) -> bool | None:
        """Return whether the port speaks TLS, with any certificate.

        False if the port answers in another way, or ends the connection. None if unknown: nothing answers.
        """
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with self._connect() as connected, context.wrap_socket(connected, server_hostname=self.host):
                return True
        except ssl.SSLError as e:
            # An alert is an answer in TLS, such as one that asks for a certificate.
            return "ALERT" in str(e.reason)
        except ConnectionError:
            return False
        except OSError:
            return None

    def _connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=_CONNECT_SECONDS)


@dataclass(frozen=True)
class ClusterBrokers:
    """A cluster's id, and the brokers' addresses as given to clients."""

    cluster_id: str
    addresses: Sequence[BrokerAddress]


class KafkaCluster(KafkaRequests):
    """A connection's cluster."""

    def brokers(self) -> ClusterBrokers:
        """Return the cluster's id and brokers. Raises KafkaRefused, KafkaUnavailable, KafkaMisconfigured."""
        description = self._ask(
            "describing the cluster", lambda: self._client().describe_cluster(request_timeout=REQUEST_TIMEOUT)
        )
        return ClusterBrokers(
            str(description.cluster_id), [BrokerAddress(node.host, node.port) for node in description.nodes]
        )


def bootstrap_addresses(connection: Mapping[str, Any]) -> list[BrokerAddress]:
    """Return the brokers named by a connection, without asking the cluster.

    A broker without a port gets the default port. Raises ValueError for an invalid port.
    """
    text = str(connection.get("bootstrap.servers") or connection.get("metadata.broker.list") or "")
    addresses = []
    for part in filter(None, (one.strip() for one in text.split(","))):
        host, _, port = with_port(part.rpartition("://")[2], _DEFAULT_PORT).rpartition(":")
        addresses.append(BrokerAddress(host.strip("[]"), int(port)))
    return addresses


# A refused password is only noticed between two requests.
_ONE_REQUEST = 2.0
_DOING = "listing the topics"


def list_topics(connection: Mapping[str, Any], where: str) -> list[str]:
    """Return the names of all topics visible to the user, including internal topics.

    Raises KafkaRefused, KafkaUnavailable, KafkaMisconfigured.

    :param connection: librdkafka configuration.
    :param where: name of the connection for errors.
    """
    errors = ClientErrors()
    client = open_client(AdminClient, admin_config(connection, errors), where)
    deadline = time.monotonic() + REQUEST_TIMEOUT
    while True:
        try:
            return sorted(client.list_topics(timeout=_ONE_REQUEST).topics)
        except KafkaException as e:
            error = e.args[0]
            if error.code() in AUTHENTICATION | AUTHORIZATION:
                raise KafkaRefused(where, _DOING, error.str()) from e
            client.poll(0)
            if errors.fatal is not None:
                raise KafkaRefused(where, _DOING, errors.fatal.str()) from e
            left = deadline - time.monotonic()
            if left <= 0 or errors.are_all_down:
                raise KafkaUnavailable(where, _DOING, REQUEST_TIMEOUT - left, errors.last or error.str()) from e
