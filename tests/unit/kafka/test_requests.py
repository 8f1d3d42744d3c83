"""How a request is tried again, and what is said of credentials that are refused."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_lakestream.kafka import requests
from airflow_lakestream.kafka.client import ClientErrors
from airflow_lakestream.kafka.errors import CHECK_CERTIFICATE, CHECK_CLIENT, CHECK_CREDENTIALS, KafkaRefused
from airflow_lakestream.kafka.requests import Requests


class Asking(Requests):
    """Asks each of its clients once: those of the first have no answer in time, of the next one they have."""

    def __init__(self, *errors: int) -> None:
        super().__init__({"bootstrap.servers": "127.0.0.1:1"}, "a test")
        self.errors = list(errors)
        self.clients: list[object] = []

    def ask(self) -> str:
        def request() -> Future[str]:
            self.clients.append(self._client())
            answer: Future[str] = Future()
            if self.errors:
                answer.set_exception(KafkaException(KafkaError(self.errors.pop(0))))
            else:
                answer.set_result("here")
            return answer

        return self._ask("asking", request)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_RETRY_PAUSE", 0.0)


def test_a_try_without_an_answer_is_followed_by_one_of_a_new_client() -> None:
    asking = Asking(KafkaError._TIMED_OUT)
    assert asking.ask() == "here"
    assert len({id(client) for client in asking.clients}) == 2


def test_an_answer_that_says_to_try_again_is_tried_by_the_same_client() -> None:
    asking = Asking(KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR)
    assert asking.ask() == "here"
    assert len({id(client) for client in asking.clients}) == 1


REFUSED_BY_TLS = "Receive failed: error:0A000412:SSL routines::ssl/tls alert bad certificate: SSL alert number 42"


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("SASL authentication error: Authentication failed due to invalid credentials", CHECK_CREDENTIALS),
        (
            "SSL handshake failed: certificate verify failed: not verified",
            CHECK_CREDENTIALS,
        ),
        ("Failed to acquire SASL OAUTHBEARER token: Must supply an unexpired token", CHECK_CLIENT),
        ('SASL authentication error: {"status":"invalid_token"}', CHECK_CLIENT),
        (REFUSED_BY_TLS, CHECK_CERTIFICATE),
    ],
)
def test_what_to_do_is_said_by_what_was_refused(said: str, remedy: str) -> None:
    assert str(KafkaRefused("a test", "asking", said)).endswith(remedy)


@pytest.mark.parametrize(
    ("said", "final"),
    [
        (REFUSED_BY_TLS, True),
        ("SSL routines::ssl/tls alert certificate unknown: SSL alert number 46", True),
        ("SSL routines::tlsv1 alert unknown ca: SSL alert number 48", True),
        ("SSL routines::ssl/tls alert handshake failure: SSL alert number 40", False),
        ("Connect to ipv4#127.0.0.1:1 failed: Connection refused", False),
    ],
)
def test_a_certificate_that_is_refused_is_not_tried_again(said: str, final: bool) -> None:
    errors = ClientErrors()
    error: Any = KafkaError(KafkaError._TRANSPORT, said)
    errors(error)
    assert (errors.fatal is not None) is final
