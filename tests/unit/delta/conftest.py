"""What the tests of one Delta table share: commits that meet faults, without pauses between two tries."""

from collections.abc import Callable

import pytest

from airflow_lakestream.delta.commit import committing
from tests.support.delta_table import Fault, faulty


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "RETRY_PAUSE", 0.001)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the next commits meet faults."""

    def meet(*some: Fault) -> None:
        monkeypatch.setattr(committing, "put_commit", faulty(*some))

    return meet
