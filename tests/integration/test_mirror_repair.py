"""The repair of a table by key lands what is wrong again, in one commit, and leaves what Kafka can not decide."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from confluent_kafka.admin import AdminClient

from airflow_lakestream.audit.result import AuditResult, AuditVerdict, RepairResult
from airflow_lakestream.cdc.merge.repair import ChangedSinceAudit
from airflow_lakestream.cli.app import run
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.run.job import build_job
from airflow_lakestream.run.mirror_audit import ComparedRows, MirrorAudit
from airflow_lakestream.run.mirror_repair import MirrorFilesLost, MirrorRepair
from dev.services.kafka import Kafka
from tests.integration.test_audit import trim
from tests.integration.test_audit_commands import GROUP, TABLE, audit_dag
from tests.integration.test_log_semantics import readable
from tests.integration.test_mirror_audit import (
    CLEAN,
    DAMAGE,
    PLAIN,
    audit,
    change,
    land_by_pipeline,
    value,
    with_values,
)
from tests.support.airflow_home import AirflowHome, Connections
from tests.support.broker import Producing, Topics, poll_until
from tests.support.faults import before
from tests.support.keyed import Source
from tests.support.mirror_lake import MirrorLake

pytestmark = pytest.mark.integration


@dataclass(frozen=True, kw_only=True)
class RacedAudit(MirrorAudit):
    """An audit after whose comparison something else happens."""

    race: Callable[[], object]

    def run(self, lake: Any, then: Callable[[ComparedRows], object] | None = None) -> AuditResult:
        return super().run(lake, then and (lambda found: (self.race(), then(found))))


def repair(
    lake: MirrorLake,
    landing: Mapping[str, Any] | None = None,
    race: Callable[[], object] = lambda: None,
    catalog: Any = None,
    **options: str,
) -> AuditResult:
    look = lake_of(lake.name).part("audit")(table=lake.name, consumer_group=GROUP, full=True, kafka=lake.kafka)
    work = MirrorRepair(audit=RacedAudit(audit=look, landing=landing or {}, race=race), **options)
    return work.run(catalog or lake.catalog())


def repaired(result: AuditResult) -> RepairResult:
    assert result.repaired is not None
    return result.repaired


def rows_by_key(lake: MirrorLake) -> list[dict[str, Any]]:
    return sorted(lake.scan().to_pylist(), key=lambda row: (row["id"], row["_kafka_offset"]))


@pytest.mark.parametrize("soft_delete", [False, True])
def test_each_fault_of_a_row_is_set_right_in_one_commit(
    mirror_lake: MirrorLake, topic: Topics, produce: Producing, soft_delete: bool
) -> None:
    lake, name = mirror_lake, topic(2)
    settings = {**PLAIN, "soft_delete": soft_delete}
    for partition in (0, 1):
        own = [key for key in range(20) if key % 2 == partition]
        changes = [(key, f"v{turn}") for turn in range(3) for key in own] + [(own[2], None)]
        produce(name, partition, [value(*one) for one in changes], keys=[json.dumps({"id": key}) for key, _ in changes])
    lake.land(name, **settings, max_batch_bytes="1KB")
    whole, right = lake.scan(), rows_by_key(lake)
    nothing = repaired(repair(lake))
    assert (nothing.snapshot_id, nothing.left) == (None, ())

    lake.table().delete("id = 0")
    lake.append(whole.filter(pc.equal(whole["id"], 2)))
    change(lake, 6, name="v1", _kafka_offset=13)
    lake.table().delete("id = 4")
    lake.append(with_values(whole.filter(pc.equal(whole["id"], 8)), {"id": 4, "_kafka_offset": 22}))
    change(lake, 10, name="V2")
    change(lake, 12, id=112)
    change(lake, 13, size=None)
    lake.append(with_values(whole.filter(pc.equal(whole["id"], 1)), {"id": 201, "_kafka_offset": 10**6}))
    snapshots, ledger = lake.snapshots(), lake.ledger()

    result = repair(lake)
    done = repaired(result)
    assert result.verdict is CLEAN, result.render()
    assert rows_by_key(lake) == right
    assert lake.snapshots() == [*snapshots, done.snapshot_id]
    assert lake.ledger().topics == ledger.topics
    # In: 0, 2, 6, 10, 12, 13, and the mark of 4. Out: 2 twice, 4, 6, 10, 13, 112 and 201.
    assert (done.rows_in, done.rows_out, done.left) == (7 if soft_delete else 6, 8, ())
    assert [one.from_offset for one in done.landed] == [20, 26]
    assert [one.from_offset for one in done.undoubled] == [21]
    assert [one.from_offset for one in done.corrected] == ([23, 25, 30, 26] if soft_delete else [23, 25, 26])
    text = result.render()
    assert f"repaired in snapshot {done.snapshot_id}: 8 rows out" in text
    assert f"different, now as in Kafka: {name}[0]" in text
    assert result.to_dict()["repaired"]["corrected"][-1] == [name, 1, 26, 27]
    # Later events act as if nothing had been wrong.
    produce(name, 0, [value(0, "new"), None], keys=["0", "2"])
    lake.land(name, **settings)
    rows = {row["id"]: row["name"] for row in rows_by_key(lake) if not row.get("_is_deleted")}
    assert (rows[0], 2 in rows, len(rows)) == ("new", False, 17)
    assert audit(lake).verdict is CLEAN
    lake.assert_whole()


def test_a_landing_between_audit_and_repair_is_refused_with_nothing_made(
    mirror_lake: MirrorLake, topic: Topics, produce: Producing
) -> None:
    lake, name = mirror_lake, topic(1)
    produce(name, 0, [value(key, "v") for key in range(5)], keys=[str(key) for key in range(5)])
    lake.land(name, **PLAIN)
    lake.table().delete("id = 3")

    def landing() -> None:
        produce(name, 0, [value(3, "later")], keys=["3"])
        lake.land(name, **PLAIN)

    for race in ({"race": landing}, {"catalog": lake.failing(before(landing))}):
        snapshots = lake.snapshots()
        with pytest.raises(ChangedSinceAudit, match="Run the repair again"):
            repair(lake, **race)
        assert lake.snapshots()[:-1] == snapshots
        assert [row["name"] for row in rows_by_key(lake)] == ["v", "v", "v", "later", "v"]
        lake.assert_whole()
        lake.table().delete("id = 3")
    result = repair(lake)
    assert (result.verdict, repaired(result).rows_in) == (CLEAN, 1), result.render()
    assert [row["_kafka_offset"] for row in rows_by_key(lake)] == [0, 1, 2, 6, 4]


def test_keys_whose_records_have_expired_are_never_touched(
    mirror_lake: MirrorLake, topic: Topics, produce: Producing, admin: AdminClient
) -> None:
    lake, name = mirror_lake, topic(1)
    keys = [0, 1, 2, 3, 0, 1, 4, 5]
    produce(name, 0, [value(key, f"v{at}") for at, key in enumerate(keys)], keys=[str(key) for key in keys])
    produce(name, 0, [None, None], keys=["5", "2"])
    lake.land(name, **PLAIN)
    trim(admin, name, 0, 5)
    one = lake.scan().filter(pc.equal(lake.scan()["id"], 1))
    # Kafka shows the rows of 1 and 4, and the deletions of 2 and 5; not the rows of 0 and 3, nor whether 6 had one.
    change(lake, 3, name="who knows")
    lake.append(with_values(one, {"id": 2, "_kafka_offset": 2}))
    lake.append(with_values(one, {"id": 6, "_kafka_offset": 10**6}))
    lake.table().delete("id = 4")
    change(lake, 1, name="wrong")

    result = repair(lake)
    done = repaired(result)
    assert result.verdict is DAMAGE, result.render()
    assert [(row["id"], row["name"]) for row in rows_by_key(lake)] == [
        (0, "v4"), (1, "v5"), (3, "who knows"), (4, "v6"), (6, "v5"),
    ]  # fmt: skip
    assert [(one.fault.value, dict(one.key)["id"]) for one in result.wrong] == [("extra", "6")]
    assert done.left == (
        "extra row at [0] offset 1000000: Kafka has no longer all records that decide about these keys.",
    )
    assert (done.rows_out, done.rows_in) == (2, 2)
    again = repaired(repair(lake))
    assert (again.snapshot_id, again.left) == (None, done.left)


QUICK_COMPACTION = {
    "cleanup_policy": "compact",
    "delete_retention_ms": 3_600_000,
    "segment_ms": 100,
    "min_cleanable_dirty_ratio": 0.001,
    "min_compaction_lag_ms": 0,
}


def await_compaction(kafka: Kafka, produce: Producing, name: str, gone: int) -> None:
    """Wait until a topic has no record at an offset any more."""

    def compacted() -> bool:
        # An append rolls the segment, and only closed segments are compacted.
        produce(name, 0, [value(99, "roll")], keys=["99"])
        return gone not in readable(kafka, name)

    poll_until(compacted, "the topic to be compacted", 180)


def test_arguments_of_another_landing_change_nothing(
    mirror_lake: MirrorLake, topic: Topics, produce: Producing
) -> None:
    lake, name = mirror_lake, topic(1)
    changes = [(key, "v") for key in range(24)] + [(0, "gone")]
    produce(name, 0, [value(*one) for one in changes], keys=[str(key) for key, _ in changes])
    lake.land(name, **PLAIN, delete_when="name = 'gone'")
    before = lake.snapshots()
    with pytest.raises(
        InvalidArgument, match=r"landing: the record at \[0\] offset 24 makes a row, and deleted its key"
    ):
        repair(lake)
    other = {"delete_when": "name = 'GONE'", "sql": "SELECT id, upper(name) AS name, size FROM {{ input }}"}
    decoded = {"sql_input": "decoded", "schema": "id bigint, name string, size bigint"}
    with pytest.raises(InvalidArgument, match=r"landing: 23 of 23 rows are others"):
        repair(lake, {**other, **decoded})
    assert lake.snapshots() == before


def test_a_compacted_topic_still_decides_about_its_newest_records(
    kafka: Kafka, topic: Topics, produce: Producing, tmp_path: Path
) -> None:
    lake = MirrorLake(tmp_path, kafka.client_config())
    name = topic(1, **QUICK_COMPACTION)
    changes = [(key, f"v{turn}") for turn in range(5) for key in range(6)]
    produce(name, 0, [value(*one) for one in changes], keys=[str(key) for key, _ in changes])
    produce(name, 0, [None, value(5, "last"), value(5, "end")], keys=["4", "5", "5"])
    lake.land(name, **PLAIN)
    right, whole = rows_by_key(lake), lake.scan()
    await_compaction(kafka, produce, name, 31)
    lake.table().delete("id = 0")
    change(lake, 1, name="wrong")
    change(lake, 2, name="v1", _kafka_offset=8)
    lake.append(with_values(whole.filter(pc.equal(whole["id"], 3)), {"id": 4, "_kafka_offset": 28}))
    result = repair(lake)
    assert (result.verdict, repaired(result).left) == (CLEAN, ()), result.render()
    assert rows_by_key(lake) == right


def test_compaction_by_other_keys_than_the_tables_decides_about_no_row(
    kafka: Kafka, topic: Topics, produce: Producing, tmp_path: Path
) -> None:
    lake = MirrorLake(tmp_path, kafka.client_config())
    name = topic(1, **QUICK_COMPACTION)
    # The newest record of id 1 goes, since a record of id 2 has the same Kafka key.
    produce(name, 0, [value(1, "old"), value(1, "new"), value(2, "two")], keys=["10", "20", "20"])
    lake.land(name, **PLAIN)
    await_compaction(kafka, produce, name, 1)
    lake.table().delete("id = 1")
    result = repair(lake)
    assert repaired(result).snapshot_id is None
    assert repaired(result).left == (
        "missing row at [0] offset 0: Kafka has no longer all records that decide about these keys.",
    )
    assert [row["name"] for row in rows_by_key(lake)] == ["two"]


def test_a_mirror_of_events_gets_rows_and_memory_as_the_log_has_them(
    mirror_lake: MirrorLake, topic: Topics, produce: Producing, admin: AdminClient
) -> None:
    lake, name, source = mirror_lake, topic(1), Source()
    rows = {key: {"id": key, "name": f"n{key}"} for key in range(6)}
    source.begin()
    records = [one for row in rows.values() for one in source.change(None, row)]
    source.begin()
    records += source.change(rows[1], {**rows[1], "name": "new"})
    late = source.change({**rows[2], "name": "n"}, {**rows[2], "name": "late"})
    source.begin()
    records += source.change(rows[2], None)
    values, keys = ([getattr(one, part) for one in records] for part in ("value", "key"))
    produce(name, 0, values, keys=keys)
    lake.land(name, key=None, max_batch_bytes="1KB")
    right, whole = rows_by_key(lake), lake.scan()
    lake.append(with_values(whole.filter(pc.equal(whole["id"], 3)), {"id": 2, "_kafka_offset": 2, "name": "n2"}))
    lake.table().delete("id = 1")
    change(lake, 4, name="other")

    assert repair(lake).verdict is CLEAN
    assert rows_by_key(lake) == right
    # An event from before the deletion comes again.
    produce(name, 0, [late[0].value], keys=[late[0].key])
    lake.land(name, key=None)
    assert rows_by_key(lake) == right


def test_lost_files_go_out_where_kafka_has_everything_or_by_order(
    mirror_lake: MirrorLake, topic: Topics, produce: Producing, admin: AdminClient
) -> None:
    lake, name = mirror_lake, topic(1)
    produce(name, 0, [value(key, "v") for key in range(5)], keys=[str(key) for key in range(5)])
    lake.land(name, **PLAIN)
    right = rows_by_key(lake)
    [file] = lake.live_files()
    Path(file).unlink()
    result = repair(lake)
    assert (result.verdict, repaired(result).rows_in) == (CLEAN, 5), result.render()
    assert rows_by_key(lake) == right

    trim(admin, name, 0, 2)
    [file] = lake.live_files()
    Path(file).unlink()
    with pytest.raises(MirrorFilesLost, match='on_data_loss="record"'):
        repair(lake)
    result = repair(lake, on_data_loss="record")
    assert result.verdict is CLEAN, result.render()
    assert rows_by_key(lake) == right[2:]


def test_histories_and_first_records_are_refused_by_name(
    mirror_lake: MirrorLake, topic: Topics, produce: Producing
) -> None:
    lake, name = mirror_lake, topic(1)
    produce(name, 0, [value(1, "v")], keys=["1"])
    lake.land(name, **PLAIN, insert_only=True)
    with pytest.raises(InvalidArgument, match=r"repair: .* keeps the first record of each key"):
        repair(lake)


def test_the_operator_repairs_a_table_by_key(
    airflow: AirflowHome, connections: Connections, kafka: Kafka, topic: Topics, produce: Producing
) -> None:
    name = topic(1)
    produce(name, 0, [value(key, "v") for key in range(3)], keys=["0", "1", "2"])
    config = MirrorConfig(topic=name, table=TABLE, consumer_group=GROUP, **PLAIN)
    land(build_job(config, kafka.client_config(), connections.catalog, run_id="r"))
    connections.catalog.load_table(TABLE).delete("id = 2")
    done = airflow.run(audit_dag("repair_by_key", repair=True, landing={"on_error": "reject"}))
    assert (done.state, done.errors) == ("success", [])
    xcom = done.task("audit").xcom
    assert (xcom["verdict"], xcom["repaired"]["landed"]) == ("clean", [[name, 0, 2, 3]])


def test_the_command_repairs_with_the_arguments_of_a_pipeline(
    connections: Connections,
    kafka: Kafka,
    topic: Topics,
    produce: Producing,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, table = topic(1), "lake.by_key"
    file = land_by_pipeline(name, table, kafka, produce, connections, tmp_path)
    connections.catalog.load_table(table).delete("id = 2")

    assert run(["audit", "--full", "--pipeline", str(file)]) == 1
    assert f"to repair: lakestream audit --repair --table {table} --group g" in capsys.readouterr().out
    assert run(["audit", "--repair", "--json", "--pipeline", str(file)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["wrong_rows"]) == (AuditVerdict.CLEAN.value, [])
    assert found["repaired"]["landed"] == [[name, 0, 1, 2]]
    assert connections.catalog.load_table(table).scan().to_arrow()["id"].to_pylist() == [2]
