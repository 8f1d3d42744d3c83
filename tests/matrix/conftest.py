"""The contract of tables, in each catalog that users have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.stack import Stack
from tests.contract.conftest import either, empty, made
from tests.support.catalogs import CATALOGS, place_in
from tests.support.table_formats import Place

__all__ = ["either", "empty", "made", "place"]


# One job has all tests of a catalog, and only its server.
@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in CATALOGS])
def place(request: pytest.FixtureRequest, stack: Stack, tmp_path: Path) -> Iterator[Place]:
    """Give a place in an empty catalog of each kind."""
    with place_in(request.param, stack, tmp_path) as found:
        yield found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out other table formats: these are catalogs of Iceberg."""
    items[:] = [item for item in items if "delta" not in item.name]
