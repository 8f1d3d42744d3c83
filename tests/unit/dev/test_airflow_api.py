import socket
from collections.abc import Iterator

import pytest

from dev import demo
from dev.errors import DemoFailed
from dev.services.airflow_api import AirflowApi, AirflowAway, AirflowRefused, reason_of
from tests.support.loopback import LoopbackHandler, LoopbackServer


def test_the_reason_of_a_traceback_is_the_line_that_names_the_exception():
    trace = """Traceback (most recent call last):
  File "dags/a.py", line 3, in <module>
    import nothing
ModuleNotFoundError: No module named 'nothing'
"""
    assert reason_of(trace) == "ModuleNotFoundError: No module named 'nothing'"


def test_an_explanation_that_goes_on_for_lines_is_left_out():
    trace = """airflow.sdk.exceptions.AirflowTaskTimeout: DagBag import timeout for a.py after 30.0s.
Please take a look at these docs to improve your DAG import time:
* best-practices, PID: 1
"""
    assert reason_of(trace).endswith("after 30.0s.")


def test_an_empty_trace_has_an_empty_reason():
    assert reason_of("") == ""


def test_an_airflow_that_does_not_answer_in_time_is_not_healthy():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        api = AirflowApi(f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert not api.healthy(timeout=0.1)


class Answers(LoopbackServer):
    """Answers a request of the API by the next status; a login always."""

    statuses: list[int]
    logins = 0


class Handler(LoopbackHandler):
    def respond(self, body: bytes) -> None:
        if self.command == "GET":
            self.reply(self.server.statuses.pop(0), {"dag_runs": []})
        else:
            self.server.logins += 1
            self.reply(201, {"access_token": "t"})


@pytest.fixture
def answers() -> Iterator[Answers]:
    with Answers(Handler) as server:
        yield server


def test_who_does_not_answer_for_now_is_told_from_who_refuses(answers: Answers) -> None:
    api = AirflowApi(answers.url)
    answers.statuses = [500, 503, 429]
    for _ in range(3):
        with pytest.raises(AirflowAway):
            api.runs("d")
    answers.statuses = [404]
    with pytest.raises(AirflowRefused, match="404") as refused:
        api.runs("d")
    assert not isinstance(refused.value, AirflowAway)
    # Nobody is there.
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nowhere = AirflowApi(f"http://127.0.0.1:{taken.getsockname()[1]}")
    with pytest.raises(AirflowAway):
        nowhere.runs("d")


def test_a_login_that_is_over_is_done_again_once(answers: Answers) -> None:
    api = AirflowApi(answers.url)
    answers.statuses = [200, 401, 200, 401, 401]
    assert (api.runs("d"), api.runs("d")) == ([], [])
    assert answers.logins == 2
    with pytest.raises(AirflowRefused, match="401"):
        api.runs("d")


def test_the_demo_asks_again_until_its_time_is_over(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_LOOK_EVERY_S", 0.01)
    api = AirflowApi(answers.url)
    answers.statuses = [503, 500, 200]
    demo._wait(lambda: api.runs("d") == [], "an answer", seconds=60)
    assert answers.statuses == []
    answers.statuses = [503]
    with pytest.raises(DemoFailed, match=r"Waited 0 s for an answer; the last look failed: .*503"):
        demo._wait(lambda: api.runs("d") == [], "an answer", seconds=0)
    answers.statuses = [404]
    with pytest.raises(AirflowRefused, match="404"):
        demo._wait(lambda: api.runs("d") == [], "an answer", seconds=60)
