"""Columns of a database that become other ones, on the real broker: mirrors and tables of events, in each format."""

from __future__ import annotations

import uuid
from datetime import date
from typing import Any

import pytest

from airflow_lakestream.core.source_types import SourceTypeChanged
from airflow_lakestream.decode.writer_schemas import SourceTypes
from airflow_lakestream.exceptions import Terminal
from airflow_lakestream.run.summary import last_line
from airflow_lakestream.run.topics import land_run
from airflow_lakestream.watching.streams.status import StreamFacts, stream_status
from dev.services.registry import Registry
from tests.support import typed_events as kinds
from tests.support.broker import Producing
from tests.support.delta_lake import EACH_FORMAT
from tests.support.lake import GROUP, Lake
from tests.support.lake_reading import one_partition
from tests.support.mirror_lake import MirrorLake
from tests.support.parallel_run import ParallelRun
from tests.support.shared_run import SharedRun
from tests.support.typed_events import typed_change

pytestmark = pytest.mark.integration

name = one_partition

# 2026 days after 1970-01-01.
WRONG = date(1975, 7, 20)


def dates(count: int, first: int = 1) -> list[bytes]:
    return [typed_change("c", {"id": n, "v": 20_000}, n, {"v": kinds.DATE}) for n in range(first, first + count)]


def numbers(count: int, first: int) -> list[bytes]:
    return [typed_change("u", {"id": n, "v": 2026}, 100 + n, {"v": kinds.INT}) for n in range(first, first + count)]


def test_a_mirrors_column_that_is_another_one_stops_it_in_whatever_batch(
    mirror_lake: MirrorLake, name: str, produce: Producing
) -> None:
    produce(name, 0, dates(3))
    mirror_lake.land(name)
    # A batch in which the column is gone.
    produce(name, 0, [typed_change("u", {"id": 1}, 50, {})])
    mirror_lake.land(name)
    produce(name, 0, numbers(2, 2))
    for _ in range(2):
        with pytest.raises(
            SourceTypeChanged, match=r"column v .*Date\) before, and is int32 at \S+\[0\] offset 4"
        ) as stop:
            mirror_lake.land(name)
        assert isinstance(stop.value, Terminal)
        assert "lakestream mirror resnapshot" in str(stop.value)
        assert "[type-changed]" in str(stop.value)
    assert WRONG not in mirror_lake.column("v")
    mirror_lake.assert_whole()
    assert mirror_lake.ledger().types["v"].meaning == "date"


@EACH_FORMAT
def test_events_whose_column_is_another_one_are_refused_and_land_in_a_new_table(
    lake: Lake, name: str, produce: Producing
) -> None:
    given = {"envelope": "debezium"}
    produce(name, 0, dates(3))
    lake.land(name, **given)
    produce(name, 0, dates(1, 9))
    (at, *_) = produce(name, 0, numbers(2, 2))
    with pytest.raises(SourceTypeChanged, match=rf"offset {at}: .*from that offset on into a new table"):
        lake.land(name, **given)
    with pytest.raises(SourceTypeChanged):
        ParallelRun(lake, name, given).land()
    group = SharedRun(lake, name, given)
    plan = group.plan()
    with pytest.raises(SourceTypeChanged):
        group.commit(plan, group.read_all(plan))
    assert not group.files()
    assert lake.offsets() == [(0, n) for n in range(3)]
    lake.assert_whole()
    # The way on.
    lake.land(name, **given, mode="ranges", ranges=[[0, 3, at]])
    assert lake.offsets() == [(0, n) for n in range(at)]
    # What was landed is read again and compared, too.
    lake.land(name, **given, mode="ranges", ranges=[[0, 0, at]], replace=True)
    assert lake.column("v") == [date(2024, 10, 4)] * 4


@EACH_FORMAT
def test_raw_numbers_land_in_declared_columns_until_they_are_other_ones(
    lake: Lake, name: str, produce: Producing
) -> None:
    given = {"envelope": "debezium", "schema": "id bigint, v int"}
    produce(name, 0, dates(3))
    lake.land(name, **given)
    produce(name, 0, dates(2, 4))
    assert lake.land(name, **given).counts.written == 2
    assert lake.column("v") == [20_000] * 5
    produce(name, 0, numbers(1, 9))
    with pytest.raises(SourceTypeChanged, match="column v"):
        lake.land(name, **given)


@EACH_FORMAT
def test_a_table_that_has_no_notes_takes_the_next_events_as_they_are(
    lake: Lake, name: str, produce: Producing, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(name, 0, dates(3))
    with monkeypatch.context() as before:
        # An earlier version.
        before.setattr(SourceTypes, "of", lambda *_: {})
        lake.land(name, envelope="debezium")
    assert lake.ledger().types == {}
    produce(name, 0, dates(1, 9))
    assert lake.land(name, envelope="debezium").counts.written == 1
    assert lake.ledger().types["v"].meaning == "date"
    produce(name, 0, numbers(1, 9))
    with pytest.raises(SourceTypeChanged):
        lake.land(name, envelope="debezium")


def test_a_column_dropped_and_added_again_is_named_in_report_last_line_and_ledger(
    mirror_lake: MirrorLake, name: str, produce: Producing, caplog: pytest.LogCaptureFixture
) -> None:
    def run() -> tuple[dict[str, Any], str]:
        config = mirror_lake.settings(name)
        found = land_run(config, mirror_lake.kafka, mirror_lake.catalog(), run_id=uuid.uuid4().hex)
        return found.to_dict(), last_line(found, config)

    produce(name, 0, [typed_change("c", {"id": n, "v": n}, n, {"v": kinds.INT}) for n in (1, 2, 3)])
    assert run()[0]["stale_columns"] == []
    produce(name, 0, [typed_change("u", {"id": 1}, 10, {})])
    assert run()[0]["stale_columns"] == []
    produce(name, 0, [typed_change("u", {"id": 2, "v": 7}, 20, {"v": kinds.INT})])
    report, line = run()
    assert report["stale_columns"] == ["v"]
    said = "dropped in the source and added again: v; rows without an event since then keep the values from before"
    assert said in line
    assert said in caplog.text
    # As long as nothing has mended it.
    produce(name, 0, [typed_change("u", {"id": 2, "v": 8}, 30, {"v": kinds.INT})])
    assert run()[0]["stale_columns"] == ["v"]
    facts = StreamFacts(report["table"], GROUP, name, stale=tuple(report["stale_columns"]))
    told = stream_status(facts, 0, 60)
    assert told.to_dict()["stale_columns"] == ["v"]
    assert said in "; ".join(map(str, told.reasons))


def test_a_mirror_by_a_registry_stops_too(
    mirror_lake: MirrorLake, name: str, produce: Producing, registry: Registry
) -> None:
    given = {"format": "avro", "schema_registry": registry.url}
    for kind, value, first in ((kinds.LONG, 1_700_000_000, 1), (kinds.MICROS, 1_700_000_000_000_000, 50)):
        of = {"v": kind}
        schema_id = registry.register(f"{name}-value", kinds.avro_schema(of))
        events = [kinds.avro_change("c", {"id": n, "v": value}, n, of, schema_id) for n in range(first, first + 3)]
        produce(name, 0, events)
        if first == 1:
            mirror_lake.land(name, **given)
    with pytest.raises(SourceTypeChanged, match=r"was int64 before, and is int64 \(io.debezium.time.MicroTimestamp\)"):
        mirror_lake.land(name, **given)
    assert mirror_lake.column("v") == [1_700_000_000] * 3
