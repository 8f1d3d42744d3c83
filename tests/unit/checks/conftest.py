"""Fixtures of the tests of checked landings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.checks.checked import CheckedLake


@pytest.fixture
def lake(tmp_path: Path) -> CheckedLake:
    """Give a table in Iceberg that is not there yet."""
    return CheckedLake(tmp_path)
