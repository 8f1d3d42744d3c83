"""Errors of Kafka, each with the topic, the connection and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable

from confluent_kafka import KafkaError

from airflow_lakestream.core.printable import nearest
from airflow_lakestream.exceptions import LakestreamError, Terminal, Transient

AUTHENTICATION = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})
AUTHORIZATION = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
MISSING_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
CHECK_CREDENTIALS = "Check sasl.mechanism, sasl.username, sasl.password, ssl.ca.location and the ACLs of that user."
CHECK_CLIENT = (
    "Check sasl.oauthbearer.client.id, sasl.oauthbearer.client.secret, sasl.oauthbearer.scope and "
    "sasl.oauthbearer.token.endpoint.url; that its tokens have the issuer and the audience that the brokers expect; "
    "and the clocks of this machine, of the provider and of the brokers."
)
CHECK_CERTIFICATE = (
    "The brokers refuse this client's certificate, or want one: check ssl.certificate.location and ssl.key.location, "
    "until when the certificate is valid, and whether the brokers trust who signed it."
)
CHECK_AUTHORITY = (
    "Set ssl.ca.location to a file with the certificate of the authority that signed the brokers' certificates, on "
    "workers and triggerer; and check until when these certificates are valid, and for which names."
)
# Patterns in the error text of the client or the broker, each with the remedy.
_REMEDIES = (
    (r"OAUTHBEARER|OIDC|invalid_token", CHECK_CLIENT),
    (r"\balert\b", CHECK_CERTIFICATE),
    (r"certificate verify failed", CHECK_AUTHORITY),
)


def remedy_for(problem: str) -> str:
    """Return the remedy for refused credentials, by the text of the refusal."""
    return next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, problem)), CHECK_CREDENTIALS)


class KafkaMisconfigured(LakestreamError, Terminal):
    """The connection's settings can't be used for a client."""

    def __init__(self, where: str, problem: str) -> None:
        self.where = where
        super().__init__(f"{where}: its settings can't be used: {problem}. Correct them in the connection's extra.")


class KafkaUnavailable(LakestreamError, Transient):
    """No broker answered in time."""

    def __init__(self, where: str, doing: str, seconds: float, last: str) -> None:
        self.where = where
        super().__init__(
            f"{where}: no answer from Kafka within {seconds:.0f} s while {doing}. Last error of the client: "
            f"{last or 'none'}. Check bootstrap.servers, security.protocol and the network between worker and brokers."
        )


class KafkaRefused(LakestreamError, Terminal):
    """The brokers refused the credentials, the certificate or the permission."""

    def __init__(self, where: str, doing: str, problem: str) -> None:
        self.where = where
        super().__init__(f"{where}: refused while {doing}: {problem}. {remedy_for(problem)}")


class TopicMissing(LakestreamError, Terminal):
    """The topic does not exist.

    :param others: the cluster's topics if they are known; the error suggests the nearest.
    """

    def __init__(self, topic: str, where: str, others: Iterable[str] = ()) -> None:
        self.topic = topic
        near = nearest(topic, (name for name in others if not name.startswith("__")))
        super().__init__(
            f"topic: {topic!r} does not exist in the cluster of {where}. Create it first, or correct the name, which "
            "is case sensitive." + (f" Did you mean {near!r}?" if near else "")
        )


class StalledPartition(LakestreamError, Transient):
    """A partition yielded no record for `poll_timeout` seconds before the planned end."""

    def __init__(self, topic: str, missing: dict[int, tuple[int, int]], seconds: float, last: str) -> None:
        self.topic, self.missing = topic, missing
        ranges = ", ".join(f"{topic}[{p}] [{start},{end})" for p, (start, end) in sorted(missing.items()))
        super().__init__(
            f"nothing came for {seconds:g} s, still missing: {ranges}. What was not committed yet was "
            f"discarded; a retry reads it again. Last error of the client: {last or 'none'}. Check the leaders of "
            "these partitions, or raise poll_timeout."
        )


class BatchTooLarge(LakestreamError, Terminal):
    """A batch of records is larger than an answer to the client may be."""

    def __init__(self, topic: str, positions: dict[int, int], where: str, problem: str) -> None:
        self.topic, self.positions = topic, positions
        places = ", ".join(f"{topic}[{p}] offset {position}" for p, position in sorted(positions.items()))
        super().__init__(
            f"a batch of records at one of {places} is larger than the largest allowed answer: {problem}. What was "
            f"not committed yet was discarded. Raise receive.message.max.bytes (default: 100000000) in the extra of "
            f"{where} above that size."
        )


class ReadFailed(LakestreamError, Transient):
    """The read of a partition failed by an error that a retry may not meet."""

    def __init__(self, topic: str, partition: int, position: int, problem: str) -> None:
        self.topic, self.partition, self.position = topic, partition, position
        super().__init__(
            f"{topic}[{partition}] can't be read from offset {position}: {problem}. What was not committed yet was "
            "discarded. If a retry fails at the same offset, look into the broker's log."
        )
