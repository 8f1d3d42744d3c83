"""The contract suite: one table of each format, and what every format has to do with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.replacing import Row, offsets_of, ranges
from tests.support.table_formats import FORMATS, FormatTable


@pytest.fixture(params=FORMATS)
def empty(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FormatTable:
    """Give a table of each format that is not there yet."""
    return FORMATS[request.param](tmp_path, monkeypatch)


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


def versions(*parts: tuple[tuple[int, int, int], str], foreign: tuple[str, ...] = ()) -> list[Row]:
    """Return a table's rows: for each record the last version that is given for it, and rows of no record."""
    rows = {key: version for part, version in parts for key in offsets_of(ranges(part))}
    strange = [(None, None, version) for version in foreign]
    return sorted([*((*key, version) for key, version in rows.items()), *strange], key=repr)
