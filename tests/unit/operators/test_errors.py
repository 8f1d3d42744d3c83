"""What an error of ours looks like in a task's log: its own words, and no traceback of what lies beneath."""

from __future__ import annotations

import traceback

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Transient
from airflow_lakestream.operators.base import airflow_errors


class Unavailable(LakestreamError, Transient):
    """Something does not answer."""


def fail(error: Exception) -> None:
    try:
        raise ConnectionError("port 1 of localhost")
    except ConnectionError as e:
        raise error from e


@pytest.mark.parametrize(
    ("error", "kind"),
    [(InvalidArgument("table", "it is none."), AirflowFailException), (Unavailable("kafka: no answer"), Unavailable)],
)
def test_an_error_of_ours_is_told_without_those_beneath_it(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught, airflow_errors():
        fail(error)
    lines = traceback.format_exception(caught.value)
    assert "port 1" not in "".join(lines)
    assert len(lines) <= 5
    assert lines[-1].endswith(f"{error}\n")


def test_any_other_error_keeps_its_traceback() -> None:
    with pytest.raises(KeyError) as caught, airflow_errors():
        fail(KeyError("a defect"))
    assert "port 1 of localhost" in "".join(traceback.format_exception(caught.value))
