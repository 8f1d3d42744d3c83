"""Configuration and background errors of librdkafka clients."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.kafka.errors import AUTHENTICATION, KafkaMisconfigured

log = logging.getLogger(__name__)
client_log = logging.getLogger("airflow_lakestream.librdkafka")

# Dropped from the connection for every client: settings of groups, commits and resets do not apply here, since
# ranges are assigned and progress is kept in the table.
NOT_FOR_US = frozenset(
    {
        *("group.id", "group.instance.id", "group.protocol", "partition.assignment.strategy", "auto.offset.reset"),
        *("enable.auto.commit", "enable.auto.offset.store", "auto.commit.interval.ms"),
        *("on_commit", "logger", "error_cb"),
    }
)

# A failed connection is tried several times within our time-outs; librdkafka's default is twenty times a second.
_RECONNECTION = {
    "reconnect.backoff.ms": 500,
    "reconnect.backoff.max.ms": 1000,
    "socket.connection.setup.timeout.ms": 10_000,
}
# Seconds until a repeated line of librdkafka's log is logged again.
LOG_INTERVAL = 10.0
# Seconds without any reachable broker after which requests fail: a single restarted broker is back by then.
ALL_DOWN_TIMEOUT = 5.0
# The thread's name before a line of librdkafka's log, and the age of the connection after the line.
_THREAD = re.compile(r"^\[thrd:[^\]]*\]: ")
_AGE = re.compile(r" \(after \d+ms.*", re.DOTALL)
# The brokers' certificate is not trusted here, or the brokers refuse this client's: waiting mends neither.
_UNTRUSTED = re.compile(r"certificate verify failed|\balert\b.*(certificate|unknown ca)")

Client = TypeVar("Client")


class ClientErrors:
    """Background errors of a librdkafka client, the only source for the cause of a time-out.

    The client calls this object as its `error_cb` and as its `logger`: some causes, such as a listener that hangs up
    on a client with another security.protocol, are only logged. `last` is the text of the newest error, `fatal` an
    error that no waiting mends, `too_large` the text of an error about a batch above receive.message.max.bytes, or "".
    """

    def __init__(self) -> None:
        self.last = ""
        self.fatal: KafkaError | None = None
        self.too_large = ""
        # The monotonic time since which no broker is reachable, or None.
        self.down_since: float | None = None
        # By line: the time of its last logging, and the number of repetitions since.
        self._logged: dict[str, tuple[float, int]] = {}

    def __call__(self, error: KafkaError) -> None:
        """Keep an error from librdkafka's error_cb as the likely cause of a time-out."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN and self.down_since is None:
            self.down_since = time.monotonic()
        # "All brokers down" comes after the error with the cause: keep the cause.
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self.last:
            self.last = f"{error.name()}: {error.str()}"
        if "receive.message.max.bytes" in error.str():
            self.too_large = error.str()
        if error.code() in AUTHENTICATION or error.fatal() or _UNTRUSTED.search(error.str()):
            self.fatal = error

    @property
    def are_all_down(self) -> bool:
        """Whether no broker has been reachable for ALL_DOWN_TIMEOUT seconds: a longer wait is not worthwhile."""
        return self.down_since is not None and time.monotonic() - self.down_since >= ALL_DOWN_TIMEOUT

    def log(self, _: int, template: str, facility: str, client: str, text: str) -> None:
        """Log a line of librdkafka's log at DEBUG; a repeated line at most once in LOG_INTERVAL seconds.

        The line's own level, the first argument, is ignored. The last line of facility FAIL is kept in `last`, which
        the error at the end of a task quotes.
        """
        text = _THREAD.sub("", text)
        if facility == "FAIL":
            self.last = text
        text_without_age, now = _AGE.sub("", text), time.monotonic()
        logged_at, repetitions = self._logged.get(text_without_age, (-LOG_INTERVAL, 0))
        if now - logged_at < LOG_INTERVAL:
            self._logged[text_without_age] = logged_at, repetitions + 1
            return
        self._logged[text_without_age] = now, 0
        client_log.debug(template + (f" (and {repetitions} times more)" if repetitions else ""), facility, client, text)


def open_client(kind: Callable[[dict[str, Any]], Client], config: dict[str, Any], where: str) -> Client:
    """Create a client. Raises KafkaMisconfigured without brokers, or if librdkafka refuses the settings.

    :param kind: the client's class.
    :param where: name of the connection, for errors.
    """
    if not config.get("bootstrap.servers") and not config.get("metadata.broker.list"):
        raise KafkaMisconfigured(where, "bootstrap.servers is missing")
    try:
        return kind(config)
    except KafkaException as e:
        raise KafkaMisconfigured(where, e.args[0].str()) from e
    except (TypeError, ValueError) as e:
        raise KafkaMisconfigured(where, str(e)) from e


def admin_config(connection: Mapping[str, Any], errors: ClientErrors) -> dict[str, Any]:
    """Return librdkafka's configuration of an admin client or a producer; `errors` gets background errors and log."""
    config = {key: value for key, value in connection.items() if key not in NOT_FOR_US}
    config.pop("isolation.level", None)
    return {**_RECONNECTION, **config, "error_cb": errors, "logger": errors}


def consumer_config(connection: Mapping[str, Any], group: str, errors: ClientErrors) -> dict[str, Any]:
    """Return librdkafka's configuration of a consumer for assigned ranges, without commits.

    The connection's settings win over the defaults here, except settings of groups, commits and resets (NOT_FOR_US),
    which are dropped.

    :param group: the group's name in brokers' logs.
    :param errors: gets the client's background errors and log.
    """
    config = {key: value for key, value in connection.items() if key not in NOT_FOR_US}
    config.setdefault("isolation.level", "read_committed")
    # Without checksums, a changed byte on a broker's disk would become a row. Java's clients check by default, too.
    config.setdefault("check.crcs", True)
    # Bounds the memory for records that librdkafka reads ahead. The size of an answer is bounded by the same setting:
    # `fetch.max.bytes` follows it by default, and is not set here, since librdkafka refuses a `message.max.bytes`
    # above an explicit `fetch.max.bytes`.
    config.setdefault("queued.max.messages.kbytes", 16 * 1024)
    # Each message takes some 500 bytes in addition to its value. 100,000 messages and fetches of 4 MiB were no faster
    # and took 150 MiB more: a decompressed answer is several times as large.
    config.setdefault("queued.min.messages", 20_000)
    config.setdefault("max.partition.fetch.bytes", 2**20)
    config.setdefault("fetch.wait.max.ms", 100)
    # How long librdkafka leaves a partition alone once its queue is full. With the default, a second, a faster reader
    # mostly waits: it read 240,000 records/s instead of 700,000.
    config.setdefault("fetch.queue.backoff.ms", 20)
    return {
        **_RECONNECTION,
        **config,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "error_cb": errors,
        "logger": errors,
    }


def isolation_level(connection: Mapping[str, Any]) -> IsolationLevel:
    """Return the isolation level of the connection, read_committed by default. Raises InvalidArgument."""
    value = str(connection.get("isolation.level", "read_committed"))
    levels = {"read_committed": IsolationLevel.READ_COMMITTED, "read_uncommitted": IsolationLevel.READ_UNCOMMITTED}
    if value not in levels:
        raise InvalidArgument("isolation.level", f"{value!r} is neither read_committed nor read_uncommitted.")
    return levels[value]
