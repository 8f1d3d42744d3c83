"""The topics of a cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from airflow_lakestream.kafka.client import ClientErrors, admin_config, open_client
from airflow_lakestream.kafka.errors import AUTHENTICATION, AUTHORIZATION, KafkaRefused, KafkaUnavailable
from airflow_lakestream.kafka.requests import REQUEST_TIMEOUT

# A refused password is only noticed between two requests.
_ONE_REQUEST = 2.0
_DOING = "listing the topics"


def list_topics(connection: Mapping[str, Any], where: str) -> list[str]:
    """Return the names of all topics visible to the user, including internal topics.

    Raises KafkaRefused, KafkaUnavailable, KafkaMisconfigured.

    :param connection: librdkafka configuration.
    :param where: name of the connection for errors.
    """
    errors = ClientErrors()
    client = open_client(AdminClient, admin_config(connection, errors), where)
    deadline = time.monotonic() + REQUEST_TIMEOUT
    while True:
        try:
            return sorted(client.list_topics(timeout=_ONE_REQUEST).topics)
        except KafkaException as e:
            error = e.args[0]
            if error.code() in AUTHENTICATION | AUTHORIZATION:
                raise KafkaRefused(where, _DOING, error.str()) from e
            client.poll(0)
            if errors.fatal is not None:
                raise KafkaRefused(where, _DOING, errors.fatal.str()) from e
            left = deadline - time.monotonic()
            if left <= 0 or errors.are_all_down:
                raise KafkaUnavailable(where, _DOING, REQUEST_TIMEOUT - left, errors.last or error.str()) from e
