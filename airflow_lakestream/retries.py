"""Retries of failed tasks by the kind of error, for `retry_policy` on Airflow 3.3."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS

from airflow_lakestream.core.policies import seconds
from airflow_lakestream.exceptions import AirflowTooOld, InvalidArgument, Terminal, Transient

if AIRFLOW_V_3_3_PLUS or TYPE_CHECKING:
    from airflow.sdk import RetryDecision, RetryPolicy
else:
    RetryPolicy = object

_MOST_CHARACTERS = 500  # characters of a reason that Airflow's database column can hold
_LONGEST_DELAY = 366 * 86_400.0  # longest allowed `max_delay`, in seconds
_MOST_DOUBLINGS = 30  # more doublings would exceed any reasonable bound, and soon the range of a float


class LakestreamRetryPolicy(RetryPolicy):
    """Retry policy: try again after a transient error of lakestream, never after a terminal error.

    A terminal error (a bad record, lost offsets, arguments that contradict each other) fails the task at once, for any
    `retries`. After a transient error (a broker or a catalog that does not answer, a conflict, a full disk) the task is
    tried again, as often as `retries` allows: first after `delay`, then after twice the last pause, up to `max_delay`.
    After any other error the task's `retries` and `retry_delay` apply. Airflow keeps the reason with the try.

    Operators of lakestream fail at once on a terminal error without this policy. Tasks of your own that call lakestream
    need it.

    :param delay: pause before the second try: a number of seconds, or a text such as `"10s"`.
    :param max_delay: longest pause, in the same form.
    """

    def __init__(self, *, delay: float | str = "10s", max_delay: float | str = "5m") -> None:
        if not AIRFLOW_V_3_3_PLUS:
            raise AirflowTooOld(
                "LakestreamRetryPolicy needs Airflow 3.3 or newer: before that, a task has no retry_policy. Give it "
                "`retries` and `retry_delay` instead; a terminal error fails a lakestream operator at once there, too."
            )
        self.delay = seconds("delay", delay)
        self.max_delay = seconds("max_delay", max_delay)
        if self.max_delay < self.delay:
            raise InvalidArgument("max_delay", f"{max_delay!r} is shorter than the delay, {delay!r}.")
        if self.max_delay > _LONGEST_DELAY:
            raise InvalidArgument("max_delay", "is longer than a year.")

    def evaluate(self, exception: BaseException, try_number: int, max_tries: int, context: Any = None) -> RetryDecision:
        """Return the decision after a failed try: fail, retry with a pause, or leave it to the task's own settings.

        Airflow itself ends the retries after `max_tries`.
        """
        reason = f"{type(exception).__name__}: {exception}"[:_MOST_CHARACTERS]
        if isinstance(exception, Terminal):
            return RetryDecision.fail(reason)
        if isinstance(exception, Transient):
            doublings = min(max(0, try_number - 1), _MOST_DOUBLINGS)
            return RetryDecision.retry(timedelta(seconds=min(self.max_delay, self.delay * 2**doublings)), reason)
        return RetryDecision.default()

    def serialize(self) -> dict[str, Any]:
        """Return the arguments, JSON-ready."""
        return {"delay": self.delay, "max_delay": self.max_delay}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> LakestreamRetryPolicy:
        """Return the policy from the output of `serialize`."""
        return cls(**data)
