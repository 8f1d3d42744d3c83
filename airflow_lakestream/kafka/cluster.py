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
    """A broker's address, and checks of a connection to this address."""

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
        """Return whether the port speaks TLS, with any certificate; None if nothing answers.

        False if the port answers in another way, or ends the connection.
        """
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with self._connect() as connected, context.wrap_socket(connected, server_hostname=self.host):
                return True
        except ssl.SSLError as e:
            # An alert, such as a request for a client certificate, is an answer in TLS.
            return "ALERT" in str(e.reason)
        except ConnectionError:
            return False
        except OSError:
            return None

    def _connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=_CONNECT_SECONDS)


@dataclass(frozen=True)
class ClusterBrokers:
    """A cluster's id, and the addresses that its brokers advertise to clients."""

    cluster_id: str
    addresses: Sequence[BrokerAddress]


class KafkaCluster(KafkaRequests):
    """The cluster of a connection."""

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
    for broker in filter(None, map(str.strip, text.split(","))):
        # A broker may be given with a protocol, such as "SSL://host:9093"; an IPv6 address has brackets.
        host, _, port = with_port(broker.rpartition("://")[2], _DEFAULT_PORT).rpartition(":")
        addresses.append(BrokerAddress(host.strip("[]"), int(port)))
    return addresses


# Seconds for a single request: a refused password is only noticed between two requests.
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
