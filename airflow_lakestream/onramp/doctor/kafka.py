"""Checks of brokers, a topic, and the registry."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from airflow_lakestream.core.printable import counted
from airflow_lakestream.kafka.cluster import BrokerAddress, KafkaCluster, bootstrap_addresses
from airflow_lakestream.kafka.errors import KafkaMisconfigured
from airflow_lakestream.onramp.doctor.finding import DoctorFinding, PartHealth
from airflow_lakestream.onramp.samples import SampledTopic
from airflow_lakestream.registry.client import RegistryClient, SchemaNotFound
from airflow_lakestream.registry.config import RegistryConfig

BROKERS, TOPIC, REGISTRY, CLOCK = "brokers", "topic", "registry", "clock"
_TLS = ("ssl", "sasl_ssl")
_REGISTRY_SECONDS = 5.0  # longest wait for an answer of the registry
_AHEAD_MS = 60_000  # a record may be that much ahead of this machine's clock: producers' clocks differ


def check_brokers(connection: Mapping[str, Any], where: str) -> Iterator[DoctorFinding]:
    """Connect with or without TLS, log in, and reach each broker at its advertised address.

    The first problem ends the check, except that some bootstrap servers may be out of reach. Raises KafkaMisconfigured,
    and the errors of the log-in.

    :param connection: librdkafka's configuration.
    :param where: name of the connection for texts.
    """
    try:
        servers = bootstrap_addresses(connection)
    except ValueError as e:
        raise KafkaMisconfigured(where, f"bootstrap.servers: {e}") from e
    if not servers:
        raise KafkaMisconfigured(where, "bootstrap.servers is missing")
    problems = {server: server.problem() for server in servers}
    reached = [server for server, problem in problems.items() if problem is None]
    failures = "; ".join(f"{server}: {problem}" for server, problem in problems.items() if problem is not None)
    if not reached:
        remedy = "Start the broker, correct bootstrap.servers, or open the way to it (firewall, VPN)."
        yield DoctorFinding(BROKERS, PartHealth.UNKNOWN, f"{where}: no broker can be reached: {failures}. {remedy}")
        return
    if failures:
        yield DoctorFinding(BROKERS, PartHealth.NOTE, f"{where}: {failures}. The other bootstrap.servers answer.")
    protocol = str(connection.get("security.protocol", "plaintext")).lower()
    if mismatch := _mismatch(reached[0], protocol):
        yield DoctorFinding(BROKERS, PartHealth.WRONG, f"{where}: {mismatch}")
        return
    brokers = KafkaCluster(connection, where).brokers()
    unreached = [f"{address}: {problem}" for address in brokers.addresses if (problem := address.problem()) is not None]
    if unreached:
        remedy = "Correct advertised.listeners of the brokers, or make these names known here."
        text = f"brokers give clients addresses that can't be reached from here: {'; '.join(unreached)}. {remedy}"
        yield DoctorFinding(BROKERS, PartHealth.UNKNOWN, f"{where}: {text}")
        return
    user = f" as {connection['sasl.username']}" if protocol.startswith("sasl") and "sasl.username" in connection else ""
    count = len(brokers.addresses)
    answer = "1 broker answers" if count == 1 else f"{count} brokers answer"
    yield DoctorFinding(BROKERS, PartHealth.OK, f"{where}: {answer}, by {protocol.upper()}{user}.")


def _mismatch(server: BrokerAddress, protocol: str) -> str | None:
    """Return the contradiction between a port and `security.protocol`, with a remedy.

    Returns None if both agree, or if the port does not show whether it speaks TLS.
    """
    speaks_tls = server.speaks_tls()
    if speaks_tls is True and protocol not in _TLS:
        wanted = "SASL_SSL" if protocol.startswith("sasl") else "SSL (or SASL_SSL)"
        return f"{server} speaks TLS, and security.protocol is {protocol.upper()}. Set it to {wanted}."
    if speaks_tls is False and protocol in _TLS:
        wanted = "SASL_PLAINTEXT" if protocol.startswith("sasl") else "PLAINTEXT"
        return (
            f"{server} does not speak TLS, and security.protocol is {protocol.upper()}. Name the port of the TLS "
            f"listener, or set it to {wanted}."
        )
    return None


def check_topic(connection: Mapping[str, Any], topic: str, where: str) -> Iterator[DoctorFinding]:
    """Describe the topic, read a record, and compare the record's timestamp with this machine's clock.

    Raises the errors of the connection, also for a missing topic.
    """
    sampled = SampledTopic(connection, topic, where)
    state = sampled.look()
    offsets = sum(marks.end - marks.low for marks in state.marks.values())
    size = f"{topic}: {counted(len(state.marks), 'partition')}, {counted(offsets, 'offset')}"
    newest = sampled.last(state, 1)
    if not len(newest):
        text = "there is no record to read, so whether this user may read is not proven"
        yield DoctorFinding(TOPIC, PartHealth.NOTE, f"{size}; {text}. Produce one, and look again.")
        return
    yield DoctorFinding(TOPIC, PartHealth.OK, f"{size}; the newest records can be read.")
    ahead = (newest.newest_ms or 0) - int(time.time() * 1000)
    if ahead > _AHEAD_MS:
        text = f"the newest record of {topic} is dated {ahead // 1000:,} s after this machine's clock"
        remedy = "Set the clock of this machine, or of the producer: intervals go by the records' times."
        yield DoctorFinding(CLOCK, PartHealth.WRONG, f"{text}. {remedy}")


def check_registry(config: RegistryConfig | None, topic: str | None) -> Iterator[DoctorFinding]:
    """Ask the registry for the topic's schema. A missing schema is fine; a missing answer raises an error.

    :param config: None if no registry is configured.
    """
    if config is None:
        text = "none is configured. Formats with a registry need schema.registry.url in the Kafka connection's extra."
        yield DoctorFinding(REGISTRY, PartHealth.NOTE, text)
        return
    client = RegistryClient(replace(config, retries=0, timeout=min(config.timeout, _REGISTRY_SECONDS)))
    subject = f"{topic or 'lakestream-doctor'}-value"
    try:
        schema = client.latest(subject)
    except SchemaNotFound:
        missing = f" It has no subject {subject}." if topic else ""
        yield DoctorFinding(REGISTRY, PartHealth.OK, f"{config.url} answers.{missing}")
        return
    yield DoctorFinding(
        REGISTRY, PartHealth.OK, f"{config.url} answers: {subject} has schema {schema.id} of type {schema.kind}."
    )
