"""What holds in each catalog and store that users have: a file of tests for each, so that one job has its server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.stack import Stack
from tests.contract.conftest import either, empty, made
from tests.support.catalogs import place_in
from tests.support.table_formats import Place

pytest.register_assert_rewrite("tests.matrix.every_catalog", "tests.matrix.every_store")

__all__ = ["either", "empty", "made", "place"]


@pytest.fixture
def place(request: pytest.FixtureRequest, stack: Stack, tmp_path: Path) -> Iterator[Place]:
    """Give a place in an empty catalog: the one that the file of tests names."""
    with place_in(request.module.CATALOG, stack, tmp_path) as found:
        yield found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out other table formats where a file names a catalog, or a store that has tables of Iceberg alone."""
    here = Path(__file__).parent
    items[:] = [item for item in items if "delta" not in item.name or not _is_of_iceberg(item, here)]


def _is_of_iceberg(item: pytest.Item, here: Path) -> bool:
    module = getattr(item, "module", None)
    return here in item.path.parents and (hasattr(module, "CATALOG") or getattr(module, "ICEBERG_ALONE", False))
