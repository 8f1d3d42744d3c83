from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.spark.kafka_settings import REDACTED, for_executors, kafka_options

SERVERS = {"bootstrap.servers": "a:1,b:2"}
KEY = "-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\n"


def test_what_both_clients_know_gets_javas_name_and_the_rest_of_librdkafkas_is_left_out() -> None:
    given = {
        **SERVERS,
        "client.id": "x",
        "fetch.wait.max.ms": 50,
        "check.crcs": True,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "queued.max.messages.kbytes": 1024,
        "log_level": 3,
        "socket.keepalive.enable": True,
    }
    assert kafka_options(given) == {
        "kafka.bootstrap.servers": "a:1,b:2",
        "kafka.client.id": "x",
        "kafka.fetch.max.wait.ms": "50",
        "kafka.check.crcs": "true",
        "kafka.isolation.level": "read_committed",
    }


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [("PLAIN", "plain.PlainLoginModule"), ("SCRAM-SHA-256", "scram.ScramLoginModule")],
)
def test_a_password_goes_into_jaas_whatever_is_in_it(mechanism: str, module: str) -> None:
    given = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": mechanism,
        "sasl.username": "u",
        "sasl.password": 'p"\\',
    }
    found = kafka_options(SERVERS | given)
    assert found["kafka.security.protocol"] == "SASL_SSL"
    assert found["kafka.sasl.mechanism"] == mechanism
    jaas = found["kafka.sasl.jaas.config"]
    assert jaas == f'org.apache.kafka.common.security.{module} required username="u" password="p\\"\\\\";'


ENDPOINT = {"sasl.oauthbearer.token.endpoint.url": "https://id/token"}
CLIENT = {"sasl.oauthbearer.client.id": "me", "sasl.oauthbearer.client.secret": 's"1'}
BEARER = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc", **CLIENT, **ENDPOINT}


def test_javas_client_asks_the_same_endpoint_for_its_tokens() -> None:
    more = {"sasl.oauthbearer.scope": "topics", "sasl.oauthbearer.extensions": "team=lake,tier=1"}
    found = kafka_options(SERVERS | BEARER | more)
    package = "org.apache.kafka.common.security.oauthbearer"
    assert {name: value for name, value in found.items() if name.startswith("kafka.sasl.")} == {
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.jaas.config": (
            f'{package}.OAuthBearerLoginModule required clientId="me" clientSecret="s\\"1" scope="topics" '
            'extension_team="lake" extension_tier="1";'
        ),
        "kafka.sasl.login.callback.handler.class": f"{package}.OAuthBearerLoginCallbackHandler",
        "kafka.sasl.oauthbearer.token.endpoint.url": "https://id/token",
    }


def test_certificates_and_keys_go_along_as_text(tmp_path: Path) -> None:
    authority, chain, key = (tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem"))
    authority.write_text("CA")
    chain.write_text("CHAIN")
    key.write_text(KEY)
    found = kafka_options(
        SERVERS
        | {
            "security.protocol": "SSL",
            "ssl.ca.location": str(authority),
            "ssl.certificate.location": str(chain),
            "ssl.key.location": str(key),
            "ssl.key.password": "secret",
            "ssl.endpoint.identification.algorithm": "none",
        }
    )
    assert {name: value for name, value in found.items() if name.startswith("kafka.ssl.")} == {
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": "CA",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": "CHAIN",
        "kafka.ssl.keystore.key": KEY,
        "kafka.ssl.key.password": "secret",
        "kafka.ssl.endpoint.identification.algorithm": "",
    }
    shown = {name for name in found if not re.search(REDACTED, name)}
    assert not any("jaas" in name or "key" in name for name in shown)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"no.such.setting": 1}, "kafka.no.such.setting"),
        ({"sasl.mechanism": "GSSAPI"}, "'GSSAPI' is not translated"),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "u"}, "kafka.sasl.password: is missing"),
        ({"sasl.mechanism": "OAUTHBEARER"}, "kafka.sasl.oauthbearer.method: 'default' is not translated"),
        (BEARER | {"sasl.oauthbearer.method": "default"}, "does not reach Java's client"),
        ({k: v for k, v in BEARER.items() if k not in ENDPOINT}, "token.endpoint.url: is missing"),
        ({k: v for k, v in BEARER.items() if k not in CLIENT}, "client.id: is missing"),
        (BEARER | {"sasl.oauthbearer.grant.type": "jwt-bearer"}, "kafka.sasl.oauthbearer.grant.type"),
        (BEARER | {"sasl.oauthbearer.assertion.file": "/a"}, "kafka.sasl.oauthbearer.assertion.file"),
        ({"ssl.keystore.location": "/k.p12"}, "kafka.ssl.keystore.location"),
        ({"ssl.ca.location": "/no/such.pem"}, "kafka.ssl.ca.location"),
        ({"ssl.certificate.pem": "CHAIN"}, "ssl.key.location, and one is missing"),
        ({"ssl.certificate.pem": "C", "ssl.key.pem": "-----BEGIN RSA PRIVATE KEY-----"}, "openssl pkcs8"),
        ({"enable.ssl.certificate.verification": False}, "can't be turned off"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_its_name(given: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        kafka_options(SERVERS | given)
    assert words in str(caught.value)


def test_executors_get_what_files_of_the_driver_hold(tmp_path: Path) -> None:
    authority, chain, key = (tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem"))
    authority.write_text("CA")
    chain.write_text("CHAIN")
    key.write_text(KEY)
    given = {
        **SERVERS,
        "ssl.ca.location": str(authority),
        "ssl.certificate.location": str(chain),
        "ssl.key.location": str(key),
        "sasl.password": "p",
    }
    assert for_executors(given) == {
        **SERVERS,
        "ssl.ca.pem": "CA",
        "ssl.certificate.pem": "CHAIN",
        "ssl.key.pem": KEY,
        "sasl.password": "p",
    }
    assert for_executors({**SERVERS, "ssl.ca.location": "probe"}) == SERVERS
    with pytest.raises(InvalidArgument, match=r"kafka\.ssl\.key\.location"):
        for_executors({"ssl.key.location": str(tmp_path / "none.pem")})
