"""Client configuration: what this package forces on every client, and where the clients' own errors go."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.kafka.errors import AUTHENTICATION

log = logging.getLogger(__name__)
client_log = logging.getLogger("airflow_lakestream.librdkafka")

# Kept from the connection for every client; everything else that a shared connection says of groups, commits and
# resets does not apply here, since ranges are assigned and progress stands in the table.
_NOT_FOR_US = frozenset(
    {
        "group.id",
        "group.instance.id",
        "group.protocol",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "auto.commit.interval.ms",
        "auto.offset.reset",
        "partition.assignment.strategy",
        "on_commit",
        "logger",
        "error_cb",
    }
)


class ClientErrors:
    """Remembers what librdkafka reports in the background: it is the cause behind a time-out."""

    def __init__(self) -> None:
        self.last = ""
        self.fatal: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Take an error from librdkafka's error_cb."""
        self.last = f"{error.name()}: {error.str()}"
        if error.code() in AUTHENTICATION or error.fatal():
            self.fatal = error


def admin_config(connection: Mapping[str, Any], errors: ClientErrors) -> dict[str, Any]:
    """Return the configuration of an admin client on the same connection."""
    config = {key: value for key, value in connection.items() if key not in _NOT_FOR_US}
    config.pop("isolation.level", None)
    # Several tries of a failed connection within our own time-out, and a quiet log in between.
    config.setdefault("reconnect.backoff.max.ms", 1000)
    return {**config, "error_cb": errors, "logger": client_log}


def consumer_config(connection: Mapping[str, Any], group: str, errors: ClientErrors) -> dict[str, Any]:
    """Return the configuration of a consumer that reads assigned ranges and never commits."""
    config = {key: value for key, value in connection.items() if key not in _NOT_FOR_US}
    config.setdefault("isolation.level", "read_committed")
    config.setdefault("reconnect.backoff.max.ms", 1000)
    # Bounds what librdkafka holds ahead of us; the rest of the memory is in our own batches.
    config.setdefault("queued.max.messages.kbytes", 32 * 1024)
    config.setdefault("queued.min.messages", 100_000)
    config.setdefault("max.partition.fetch.bytes", 4 * 2**20)
    config.setdefault("fetch.wait.max.ms", 100)
    return {
        **config,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "error_cb": errors,
        "logger": client_log,
    }


def isolation_level(connection: Mapping[str, Any]) -> IsolationLevel:
    """Return the isolation level of the connection: read_committed unless it says otherwise."""
    value = str(connection.get("isolation.level", "read_committed"))
    levels = {"read_committed": IsolationLevel.READ_COMMITTED, "read_uncommitted": IsolationLevel.READ_UNCOMMITTED}
    if value not in levels:
        raise InvalidArgument("isolation.level", f"{value!r} is neither read_committed nor read_uncommitted.")
    return levels[value]
