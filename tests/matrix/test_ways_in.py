"""Each way into a broker that the page of connections names: by the connection, for the extract and for Spark.

A broker that lets in by no other way; and what is told, within seconds and without a secret, where something is wrong.
"""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.hooks.kafka import KafkaHook
from airflow_lakestream.kafka.errors import (
    CHECK_CERTIFICATE,
    CHECK_CLIENT,
    CHECK_CREDENTIALS,
    KafkaMisconfigured,
    KafkaRefused,
)
from airflow_lakestream.spark.causes import cause_of
from airflow_lakestream.spark.kafka_settings import kafka_options
from dev.services.kafka import Kafka
from dev.stack import Stack
from tests.support import tokens
from tests.support.airflow_home import CHECKOUT, KAFKA_CONNECTION
from tests.support.broker import Producing, Topics
from tests.support.certificates import KEY_PASSWORD, Authority
from tests.support.lake import Lake, events
from tests.support.lake_reading import at
from tests.support.spark import SparkRun
from tests.support.tokens import AUDIENCE, Issuer, issuing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.own_parts]

PAGE = (CHECKOUT / "docs" / "connections" / "kafka.md").read_text()
USER, PASSWORD = "way-in", "password-4711"
WRONG = "wrong-4712"
SECRETS = (PASSWORD, WRONG, KEY_PASSWORD, tokens.SECRET)
JAAS = "org.apache.kafka.common.security"
LISTENER = "listener.name.sasl_ssl"
SOON = 30


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with issuing() as provider:
        yield provider


@pytest.fixture(scope="module")
def by_password(issuer: Issuer) -> Iterator[Kafka]:
    """Give a broker that takes passwords, and tokens that the provider has signed."""
    login = f'{JAAS}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
    settings = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN,OAUTHBEARER",
        f"{LISTENER}.scram-sha-512.sasl.jaas.config": f"{JAAS}.scram.ScramLoginModule required;",
        f"{LISTENER}.plain.sasl.jaas.config": f'{JAAS}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
        f"{LISTENER}.oauthbearer.sasl.jaas.config": login,
        f"{LISTENER}.oauthbearer.sasl.server.callback.handler.class": (
            f"{JAAS}.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        # Kafka 4.1.0 checks no signature, issuer or audience unless it is told to.
        f"{LISTENER}.sasl.oauthbearer.jwt.validator.class": f"{JAAS}.oauthbearer.BrokerJwtValidator",
        f"{LISTENER}.sasl.oauthbearer.jwks.endpoint.url": issuer.keys,
        f"{LISTENER}.sasl.oauthbearer.expected.audience": AUDIENCE,
        f"{LISTENER}.sasl.oauthbearer.expected.issuer": issuer.url,
    }
    with Stack.owned("tests-passwords") as stack:
        kafka = stack.up_kafka(overrides=settings)
        admin = AdminClient({**kafka.client_config(), "log_level": 2})
        for kind in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            user = UserScramCredentialUpsertion(USER, ScramCredentialInfo(kind, 4096), PASSWORD.encode())
            admin.alter_user_scram_credentials([user])[USER].result(30)
        yield kafka


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Give the authority that the broker trusts."""
    return Authority(tmp_path_factory.mktemp("certificates") / "trusted")


@pytest.fixture(scope="module")
def by_certificate(authority: Authority) -> Iterator[Kafka]:
    """Give a broker whose second listener is TLS, and asks for the client's certificate."""
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_SSL:SSL,CONTROLLER:PLAINTEXT",
        f"{LISTENER}.ssl.client.auth": "required",
        f"{LISTENER}.ssl.truststore.type": "PEM",
        f"{LISTENER}.ssl.truststore.location": str(authority.certificate),
    }
    with Stack.owned("tests-certificates") as stack:
        yield stack.up_kafka(overrides=settings)


@dataclass
class Ways:
    """The ways in, by name: the broker, and what a connection to it says; `different` changes or removes settings."""

    request: pytest.FixtureRequest
    patch: pytest.MonkeyPatch

    def broker(self, name: str) -> Kafka:
        found: Kafka = self.request.getfixturevalue("by_certificate" if name == "mTLS" else "by_password")
        return found

    def settings(self, name: str, **different: Any) -> dict[str, Any]:
        """Return librdkafka's settings as the operators get them, from the connection `kafka_default`."""
        kafka = self.broker(name)
        extra = {"bootstrap.servers": kafka.secure_bootstrap, "ssl.ca.location": kafka.ca_file, **self._of(name)}
        for key, value in different.items():
            extra[key.replace("_", ".")] = value
        given = {key: value for key, value in extra.items() if value is not None}
        assert [key for key in given if f'"{key}"' not in PAGE] == [], "settings that the page does not name"
        self.patch.setenv(KAFKA_CONNECTION, json.dumps({"conn_type": "kafka", "extra": given}))
        return KafkaHook().configuration()

    def _of(self, name: str) -> Mapping[str, str]:
        if name == "mTLS":
            authority: Authority = self.request.getfixturevalue("authority")
            return {"security.protocol": "SSL", **authority.sign("client").settings()}
        if name == "OAUTHBEARER":
            provider: Issuer = self.request.getfixturevalue("issuer")
            return {"security.protocol": "SASL_SSL", "sasl.mechanism": name, **provider.settings()}
        account = {"sasl.username": USER, "sasl.password": PASSWORD}
        return {"security.protocol": "SASL_SSL", "sasl.mechanism": name, **account}


@pytest.fixture
def ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Ways:
    return Ways(request, monkeypatch)


WAYS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER", "mTLS")


def topic_in(kafka: Kafka) -> str:
    """Make a topic of two partitions with some records, by the listener that lets everybody in."""
    name = Topics(AdminClient({**kafka.client_config(), "log_level": 2}))(partitions=2)
    Producing(kafka.client_config())(name, 0, events(0, 0, 30))
    return name


@pytest.mark.parametrize("way", WAYS)
def test_the_extract_lands(ways: Ways, way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lake, topic = Lake(tmp_path, ways.settings(way)), topic_in(ways.broker(way))
    with caplog.at_level(logging.DEBUG):
        lake.land(topic)
    assert lake.offsets() == at(0, range(30))
    assert not [secret for secret in SECRETS if secret in caplog.text]


# Java's client of Spark 4.0.0 opens no key that a password locks.
@pytest.mark.parametrize("way", [way for way in WAYS if way != "mTLS"])
def test_spark_lands(ways: Ways, way: str, tmp_path: Path, spark: SparkSession) -> None:
    # Java's client in the driver, librdkafka in its tasks.
    lake, topic = Lake(tmp_path, ways.settings(way)), topic_in(ways.broker(way))
    SparkRun(lake, topic).run(spark)
    assert lake.offsets() == at(0, range(30))


def another_authority(ways: Ways, folder: Path) -> dict[str, Any]:
    return _named(Authority(folder / "stranger").sign("client").settings())


def expired(ways: Ways, folder: Path) -> dict[str, Any]:
    authority: Authority = ways.request.getfixturevalue("authority")
    return _named(authority.sign("late", days=0).settings())


def no_certificate(ways: Ways, folder: Path) -> dict[str, Any]:
    return {"ssl_certificate_location": None, "ssl_key_location": None, "ssl_key_password": None}


def _named(settings: Mapping[str, str]) -> dict[str, Any]:
    return {key.replace(".", "_"): value for key, value in settings.items()}


def has(**different: str) -> Callable[[Ways, Path], dict[str, Any]]:
    return lambda ways, folder: different


# What is wrong: with which way, how its settings differ, and what the error says.
MISTAKES: dict[str, tuple[str, Callable[[Ways, Path], dict[str, Any]], str]] = {
    "a wrong password, SCRAM-256": ("SCRAM-SHA-256", has(sasl_password=WRONG), CHECK_CREDENTIALS),
    "a wrong password, SCRAM-512": ("SCRAM-SHA-512", has(sasl_password=WRONG), CHECK_CREDENTIALS),
    "a wrong password, PLAIN": ("PLAIN", has(sasl_password=WRONG), CHECK_CREDENTIALS),
    "a wrong client's secret": ("OAUTHBEARER", has(sasl_oauthbearer_client_secret=WRONG), CHECK_CLIENT),
    "an expired token": ("OAUTHBEARER", has(sasl_oauthbearer_client_id=tokens.EXPIRED), CHECK_CLIENT),
    "a token for others": ("OAUTHBEARER", has(sasl_oauthbearer_client_id=tokens.OF_ANOTHER_AUDIENCE), CHECK_CLIENT),
    "a token of another key": ("OAUTHBEARER", has(sasl_oauthbearer_client_id=tokens.FORGED), CHECK_CLIENT),
    "no certificate": ("mTLS", no_certificate, CHECK_CERTIFICATE),
    "a certificate of a stranger": ("mTLS", another_authority, CHECK_CERTIFICATE),
    "an expired certificate": ("mTLS", expired, CHECK_CERTIFICATE),
}


def everything_said(error: BaseException) -> str:
    """Return the text of the whole chain of exceptions."""
    return "\n".join([repr(error), *traceback.format_exception(error)])


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_is_wrong_is_told_within_seconds_with_what_to_do_and_without_a_secret(
    ways: Ways, mistake: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    way, differ, remedy = MISTAKES[mistake]
    lake = Lake(tmp_path, ways.settings(way, **differ(ways, tmp_path)))
    topic, started = topic_in(ways.broker(way)), time.monotonic()
    with caplog.at_level(logging.DEBUG), pytest.raises(LakestreamError) as caught:
        lake.land(topic)
    assert time.monotonic() - started < SOON
    assert isinstance(caught.value, KafkaRefused)
    assert isinstance(caught.value, Terminal)
    assert remedy in str(caught.value)
    said = everything_said(caught.value) + caplog.text
    assert not [secret for secret in SECRETS if secret in said]
    assert lake.has_nothing()


def test_a_key_that_the_password_does_not_open_is_told(ways: Ways, tmp_path: Path) -> None:
    lake = Lake(tmp_path, ways.settings("mTLS", ssl_key_password=WRONG))
    with pytest.raises(KafkaMisconfigured, match=r"ssl\.key\.location") as caught:
        lake.land("any")
    assert not [secret for secret in SECRETS if secret in everything_said(caught.value)]


@pytest.mark.parametrize(
    "mistake", [name for name in MISTAKES if not name.endswith(("stranger", "expired certificate"))]
)
def test_what_javas_client_says_of_it_is_told_in_the_same_words(
    ways: Ways, mistake: str, tmp_path: Path, spark: SparkSession
) -> None:
    # As Spark's query asks for offsets, once the settings are no longer right: at its start librdkafka is first.
    way, differ, remedy = MISTAKES[mistake]
    options = kafka_options(ways.settings(way, **differ(ways, tmp_path)))
    topic, started = topic_in(ways.broker(way)), time.monotonic()
    with pytest.raises(Exception) as caught:
        spark.read.format("kafka").options(**options).option("subscribe", topic).load().count()
    assert time.monotonic() - started < SOON
    told = cause_of(caught.value)
    assert remedy in told
    assert not [secret for secret in SECRETS if secret in told]
