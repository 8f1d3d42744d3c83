"""The contract suite: one table of each format, and what every format has to do with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.faults import FAILED, TIMEOUT, applied, twice, unapplied
from tests.support.replacing import ranges
from tests.support.table_formats import FORMATS, VARIANTS, FormatTable, Place

# What becomes of a commit, and what its sink is told.
FAULTS = {
    "applied, and no answer": applied(TIMEOUT),
    "applied, and asked for again": twice,
    "not applied, and no answer": unapplied(TIMEOUT),
    "applied, and reported as failed": applied(FAILED),
    "not applied, and reported as failed": unapplied(FAILED),
}

# For tests of commits that others are in the way of: formats with and without the retries of their own client.
WITH_AND_WITHOUT_RETRIES = pytest.mark.parametrize("empty", VARIANTS, indirect=True)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Give where the tables are: a folder of the test's own. The matrix has the same in other catalogs."""
    return Place(tmp_path)


@pytest.fixture(params=FORMATS)
def empty(request: pytest.FixtureRequest, place: Place, monkeypatch: pytest.MonkeyPatch) -> FormatTable:
    """Give a table of each format that is not there yet."""
    return VARIANTS[request.param](place.folder, monkeypatch, **place.options)


@pytest.fixture
def made(empty: FormatTable) -> FormatTable:
    """Give a table of each format with three files of ten records."""
    for start in (0, 10, 20):
        empty.land(ranges((0, start, start + 10)))
    return empty


@pytest.fixture(params=[True, False], ids=["no table yet", "table there"])
def either(request: pytest.FixtureRequest, empty: FormatTable) -> FormatTable:
    """Give a table that is not there yet, and one that has the records 0 to 9 of partition 1."""
    if not request.param:
        empty.land(ranges((1, 0, 10)), "old")
    return empty
