"""The audit of a Delta table: what was taken out, doubled or put in by hand is found, by its ranges."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_lakestream.audit.books import NoLedger
from airflow_lakestream.audit.delta import DeltaAudit
from airflow_lakestream.audit.result import AuditResult, AuditVerdict
from airflow_lakestream.audit.rows import NoPositions
from airflow_lakestream.cli.app import run
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.exceptions import InvalidArgument
from tests.support.airflow_home import Connections
from tests.support.broker import Producing
from tests.support.delta_lake import DeltaLake
from tests.support.delta_table import GROUP
from tests.support.lake import events

pytestmark = pytest.mark.integration

EACH = 40


def audited(lake: DeltaLake, *, full: bool = True, group: str = GROUP, topic: str | None = None) -> AuditResult:
    look = DeltaAudit(table=lake.place, consumer_group=group, topic=topic, full=full, kafka=lake.kafka)
    return look.run(DeltaStorage())


@pytest.mark.parametrize("full", [True, False])
def test_what_is_landed_once_with_its_rejects_is_clean(
    lake: DeltaLake, filled: str, produce: Producing, full: bool
) -> None:
    lake.land(filled)
    produce(filled, 0, ["bad", *events(0, EACH + 1, 3)])
    lake.land(filled)
    result = audited(lake, full=full)
    assert result.verdict is AuditVerdict.CLEAN, result.render()
    assert result.snapshot_id == 1
    if full:
        assert {(one.partition, one.rows, one.rejected) for one in result.partitions} == {
            (0, EACH + 3, 1),
            (1, EACH, 0),
        }


def test_rows_taken_out_doubled_and_put_in_are_named(lake: DeltaLake, filled: str) -> None:
    lake.land(filled)
    table = DeltaTable(lake.place)
    rows = table.to_pyarrow_table()
    one = rows.filter(pa.compute.equal(rows["_kafka_partition"], 1)).slice(5, 1)
    strange = one.set_column(one.schema.get_field_index("_kafka_offset"), "_kafka_offset", pa.array([900], pa.int64()))
    table.delete("_kafka_partition = 0 and _kafka_offset between 10 and 19")
    write_deltalake(lake.place, pa.concat_tables([one, strange]).cast(rows.schema), mode="append")

    result = audited(lake)

    assert result.verdict is AuditVerdict.DAMAGE
    first, second = sorted(result.partitions, key=lambda found: found.partition)
    assert first.missing == RangeSet.of(filled, 0, 10, 20)
    [doubled] = second.doubled
    offset = one["_kafka_offset"][0].as_py()
    assert (doubled.from_offset, doubled.until_offset, doubled.times) == (offset, offset + 1, 2)
    assert second.unexpected == RangeSet.of(filled, 1, 900, 901)
    # By the files' statistics alone the number of rows tells.
    assert audited(lake, full=False).verdict is AuditVerdict.DAMAGE


def test_after_a_restore_and_an_optimize_the_ledger_and_the_rows_still_agree(
    lake: DeltaLake, filled: str, produce: Producing
) -> None:
    lake.land(filled)
    produce(filled, 0, events(0, EACH, 10))
    lake.land(filled)
    DeltaTable(lake.place).optimize.compact()
    assert audited(lake).verdict is AuditVerdict.CLEAN
    DeltaTable(lake.place).restore(0)
    result = audited(lake, topic=filled)
    assert result.verdict is AuditVerdict.CLEAN
    assert sum(one.rows for one in result.partitions) == 2 * EACH


def test_what_can_not_be_audited_is_said(lake: DeltaLake, filled: str) -> None:
    with pytest.raises(InvalidArgument, match="there is no Delta table at"):
        audited(lake)
    lake.land(filled)
    with pytest.raises(NoLedger, match=f"Groups with a ledger there: {GROUP}"):
        audited(lake, group="other")
    with pytest.raises(NoLedger, match="nothing of topic 'other'"):
        audited(lake, topic="other")
    write_deltalake(f"{lake.folder}/plain", pa.table({"id": [1]}))
    with pytest.raises(NoPositions, match="_kafka_topic, _kafka_partition, _kafka_offset"):
        DeltaAudit(table=f"{lake.folder}/plain", consumer_group=GROUP).run(DeltaStorage())


def test_by_the_command_line(
    lake: DeltaLake, filled: str, connections: Connections, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.land(filled)
    command = ["audit", "--table", lake.place, "--group", GROUP, "--full", "--json"]
    assert run(command) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "clean"
    DeltaTable(lake.place).delete("_kafka_offset = 7")
    assert run(command) == 1
