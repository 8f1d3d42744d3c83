"""Requests to a cluster, each with a deadline; repeated if a repetition may help."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition
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

# Seconds for a request with its repetitions, between two repetitions, and between two looks for an answer.
REQUEST_TIMEOUT = 20.0
_RETRY_PAUSE = 0.2
_POLL_INTERVAL = 0.05
# Another broker leads the partition, or the same broker with a new epoch.
_OTHER_EPOCH = frozenset({KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH})

Answer = TypeVar("Answer")


class KafkaRequests:
    """Admin client of a connection, with deadlines for the answers.

    :param connection: librdkafka configuration.
    :param where: name of the connection for errors.
    """

    # The topic that the error for a missing topic names.
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
        """Return the answer to a request; repeat the request on errors, except refusals and missing topics.

        Raises TopicMissing, KafkaRefused, and KafkaUnavailable after REQUEST_TIMEOUT seconds, or earlier if no broker
        can be reached.

        :param doing: the request in words, for errors.
        :param request: sends the request; called again for each repetition.
        """
        deadline = time.monotonic() + REQUEST_TIMEOUT
        self._errors.down_since = None
        while True:
            try:
                return self._wait(doing, request(), deadline)
            except KafkaException as e:
                error = e.args[0]
                if error.code() in MISSING_TOPIC:
                    raise TopicMissing(self._topic, self._where) from e
                if error.code() in AUTHENTICATION | AUTHORIZATION:
                    raise KafkaRefused(self._where, doing, error.str()) from e
                if time.monotonic() >= deadline or self._errors.are_all_down:
                    raise self._unavailable(doing, error.str(), deadline) from e
                self._errors.last = f"{error.name()}: {error.str()}"
                if error.code() in _OTHER_EPOCH:
                    # Only a new client asks who leads: an admin client keeps the leader's epoch that it learned first
                    # (librdkafka #4620 is the same for consumers).
                    self._admin = None
                time.sleep(_RETRY_PAUSE)

    def _wait(self, doing: str, future: Future[Answer], deadline: float) -> Answer:
        """Return the answer of a request. Raises its KafkaException, and KafkaRefused and KafkaUnavailable."""
        client = self._client()
        while not future.done():
            # poll() serves error_cb: a refused password is only an error of the client, never an answer.
            client.poll(0)
            if self._errors.fatal is not None:
                raise KafkaRefused(self._where, doing, self._errors.fatal.str())
            if time.monotonic() > deadline or self._errors.are_all_down:
                raise self._unavailable(doing, "", deadline)
            # Wait here, not in poll(): the answer comes on another thread, and poll() would sleep on.
            wait([future], _POLL_INTERVAL)
        return future.result()

    def _unavailable(self, doing: str, last: str, deadline: float | None = None) -> KafkaUnavailable:
        waited = REQUEST_TIMEOUT - max(0.0, deadline - time.monotonic()) if deadline else REQUEST_TIMEOUT
        return KafkaUnavailable(self._where, doing, waited, self._errors.last or last)


def no_answer(result: Any) -> bool:
    """Return whether an answer for a partition's low or end has no offset: without a leader it is -1, and no error."""
    return bool(result.offset < 0)


def gather(
    futures: Mapping[TopicPartition, Future[Any]], is_missing: Callable[[Any], bool] = lambda _: False
) -> Future[Any]:
    """Return a future of all results by partition; the future fails with the first failure.

    :param is_missing: returns whether a result has no answer, which is a failure that `KafkaRequests` repeats.
    """
    gathered: Future[Any] = Future()
    results: dict[TopicPartition, Any] = {}

    def collect(tp: TopicPartition, future: Future[Any]) -> None:
        error = future.exception()
        if error is None and is_missing(future.result()):
            problem = f"no broker has answered for {tp.topic}[{tp.partition}]"
            error = KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, problem))
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
