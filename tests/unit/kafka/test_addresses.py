"""Brokers named by a connection, and how they are shown."""

from __future__ import annotations

import pytest

from airflow_lakestream.kafka.cluster import BrokerAddress, bootstrap_addresses


@pytest.mark.parametrize(
    ("servers", "addresses", "shown"),
    [
        ("a:9093, SASL_SSL://b", [BrokerAddress("a", 9093), BrokerAddress("b", 9092)], "a:9093 b:9092"),
        (
            "[::1]:9093,[fd00::1]",
            [BrokerAddress("::1", 9093), BrokerAddress("fd00::1", 9092)],
            "[::1]:9093 [fd00::1]:9092",
        ),
    ],
)
def test_brokers_with_and_without_a_port(servers: str, addresses: list[BrokerAddress], shown: str) -> None:
    found = bootstrap_addresses({"bootstrap.servers": servers})
    assert found == addresses
    assert " ".join(map(str, found)) == shown


@pytest.mark.parametrize("servers", ["a:b", "a:", "[::1]:x"])
def test_a_port_that_is_no_number_is_refused(servers: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        bootstrap_addresses({"bootstrap.servers": servers})
