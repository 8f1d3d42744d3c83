"""Each way into a broker that the page of connections names, on a real broker that lets in by no other."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from cryptography.x509.oid import NameOID

from airflow_lakestream.kafka.errors import KafkaRefused, KafkaUnavailable
from dev.services.kafka import Kafka
from dev.stack import Stack
from tests.support.airflow_home import CHECKOUT
from tests.support.broker import Producing, Topics
from tests.support.lake import Lake
from tests.support.lake_reading import at, numbers

pytestmark = pytest.mark.integration

PAGE = (CHECKOUT / "docs" / "connections" / "kafka.md").read_text()
KEY_PASSWORD, SECRET = "key-password", "api-secret"
JAAS = "org.apache.kafka.common.security"
LISTENER = "listener.name.sasl_ssl"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with a client's key, and its certificate."""
    folder = tmp_path_factory.mktemp("client")
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "client")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    locked = BestAvailableEncryption(KEY_PASSWORD.encode())
    (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked))
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    return folder


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    """Give the address of an identity provider; its tokens are not signed, which this broker takes."""

    def part(content: Mapping[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    class Tokens(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            now = int(time.time())
            token = f"{part({'alg': 'none'})}.{part({'sub': 'me', 'iat': now, 'exp': now + 600})}."
            body = json.dumps({"access_token": token, "token_type": "Bearer", "expires_in": 600}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Tokens) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/token"
        server.shutdown()


@pytest.fixture(scope="module")
def by_password(issuer: str) -> Iterator[Kafka]:
    """Give a broker that takes passwords and tokens."""
    plain = f"{JAAS}.plain.PlainLoginModule required user_key='{SECRET}';"
    bearer = f"{JAAS}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub='broker';"
    settings = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN,OAUTHBEARER",
        f"{LISTENER}.scram-sha-512.sasl.jaas.config": f"{JAAS}.scram.ScramLoginModule required;",
        f"{LISTENER}.plain.sasl.jaas.config": plain.replace("'", '"'),
        f"{LISTENER}.oauthbearer.sasl.jaas.config": bearer.replace("'", '"'),
    }
    with Stack.owned("tests-passwords") as stack:
        yield stack.up_kafka(overrides=settings)


@pytest.fixture(scope="module")
def by_certificate(client: Path) -> Iterator[Kafka]:
    """Give a broker whose second listener is TLS, and asks for the client's certificate."""
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_SSL:SSL,CONTROLLER:PLAINTEXT",
        f"{LISTENER}.ssl.client.auth": "required",
        f"{LISTENER}.ssl.truststore.type": "PEM",
        f"{LISTENER}.ssl.truststore.location": str(client / "certificate.pem"),
    }
    with Stack.owned("tests-certificates") as stack:
        yield stack.up_kafka(overrides=settings)


def lands(kafka: Kafka, folder: Path, settings: Mapping[str, str]) -> None:
    """Land a topic through the second listener; each name of a setting is on the page."""
    assert [name for name in settings if f'"{name}"' not in PAGE] == []
    name = Topics(AdminClient({**kafka.client_config(), "log_level": 2}))(partitions=1)
    Producing(kafka.client_config())(name, 0, numbers(3))
    way = {"bootstrap.servers": kafka.secure_bootstrap, "ssl.ca.location": kafka.ca_file, **settings}
    folder.mkdir(exist_ok=True)
    lake = Lake(folder, way)
    lake.land(name)
    assert lake.offsets() == at(0, range(3))


def test_sasl_ssl_with_a_password(by_password: Kafka, tmp_path: Path) -> None:
    settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "key"}
    lands(by_password, tmp_path / "right", {**settings, "sasl.password": SECRET})
    with pytest.raises(KafkaRefused):
        lands(by_password, tmp_path / "wrong", {**settings, "sasl.password": "another"})


def test_sasl_ssl_with_scram_sha_512(by_password: Kafka, tmp_path: Path) -> None:
    kind = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    user = UserScramCredentialUpsertion("scram-user", kind, SECRET.encode())
    admin = AdminClient(by_password.client_config())
    admin.alter_user_scram_credentials([user])["scram-user"].result(30)
    settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "scram-user"}
    lands(by_password, tmp_path / "right", {**settings, "sasl.password": SECRET})
    with pytest.raises(KafkaRefused):
        lands(by_password, tmp_path / "wrong", {**settings, "sasl.password": "another"})


def test_oauthbearer_with_an_identity_provider(by_password: Kafka, issuer: str, tmp_path: Path) -> None:
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "me",
        "sasl.oauthbearer.client.secret": SECRET,
        "sasl.oauthbearer.token.endpoint.url": issuer,
    }
    lands(by_password, tmp_path, settings)


def test_mutual_tls(by_certificate: Kafka, client: Path, tmp_path: Path) -> None:
    settings = {"security.protocol": "SSL", "ssl.certificate.location": str(client / "certificate.pem")}
    settings |= {"ssl.key.location": str(client / "key.pem"), "ssl.key.password": KEY_PASSWORD}
    lands(by_certificate, tmp_path / "right", settings)
    with pytest.raises((KafkaRefused, KafkaUnavailable)):
        lands(by_certificate, tmp_path / "without", {"security.protocol": "SSL"})
