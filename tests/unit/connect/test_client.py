"""What a worker's answers mean: JSON of Connect's own is its word, everything else is unknown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_lakestream.connect import client as clients
from airflow_lakestream.connect.client import (
    ConnectClient,
    ConnectorState,
    ConnectRefused,
    ConnectUnknown,
    ConnectWorkers,
    NoSuchConnector,
)
from airflow_lakestream.exceptions import InvalidArgument
from tests.support.loopback import LoopbackHandler, LoopbackServer

HTML = b"<html><body>Jetty</body></html>"


class Worker(LoopbackServer):
    """Answers what it is told to, in order, the last answer again and again."""

    def __init__(self) -> None:
        super().__init__(Handler)
        self.answers: list[tuple[int, bytes]] = []
        self.asked: list[tuple[str, str, Any]] = []
        self.authorization = ""


class Handler(LoopbackHandler):
    def respond(self, body: bytes) -> None:
        worker = self.server
        worker.asked.append((self.command, self.path, json.loads(body) if body else None))
        worker.authorization = self.headers.get("Authorization", "")
        code, said = worker.answers.pop(0) if len(worker.answers) > 1 else worker.answers[0]
        self.reply(code, said, **({"Location": said.decode()} if code == 302 else {}))


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker() as made:
        yield made


def error(code: int, message: str) -> tuple[int, bytes]:
    return code, json.dumps({"error_code": code, "message": message}).encode()


@pytest.mark.parametrize(
    "answer",
    [
        (200, HTML),
        (404, HTML),
        (500, HTML),
        (503, b"upstream connect error"),
        (404, b'{"detail": "no such route"}'),
        error(500, "Request timed out"),
        (200, b'{"connector": {}}'),
        (200, b"[]"),
    ],
)
def test_what_is_not_connects_own_word_is_unknown(worker: Worker, answer: tuple[int, bytes]) -> None:
    worker.answers = [answer]
    with pytest.raises(ConnectUnknown):
        ConnectClient(ConnectWorkers([worker.url])).status("c")


def test_a_connector_that_is_not_there_is_known_not_to_be(worker: Worker) -> None:
    worker.answers = [error(404, "Connector c not found")]
    client = ConnectClient(ConnectWorkers([worker.url]))
    assert client.config("c") is None
    with pytest.raises(NoSuchConnector):
        client.status("c")


@pytest.mark.parametrize(("code", "told"), [(400, "bad config"), (401, "login and password"), (422, "bad config")])
def test_a_refusal_is_told(worker: Worker, code: int, told: str) -> None:
    worker.answers = [error(code, "bad config")]
    with pytest.raises(ConnectRefused, match=told):
        ConnectClient(ConnectWorkers([worker.url])).configure("c", {})


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (409, "Cannot complete request because of a conflicting operation (e.g. worker rebalance)"),
        (500, "Request cannot be completed because a rebalance is expected"),
    ],
)
def test_a_rebalance_is_waited_for_but_not_forever(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, code: int, message: str
) -> None:
    monkeypatch.setattr(clients, "_PAUSE_S", 0.01)
    busy = error(code, message)
    worker.answers = [busy, busy, (200, b'{"connector": {"state": "RUNNING"}, "tasks": []}')]
    assert ConnectClient(ConnectWorkers([worker.url])).status("c").state is ConnectorState.RUNNING
    assert len(worker.asked) == 3
    monkeypatch.setattr(clients, "_BUSY_TIMEOUT_S", 0.05)
    worker.answers = [busy]
    with pytest.raises(ConnectUnknown, match="rebalance"):
        ConnectClient(ConnectWorkers([worker.url])).status("c")


def test_another_worker_is_asked_where_one_gives_no_answer(worker: Worker) -> None:
    worker.answers = [(200, b'{"connector": {"state": "NEW"}, "tasks": [{"id": 0, "state": "FAILED", "trace": "t"}]}')]
    client = ConnectClient(ConnectWorkers(["http://127.0.0.1:9", worker.url], "me", "secret"))
    found = client.status("a b/c")
    assert (found.state, [task.trace for task in found.failed]) == (ConnectorState.OTHER, ["t"])
    assert worker.asked == [("GET", "/connectors/a%20b%2Fc/status", None)]
    assert worker.authorization == "Basic bWU6c2VjcmV0"
    assert "secret" not in repr(ConnectWorkers([worker.url], "me", "secret"))


def test_credentials_go_to_the_worker_and_not_where_it_redirects_to(worker: Worker) -> None:
    elsewhere = worker.url.replace("127.0.0.1", "localhost")
    worker.answers = [(302, f"{elsewhere}/elsewhere".encode()), (200, b"{}")]
    assert ConnectClient(ConnectWorkers([worker.url], "me", "secret")).config("c") == {}
    assert [path for _, path, _ in worker.asked] == ["/connectors/c/config", "/elsewhere"]
    assert worker.authorization == ""


def test_offsets_are_set_as_connect_wants_them(worker: Worker) -> None:
    worker.answers = [(200, b"")]
    ConnectClient(ConnectWorkers([worker.url])).set_offsets("c", "orders", {1: 7})
    [(method, path, body)] = worker.asked
    assert (method, path) == ("PATCH", "/connectors/c/offsets")
    place = {"kafka_topic": "orders", "kafka_partition": 1}
    assert body == {"offsets": [{"partition": place, "offset": {"kafka_offset": 7}}]}


@pytest.mark.parametrize("urls", [[], ["ftp://host"]])
def test_what_is_no_address_is_refused(urls: list[str]) -> None:
    with pytest.raises(InvalidArgument, match="connect_conn_id"):
        ConnectWorkers(urls)
