"""The contract of tables, in each catalog that users have: a file of tests for each, so that one job has its server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.stack import Stack
from tests.contract.conftest import either, empty, made
from tests.support.catalogs import place_in
from tests.support.table_formats import Place

pytest.register_assert_rewrite("tests.matrix.every_catalog")

__all__ = ["either", "empty", "made", "place"]


@pytest.fixture
def place(request: pytest.FixtureRequest, stack: Stack, tmp_path: Path) -> Iterator[Place]:
    """Give a place in an empty catalog: the one that the file of tests names."""
    with place_in(request.module.CATALOG, stack, tmp_path) as found:
        yield found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out other table formats: these are catalogs of Iceberg."""
    here = Path(__file__).parent
    items[:] = [item for item in items if here not in item.path.parents or "delta" not in item.name]
