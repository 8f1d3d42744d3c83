"""What an error of ours looks like in a task's log: its own words, and no traceback of what lies beneath."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, MissingExtra, Transient
from airflow_lakestream.operators.base import airflow_errors, need_extras

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


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


@pytest.mark.parametrize(
    ("extra", "module"), [("spark", "airflow.providers.apache.spark"), ("delta", "obstore"), ("protobuf", "grpc_tools")]
)
def test_a_missing_extra_is_told_with_the_command_that_installs_it(
    extra: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_extras(extra)
    # As Python has it of a module that is not there.
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        MissingExtra,
        match=rf"^{module} is not installed: pip install '\.\[{extra}\]' --constraint dev/constraints\.txt, in a clone",
    ):
        need_extras(extra)
    assert f"\n{extra} = [" in PYPROJECT.read_text()
