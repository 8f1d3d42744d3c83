"""What the tests of one Iceberg table share: a table of the contract suite, which is landed by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.table_formats import VARIANTS, FormatTable


@pytest.fixture
def empty(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FormatTable:
    """Give a table that is not there yet."""
    return VARIANTS[getattr(request, "param", "iceberg")](tmp_path, monkeypatch)
