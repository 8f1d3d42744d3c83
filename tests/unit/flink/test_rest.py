"""Clients of Flink's REST APIs against a server that answers as given: deadlines, and where credentials go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_lakestream.exceptions import Transient
from airflow_lakestream.flink.rest import FlinkAddress, FlinkUnreachable, SqlSession
from tests.support.loopback import LoopbackHandler, LoopbackServer

SESSION = "/v2/sessions/s"
RESULT = f"{SESSION}/operations/o/result"
STATEMENT = "CREATE CATALOG `lake` WITH ('s3.secret-access-key' = 's3cret')"


class Answering(LoopbackServer):
    """Answers by path; a text is the address of a redirect."""

    def __init__(self) -> None:
        super().__init__(Handler)
        self.answers: dict[str, Any] = {
            "/v2/sessions": {"sessionHandle": "s"},
            f"{SESSION}/statements": {"operationHandle": "o"},
            f"{SESSION}/operations/o/status": {"status": "FINISHED"},
        }
        self.asked: dict[str, str | None] = {}

    def result(self, token: int, kind: str, *rows: list[Any]) -> None:
        following = "" if kind == "EOS" else f"{RESULT}/{token + 1}?rowFormat=JSON"
        data = {"resultType": kind, "nextResultUri": following, "results": {"data": [{"fields": row} for row in rows]}}
        self.answers[f"{RESULT}/{token}"] = data


class Handler(LoopbackHandler):
    def respond(self, body: bytes) -> None:
        path = self.path.partition("?")[0]
        self.server.asked[path] = self.headers["Authorization"]
        answer = self.server.answers.get(path, {})
        if isinstance(answer, str):
            self.reply(302, Location=answer)
        else:
            self.reply(200, answer)


@pytest.fixture
def server() -> Iterator[Answering]:
    with Answering() as answering:
        yield answering


def test_all_rows_of_a_statement_are_returned_also_if_the_last_come_at_the_deadline(server: Answering) -> None:
    server.result(0, "EOS", [1], [2])
    with SqlSession(FlinkAddress(server.url)) as session:
        assert session.run("SELECT 1", within=0) == ([[1], [2]], None)


@pytest.mark.parametrize("kind", ["PAYLOAD", "NOT_READY"])
def test_rows_that_are_not_complete_at_the_deadline_are_an_error_and_not_left_out(server: Answering, kind: str) -> None:
    server.result(0, kind, [1])
    with SqlSession(FlinkAddress(server.url)) as session, pytest.raises(FlinkUnreachable) as caught:
        session.run(STATEMENT, within=0)
    assert isinstance(caught.value, Transient)
    assert "CREATE CATALOG `lake` WITH... has given only some of its rows for more than 0 s" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_statement_that_runs_beyond_the_deadline_is_named_without_its_options(server: Answering) -> None:
    server.answers[f"{SESSION}/operations/o/status"] = {"status": "RUNNING"}
    with SqlSession(FlinkAddress(server.url)) as session, pytest.raises(FlinkUnreachable) as caught:
        session.run(STATEMENT, within=0)
    assert "CREATE CATALOG `lake` WITH... runs" in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("login", [{"token": "t0ken"}, {"login": "ann", "password": "s3cret"}])
def test_credentials_go_to_flink_and_not_where_it_redirects_to(server: Answering, login: dict[str, str]) -> None:
    server.answers |= {
        "/jobs/1": f"http://localhost:{server.server_port}/elsewhere",
        "/elsewhere": {"state": "RUNNING"},
    }
    assert FlinkAddress(server.url, **login).call("GET", "/jobs/1") == {"state": "RUNNING"}
    assert server.asked["/jobs/1"]
    assert server.asked["/elsewhere"] is None
