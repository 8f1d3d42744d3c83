"""The contract of tables in Glue, by moto with the comparison that it lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dev.stack import Stack
from tests.matrix.every_catalog import *  # noqa: F403  # pytest collects the tests here, for this catalog
from tests.support.replacing import ranges, versions
from tests.support.table_formats import IcebergTable

CATALOG = "Glue"


@pytest.mark.parametrize("careless", [False, True], ids=["Glue", "one that does not compare"])
def test_what_another_commits_between_the_look_and_the_change_stays_as_glue_compares(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, careless: bool
) -> None:
    properties = stack.up_glue(careless=careless).properties
    table = IcebergTable(tmp_path, monkeypatch, {**properties, "warehouse": f"file://{tmp_path}/warehouse"})
    table.land(ranges((0, 0, 5)))
    held: Any = table.catalog()
    update, waiting = held.glue.update_table, ["foreign"]

    def update_after_another(**request: Any) -> Any:
        while waiting:
            table.append_foreign(waiting.pop())
        return update(**request)

    held.glue.update_table = update_after_another
    table.through(held).land(ranges((0, 5, 9)), "new")

    # The second says that the test would see a loss.
    foreign = () if careless else ("foreign",)
    assert table.rows() == versions(((0, 0, 5), "old"), ((0, 5, 9), "new"), foreign=foreign)
    table.drop()
