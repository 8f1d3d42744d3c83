"""One Delta table as a sink: rows and ledger in one version, once each, whatever happens around the commit."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from airflow_lakestream.delta import committing
from tests.support.delta_table import (
    GROUP,
    TOPIC,
    a_sink,
    expected,
    land,
    landed,
    landing,
    rows,
    rows_of,
    stray_files,
    versions,
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "clicks"


def test_a_landing_is_one_version_with_rows_ledger_and_transaction(table: Path) -> None:
    assert [land(table, 0, 5), land(table, 5, 8)] == [0, 1]

    assert rows_of(table) == expected((0, 8))
    assert landed(table) == "clicks[0] [0,8)"
    for number, actions in enumerate(versions(table)):
        assert {next(iter(action)) for action in actions} >= {"commitInfo", "metaData", "txn", "add"}
        assert {"appId": f"lakestream.{GROUP}", "version": number + 1} in [action.get("txn") for action in actions]
    assert DeltaTable(str(table)).to_pyarrow_table().num_rows == 8


def test_text_that_looks_like_the_end_of_a_line_does_not_cut_the_log(table: Path) -> None:
    # The log has the least and the greatest value of each column, and JSON lets these characters stand in a text.
    odd = rows(0, 3)
    names = pa.array(["\u2028", "a\u0085b", "\u2029z"], odd["name"].type)
    sink = a_sink(table)
    sink.load("odd")
    sink.write(odd.set_column(odd.column_names.index("name"), odd.schema.field("name"), names), TOPIC)
    sink.commit(landing(0, 3))
    land(table, 3, 5)
    assert landed(table) == "clicks[0] [0,5)"


def test_a_request_that_is_applied_late_is_found_before_another_is_sent(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(table, 0, 5)
    real, late = committing.put_commit, list[tuple[object, int, object]]()

    def put(store: object, version: int, actions: list[dict[str, object]]) -> bool:
        if not late:
            late.append((store, version, actions))
            raise OSError("time-out")
        # The first request arrives only now, and the second comes too late.
        assert real(*late[0])
        return real(store, version, actions)

    monkeypatch.setattr(committing, "put_commit", put)
    assert land(table, 5, 9) == 1
    assert rows_of(table) == expected((0, 9))
    assert not stray_files(table)


def test_checkpoints_are_written_as_the_table_asks(table: Path) -> None:
    for n in range(7):
        land(table, n, n + 1, table_properties={"delta.checkpointInterval": "3"})
    found = sorted(path.name[:20].lstrip("0") for path in (table / "_delta_log").glob("*.checkpoint.parquet"))
    assert found == ["3", "6"]
    assert DeltaTable(str(table)).to_pyarrow_table().num_rows == 7


def test_vacuum_takes_only_what_no_version_needs(table: Path) -> None:
    land(table, 0, 5)
    land(table, 5, 9)
    DeltaTable(str(table)).optimize.compact()
    DeltaTable(str(table)).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert rows_of(table) == expected((0, 9))
    assert landed(table) == "clicks[0] [0,9)"
    land(table, 9, 12)
    assert rows_of(table) == expected((0, 12))
