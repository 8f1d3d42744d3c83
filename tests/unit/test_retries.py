"""LakestreamRetryPolicy: what it decides, and that Airflow does it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.sdk import RetryDecision
from airflow.sdk.definitions.retry_policy import RetryAction

from airflow_lakestream import retries
from airflow_lakestream.exceptions import AirflowTooOld, BadRecord, InvalidArgument, LakestreamError, Transient
from airflow_lakestream.retries import LakestreamRetryPolicy


class Away(LakestreamError, Transient):
    pass


def after(policy: LakestreamRetryPolicy, error: BaseException, try_number: int = 1) -> RetryDecision:
    return policy.evaluate(error, try_number, 1000)


def test_a_terminal_error_is_not_tried_again_and_says_why() -> None:
    decision = after(LakestreamRetryPolicy(), BadRecord("orders", 3, 17, "no JSON"))
    assert decision == RetryDecision.fail("BadRecord: orders[3] offset 17: no JSON")


def test_a_transient_error_is_tried_again_after_ever_longer_pauses_up_to_the_longest() -> None:
    policy = LakestreamRetryPolicy(delay="10s", max_delay="1m")
    decisions = [after(policy, Away("the broker is away"), number) for number in (1, 2, 3, 4, 5, 1000)]
    assert {one.action for one in decisions} == {RetryAction.RETRY}
    assert {one.reason for one in decisions} == {"Away: the broker is away"}
    assert [one.retry_delay for one in decisions] == [timedelta(seconds=s) for s in (10, 20, 40, 60, 60, 60)]


@pytest.mark.parametrize("error", [ValueError("x"), LakestreamError("x"), KeyboardInterrupt()])
def test_any_other_error_is_airflows(error: BaseException) -> None:
    assert after(LakestreamRetryPolicy(), error) == RetryDecision.default()


def test_a_long_reason_fits_the_column_of_airflows_database() -> None:
    reason = after(LakestreamRetryPolicy(), Away("x" * 10_000)).reason
    assert reason is not None
    assert len(reason) == 500


def test_what_is_written_down_is_read_back() -> None:
    policy = LakestreamRetryPolicy(delay="1s", max_delay=7)
    again = LakestreamRetryPolicy.deserialize(policy.serialize())
    assert vars(again) == vars(policy) == {"delay": 1.0, "max_delay": 7.0}


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ({"delay": "soon"}, "delay"),
        ({"max_delay": True}, "max_delay"),
        ({"delay": "2m", "max_delay": "1m"}, "max_delay"),
        ({"max_delay": "9" * 400}, "max_delay"),
    ],
    ids=["no-number", "bool", "shorter", "endless"],
)
def test_a_pause_that_is_none_fails_where_the_file_is_parsed(given: dict[str, object], argument: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        LakestreamRetryPolicy(**given)
    assert caught.value.argument == argument


def test_before_airflow_3_3_it_says_what_to_do_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "AIRFLOW_V_3_3_PLUS", False)
    with pytest.raises(AirflowTooOld, match=r"needs Airflow 3\.3.*`retries` and `retry_delay` instead"):
        LakestreamRetryPolicy()
