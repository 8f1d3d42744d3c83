"""Rejected records that are landed again, in tables of both formats: each is a row or rejected, and never both."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_lakestream.audit.books import NoLedger
from airflow_lakestream.cli.app import run
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.run.rejected import open_rejected
from airflow_lakestream.run.replay import RejectReplay, RejectSelection
from tests.support.given_records import FORMATS, GROUP, GivenLake

AT = 1_763_596_800
RECORDS = [b'{"id": 1, "at": "2025-11-20T00:00:00Z"}', f'{{"id": 2, "at": {AT}}}'.encode(), b"no JSON", b'{"id": "x"}']


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> GivenLake:
    """Give a table that has the first record, and has rejected the others."""
    given = GivenLake(tmp_path, request.param)
    given.land(RECORDS, schema="id bigint, at timestamp", on_error="reject", max_rejected=1.0)
    assert set(given.rejected()) == {1, 2, 3}
    return given


def store_of(lake: GivenLake) -> object:
    return lake.catalog() if lake.table_format == "iceberg" else DeltaStorage()


def replay(lake: GivenLake, chosen: RejectSelection, **decoding: str) -> dict[str, object]:
    work = RejectReplay(table=lake.name, consumer_group=GROUP, chosen=chosen, decoding=decoding)
    return work.run(store_of(lake)).to_dict()


def test_what_fits_becomes_a_row_and_the_rest_stays_rejected(lake: GivenLake) -> None:
    timed = {"schema": "id bigint, at timestamp from epoch_s"}
    done = replay(lake, RejectSelection(reason="likely seconds"), **timed)
    assert (done["replayed"], done["rows"], done["still_rejected"]) == (1, 1, 0)
    assert sorted(row["id"] for row in lake.rows()) == [1, 2]
    assert {row["at"] for row in lake.rows()} == {datetime(2025, 11, 20, tzinfo=UTC)}
    books = open_rejected(store_of(lake), lake.name)
    parts = [part["_kafka_offset"].to_pylist() for part in books.counting(GROUP, columns=("error",))]
    assert sorted(offset for part in parts for offset in part) == [2, 3]
    done = replay(lake, RejectSelection(), **timed)
    assert (done["replayed"], done["rows"], done["still_rejected"]) == (2, 0, 2)
    assert len(lake.rows()) == 2


def reasons_of(lake: GivenLake) -> dict[int, str]:
    books = open_rejected(store_of(lake), lake.name)
    rows = [row for part in books.counting(GROUP, columns=("error",)) for row in part.to_pylist()]
    return {row["_kafka_offset"]: row["error"] for row in rows}


def test_a_replay_that_knows_less_than_the_landing_keeps_the_reasons(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    timed = "id bigint, at timestamp from epoch_s"
    records = [b'{"id": 1, "at": 1}', b'{"id": 2, "at": "x"}', b'{"id": 3, "at": 4, "more": 5}']
    lake.land(records, schema=timed, on_error="reject", max_rejected=1.0, unknown_fields="fail")
    first = reasons_of(lake)
    # By the table alone a number is not a time.
    replay(lake, RejectSelection())
    assert reasons_of(lake) == first
    assert replay(lake, RejectSelection(), unknown_fields="ignore", schema=timed)["rows"] == 1
    assert reasons_of(lake) == {1: first[1]}
    replay(lake, RejectSelection(), schema="id bigint, at timestamp")
    assert reasons_of(lake)[1] != first[1]


def test_columns_that_get_no_value_are_named(lake: GivenLake) -> None:
    work = RejectReplay(table=lake.name, consumer_group=GROUP, decoding={"sql": "SELECT 7 AS id FROM {{ input }}"})
    done = work.run(store_of(lake))
    assert (done.counts.written, done.empty) == (3, ("at",))
    assert done.note == " Columns without a value: at."
    assert done.to_dict()["empty_columns"] == ["at"]


def test_who_has_landed_nothing_is_told_who_has(lake: GivenLake) -> None:
    with pytest.raises(NoLedger, match=f"{GROUP}"):
        RejectReplay(table=lake.name, consumer_group="nobody").run(store_of(lake))


def test_a_delta_table_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="there is no Delta table at"):
        RejectReplay(table=str(tmp_path / "no"), consumer_group="g").run(DeltaStorage())


def test_the_commands_show_and_replay_a_delta_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = GivenLake(tmp_path, "delta")
    lake.land(RECORDS, schema="id bigint, at timestamp", on_error="reject", max_rejected=1.0)
    on = ("--table", lake.name)
    assert run(["rejects", "show", *on, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rejected"] == 3
    assert run(["rejects", "show", *on]) == 0
    assert f"after a fix: lakestream rejects replay --table {lake.name} --dag ID" in capsys.readouterr().out
    decoding = ("--schema", "id bigint, at timestamp from epoch_s", "--reason", "likely seconds")
    assert run(["rejects", "replay", *on, *decoding, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 1
    assert run(["rejects", "show", *on, "--group", "nobody"]) == 2
    assert f"Groups with a ledger there: {GROUP}." in capsys.readouterr().err
