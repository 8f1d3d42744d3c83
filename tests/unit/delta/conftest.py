"""What the tests of one Delta table share: no pauses between two tries of a commit."""

import pytest

from airflow_lakestream.delta import committing


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "RETRY_PAUSE", 0.001)
