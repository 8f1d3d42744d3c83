"""Values at and beyond the extremes of every type, of every format, in committed tables of both kinds."""

from __future__ import annotations

import pytest

from tests.unit.landed.landing import land_and_compare
from tests.unit.landed.sources import SOURCES, TABLES

# Enough for each hostile value to come up in one landing or another; `make fuzz` goes on.
RECORDS = 300


@pytest.mark.parametrize("table_format", TABLES)
@pytest.mark.parametrize("name", SOURCES)
def test_what_is_in_range_lands_as_it_is_and_all_else_is_rejected(name: str, table_format: str) -> None:
    rows, rejected = land_and_compare(SOURCES[name](table_format), table_format, "a", RECORDS)
    # A test in which nothing lands, or nothing is rejected, finds nothing.
    assert rows > RECORDS // 4
    assert rejected > RECORDS // 20
