"""Requests to a cluster: each with a deadline, asked again while that may help, and failing at once where it can't."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_lakestream.kafka.client import ClientErrors, admin_config, open_client
from airflow_lakestream.kafka.errors import (
    AUTHENTICATION,
    AUTHORIZATION,
    MISSING_TOPIC,
    KafkaRefused,
    KafkaUnavailable,
    TopicMissing,
)

REQUEST_TIMEOUT = 20.0
_RETRY_PAUSE = 0.2
_POLL_INTERVAL = 0.05

Answer = TypeVar("Answer")


class Requests:
    """The admin client of a connection, and how its answers are waited for.

    :param connection: librdkafka configuration.
    :param where: what to call the connection in errors.
    """

    # In the error for one that is missing.
    _topic = ""

    def __init__(self, connection: Mapping[str, Any], where: str) -> None:
        self._connection = dict(connection)
        self._where = where
        self._errors = ClientErrors()
        self._admin: AdminClient | None = None

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = open_client(AdminClient, admin_config(self._connection, self._errors), self._where)
        return self._admin

    def _ask(self, doing: str, request: Callable[[], Future[Answer]]) -> Answer:
        """Wait for an answer, asking again on retriable errors, failing at once on what no retry mends."""
        deadline = time.monotonic() + REQUEST_TIMEOUT
        while True:
            try:
                return self._wait(doing, request(), deadline)
            except KafkaException as e:
                error = e.args[0]
                if error.code() in MISSING_TOPIC:
                    raise TopicMissing(self._topic, self._where) from e
                if error.code() in AUTHENTICATION | AUTHORIZATION:
                    raise KafkaRefused(self._where, doing, error.str()) from e
                if time.monotonic() >= deadline:
                    raise self._unavailable(doing, error.str()) from e
                self._errors.last = f"{error.name()}: {error.str()}"
                time.sleep(_RETRY_PAUSE)

    def _wait(self, doing: str, future: Future[Answer], deadline: float) -> Answer:
        client = self._client()
        while not future.done():
            # Serves error_cb: a refused password is never an answer to the request, only an error of the client.
            client.poll(0)
            if self._errors.fatal is not None:
                raise KafkaRefused(self._where, doing, self._errors.fatal.str())
            if time.monotonic() > deadline:
                raise self._unavailable(doing, "")
            # Not in poll(): the answer comes on another thread, and would lie there until poll's time is over.
            wait([future], _POLL_INTERVAL)
        return future.result()

    def _unavailable(self, doing: str, last: str) -> KafkaUnavailable:
        return KafkaUnavailable(self._where, doing, REQUEST_TIMEOUT, self._errors.last or last)


def gather(futures: Mapping[TopicPartition, Future[Any]]) -> Future[Any]:
    """Return one future of all results; it fails with the first failure."""
    gathered: Future[Any] = Future()
    results: dict[TopicPartition, Any] = {}

    def collect(tp: TopicPartition, future: Future[Any]) -> None:
        error = future.exception()
        if error is not None:
            if not gathered.done():
                gathered.set_exception(error)
            return
        results[tp] = future.result()
        if len(results) == len(futures) and not gathered.done():
            gathered.set_result(results)

    for tp, future in futures.items():
        future.add_done_callback(functools.partial(collect, tp))
    if not futures:
        gathered.set_result(results)
    return gathered
