"""The audit of tables by key finds what is wrong with a row, exactly that, and says what it could not see."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_lakestream.audit.result import AuditResult, AuditVerdict
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.run.mirror_audit import MirrorAudit
from tests.support.broker import Producing, Topics
from tests.support.lake import GROUP
from tests.support.mirror_lake import MirrorLake

pytestmark = pytest.mark.integration

CLEAN, DAMAGE, BLIND = AuditVerdict.CLEAN, AuditVerdict.DAMAGE, AuditVerdict.COULD_NOT_LOOK
PLAIN: dict[str, Any] = {"envelope": None, "key": ["id"]}


def audit(lake: MirrorLake, landing: Mapping[str, Any] | None = None, *, full: bool = True) -> AuditResult:
    look = lake_of(lake.name).part("audit")(table=lake.name, consumer_group=GROUP, full=full, kafka=lake.kafka)
    return MirrorAudit(audit=look, landing=landing or {}).run(lake.catalog())


def value(key: int, name: str | None) -> str | None:
    return None if name is None else json.dumps({"id": key, "name": name, "size": len(name)})


def change(lake: MirrorLake, key: int, **new: Any) -> None:
    """Write a row with other values in place of a key's, as another tool would."""
    rows = lake.scan().filter(pc.equal(lake.scan()["id"], key))
    lake.table().delete(f"id = {key}")
    lake.append(with_values(rows, new))


def with_values(rows: pa.Table, new: Mapping[str, Any]) -> pa.Table:
    for name, one in new.items():
        at = rows.column_names.index(name)
        rows = rows.set_column(
            at, rows.schema.field(name), pa.repeat(pa.scalar(one, rows.schema.field(name).type), len(rows))
        )
    return rows


def told(result: AuditResult) -> list[tuple[str, int, int, str, tuple[str, ...]]]:
    return [(one.fault.value, one.partition, one.offset, dict(one.key)["id"], one.columns) for one in result.wrong]


def test_each_fault_of_a_row_is_found_and_no_other(mirror_lake: MirrorLake, topic: Topics, produce: Producing) -> None:
    lake, name = mirror_lake, topic(2)
    for partition in (0, 1):
        own = [key for key in range(20) if key % 2 == partition]
        changes = [(key, f"v{turn}") for turn in range(3) for key in own] + [(own[2], None)]
        produce(name, partition, [value(*one) for one in changes], keys=[json.dumps({"id": key}) for key, _ in changes])
    lake.land(name, **PLAIN, max_batch_bytes="1KB")
    clean = audit(lake)
    assert (clean.verdict, clean.made, sum(one.rows for one in clean.partitions)) == (CLEAN, [], 18), clean.render()

    whole = lake.scan()
    lake.table().delete("id = 0")
    lake.append(whole.filter(pc.equal(whole["id"], 2)))
    change(lake, 6, name="v1", _kafka_offset=13)
    lake.append(with_values(whole.filter(pc.equal(whole["id"], 8)), {"id": 4, "_kafka_offset": 22}))
    change(lake, 10, name="V2")
    change(lake, 12, id=112)
    change(lake, 13, size=None)
    lake.append(with_values(whole.filter(pc.equal(whole["id"], 1)), {"id": 201, "_kafka_offset": 10**6}))

    result = audit(lake)
    assert result.verdict is DAMAGE
    assert told(result) == [
        ("missing", 0, 20, "0", ()),
        ("doubled", 0, 21, "2", ()),
        ("extra", 0, 22, "4", ()),
        ("different", 0, 23, "6", ("name", "_kafka_offset")),
        ("different", 0, 25, "10", ("name",)),
        ("extra", 0, 26, "112", ()),
        ("missing", 0, 26, "12", ()),
        ("different", 1, 26, "13", ("size",)),
        ("extra", 1, 10**6, "201", ()),
    ], result.render()
    assert "different row: offset 25, id=10 in name" in result.render()
    assert result.to_dict(2)["wrong_rows"][0] == {
        "fault": "missing", "partition": 0, "offset": 20, "key": {"id": "0"},
    }  # fmt: skip
