"""What is said of credentials that are refused, and what is not tried again."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError

from airflow_lakestream.kafka.client import ClientErrors
from airflow_lakestream.kafka.errors import (
    CHECK_AUTHORITY,
    CHECK_CERTIFICATE,
    CHECK_CLIENT,
    CHECK_CREDENTIALS,
    KafkaRefused,
)

REFUSED_BY_TLS = "Receive failed: error:0A000412:SSL routines::ssl/tls alert bad certificate: SSL alert number 42"


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("SASL authentication error: Authentication failed due to invalid credentials", CHECK_CREDENTIALS),
        (
            "SSL handshake failed: certificate verify failed: not verified",
            CHECK_AUTHORITY,
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
