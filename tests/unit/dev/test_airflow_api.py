import socket

from dev.services.airflow_api import AirflowApi, reason_of


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
