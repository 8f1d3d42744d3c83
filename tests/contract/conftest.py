"""The contract suite: one table of each format, and what every format has to do with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from airflow_lakestream.core.ranges import RangeSet
from tests.support.faults import FAILED, TIMEOUT, applied, twice, unapplied
from tests.support.kept_folder import KeptFolder
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

# Lands these ranges.
Begun = Callable[..., FormatTable]


class KeptTables:
    """Tables in a folder that are given to one test after the other, each time as they were at first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[str, KeptFolder] = {}

    def begin(self, name: str, table: FormatTable, landings: Sequence[RangeSet]) -> FormatTable:
        """Return the table in a folder of that name, with these landings."""
        table.move(self._folder / name)
        if name in self._kept:
            self._kept[name].restore()
            return table
        table.folder.mkdir()
        for these in landings:
            table.land(these)
        self._kept[name] = KeptFolder(table.folder, self._folder / f"{name}-kept")
        return table


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Give where the tables are: a folder of the test's own. The matrix has the same in other catalogs."""
    return Place(tmp_path)


@pytest.fixture(params=FORMATS)
def empty(request: pytest.FixtureRequest, place: Place, monkeypatch: pytest.MonkeyPatch) -> FormatTable:
    """Give a table of each format that is not there yet."""
    return VARIANTS[request.param](place.folder, monkeypatch, **place.options)


@pytest.fixture(scope="module")
def kept_tables(tmp_path_factory: pytest.TempPathFactory) -> KeptTables:
    """Give the tables that tests of a file begin with."""
    return KeptTables(tmp_path_factory.mktemp("kept"))


@pytest.fixture
def begun(request: pytest.FixtureRequest, empty: FormatTable, place: Place, kept_tables: KeptTables) -> Begun:
    """Give the beginning of a table: it is landed by the first test of a file, and as it was then for the others."""

    def begin(*landings: RangeSet) -> FormatTable:
        # Not in the catalog of a server.
        if not place.options:
            variant = request.node.callspec.params["empty"]
            return kept_tables.begin(f"{variant}-{len(landings)}".replace(" ", "-"), empty, landings)
        for these in landings:
            empty.land(these)
        return empty

    return begin


@pytest.fixture
def made(begun: Begun) -> FormatTable:
    """Give a table of each format with three files of ten records."""
    return begun(*(ranges((0, start, start + 10)) for start in (0, 10, 20)))


@pytest.fixture(params=[True, False], ids=["no table yet", "table there"])
def either(request: pytest.FixtureRequest, empty: FormatTable, begun: Begun) -> FormatTable:
    """Give a table that is not there yet, and one that has the records 0 to 9 of partition 1."""
    return empty if request.param else begun(ranges((1, 0, 10)))
