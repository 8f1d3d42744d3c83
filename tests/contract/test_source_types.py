"""What the source's columns are, in the same commit as the rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_lakestream.core.ledger import TopicEntry
from airflow_lakestream.core.ports import TypesConflict
from airflow_lakestream.core.source_types import SourceType
from tests.support.replacing import ORDERS, Run, ranges
from tests.support.table_formats import FormatTable

DATE, NUMBER = SourceType("date", "int32 (io.debezium.time.Date)", 1), SourceType("number", "int32", 7, 9, True)


def land(run: Run, start: int, types: dict[str, SourceType], *, anew: bool = False) -> int:
    landing = run.landing({ORDERS: TopicEntry(landed=ranges((0, start, start + 1)))})
    try:
        commit: int = run.sink.commit(replace(landing, types=types, replaces_types=anew))
    except BaseException:
        run.sink.discard()
        raise
    return commit


def test_types_are_kept_with_the_rows_through_history_and_rolled_back_with_them(empty: FormatTable) -> None:
    first = land(empty.run(), 0, {"v": DATE})
    land(empty.run(), 1, {"w": NUMBER})
    for n in range(2, 30):
        land(empty.run(), n, {})
    assert empty.run().state.types.columns == {"v": DATE, "w": NUMBER}
    empty.roll_back(first)
    assert empty.run().state.types.columns == {"v": DATE}
    land(empty.run(), 1, {"w": DATE})
    assert empty.run().state.types.columns == {"v": DATE, "w": DATE}


def test_types_outlive_the_history_of_the_table(made: FormatTable) -> None:
    land(made.run(), 30, {"v": DATE})
    for n in range(31, 50):
        land(made.run(), n, {})
    made.forget_history()
    assert made.run().state.types.columns == {"v": DATE}


def test_two_runs_at_once_land_one_type_of_a_column_and_new_rows_may_have_another(empty: FormatTable) -> None:
    land(empty.run(), 0, {})
    late = empty.run()
    land(empty.run(), 1, {"v": DATE})
    with pytest.raises(TypesConflict, match="column v"):
        land(late, 2, {"v": NUMBER})
    assert empty.run().state.types.columns == {"v": DATE}
    land(empty.run(), 2, {"v": NUMBER}, anew=True)
    assert empty.run().state.types.columns == {"v": NUMBER}
