"""What holds in each catalog and store that users have: a file of tests for each, so that one job has its server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.stack import Stack
from tests.contract.conftest import begun, either, empty, kept_tables, made
from tests.support.catalogs import place_in
from tests.support.table_formats import Place

pytest.register_assert_rewrite("tests.matrix.every_catalog", "tests.matrix.every_store")

__all__ = ["begun", "either", "empty", "kept_tables", "made", "place"]

# Of each test that plays random histories.
HISTORIES = 1
# What is the same code in each catalog is played in one that is a server: it commits as the others do.
IN_ONE_CATALOG = ("tests.contract.test_rejects", "tests.contract.test_sharing")
THE_ONE = "REST"


@pytest.fixture
def place(request: pytest.FixtureRequest, worker_stack: Stack, tmp_path: Path) -> Iterator[Place]:
    """Give a place in an empty catalog: the one that the file of tests names."""
    with place_in(request.module.CATALOG, worker_stack, tmp_path) as found:
        yield found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what says nothing of a catalog or a store that a file names: other formats, most random histories."""
    here = Path(__file__).parent
    items[:] = [item for item in items if here not in item.path.parents or _is_of_its_file(item)]


def _is_of_its_file(item: pytest.Item) -> bool:
    module = getattr(item, "module", None)
    if hasattr(module, "CATALOG"):
        # Seeds differ in what runs do, and not in how a catalog commits. The suite `long` plays more of them.
        played: int = item.callspec.params.get("seed", 0) if hasattr(item, "callspec") else 0
        is_of_one = module.CATALOG != THE_ONE and item.function.__module__ in IN_ONE_CATALOG
        return "delta" not in item.name and played < HISTORIES and not is_of_one
    return "delta" not in item.name or not getattr(module, "ICEBERG_ALONE", False)
