"""An identity provider: a token endpoint and the keys that its tokens are signed with, on the loopback only."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.support.loopback import LoopbackHandler, LoopbackServer

AUDIENCE = "kafka-of-the-tests"
SECRET = "client-secret-4711"
# Clients that know the secret. What is wrong with the tokens of all but the first.
GOOD, EXPIRED, OF_ANOTHER_AUDIENCE, FORGED = "lakestream", "expired", "of-another-audience", "forged"
CLIENTS = (GOOD, EXPIRED, OF_ANOTHER_AUDIENCE, FORGED)


@dataclass(frozen=True)
class Issuer:
    """A provider that runs."""

    url: str

    @property
    def token_endpoint(self) -> str:
        """Where clients get their tokens."""
        return f"{self.url}/token"

    @property
    def keys(self) -> str:
        """Where brokers get the public keys."""
        return f"{self.url}/keys"

    def settings(self, client: str = GOOD, secret: str = SECRET) -> dict[str, str]:
        """Return what a client is told of it."""
        return {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": client,
            "sasl.oauthbearer.client.secret": secret,
            "sasl.oauthbearer.token.endpoint.url": self.token_endpoint,
        }


@contextmanager
def issuing() -> Iterator[Issuer]:
    """Run a provider."""
    signing, other = (rsa.generate_private_key(65537, 2048) for _ in range(2))
    numbers = signing.public_key().public_numbers()
    key = {"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "1", "n": _number(numbers.n), "e": _number(numbers.e)}

    class Provider(LoopbackHandler):
        def respond(self, _: bytes) -> None:
            if self.command == "GET":
                self._say(200, {"keys": [key]})
                return
            kind, _, told = self.headers.get("Authorization", "").partition(" ")
            client, _, secret = base64.b64decode(told).decode().partition(":")
            if kind != "Basic" or client not in CLIENTS or secret != SECRET:
                self._say(401, {"error": "invalid_client", "error_description": "no such client, or its secret"})
                return
            token = _token(self.server.server_address[1], client, other if client == FORGED else signing)
            self._say(200, {"access_token": token, "token_type": "Bearer", "expires_in": 600})

        def _say(self, code: int, content: object) -> None:
            self.reply(code, content, Content_Type="application/json")

    with LoopbackServer(Provider) as server:
        yield Issuer(server.url)


def _token(port: int, client: str, key: rsa.RSAPrivateKey) -> str:
    now = int(time.time())
    claims = {
        "iss": f"http://127.0.0.1:{port}",
        "aud": "another" if client == OF_ANOTHER_AUDIENCE else AUDIENCE,
        "sub": client,
        "scope": "topics",
        "iat": now - 1200,
        "exp": now - 600 if client == EXPIRED else now + 600,
    }
    said = f"{_part({'alg': 'RS256', 'typ': 'JWT', 'kid': '1'})}.{_part(claims)}"
    return f"{said}.{_text(key.sign(said.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _part(content: Mapping[str, Any]) -> str:
    return _text(json.dumps(content).encode())


def _number(value: int) -> str:
    return _text(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
