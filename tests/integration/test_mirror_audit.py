"""The audit of tables by key finds what is wrong with a row, exactly that, and says what it could not see."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka.admin import AdminClient

from airflow_lakestream.audit.result import AuditResult, AuditVerdict
from airflow_lakestream.cdc.columns import UNAVAILABLE
from airflow_lakestream.cli.app import run
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.run.job import build_job
from airflow_lakestream.run.mirror_audit import MirrorAudit
from dev.services.kafka import Kafka
from tests.integration.test_audit import trim
from tests.support.airflow_home import Connections
from tests.support.broker import Producing, Topics
from tests.support.keyed import Source
from tests.support.lake import GROUP
from tests.support.mirror_lake import MirrorLake

pytestmark = pytest.mark.integration

CLEAN, DAMAGE, BLIND = AuditVerdict.CLEAN, AuditVerdict.DAMAGE, AuditVerdict.COULD_NOT_LOOK
PIPELINE = """\
metadata: {{name: g}}
sources: {{records: {{type: kafka, topic: {topic}, format: csv, csv_delimiter: ";"}}}}
orchestration: {{engine: extract}}
sinks:
  lake: {{type: iceberg, table: {table}, mode: upsert, key: [id], schema: "id bigint, name string",
          delete_when: "name = 'gone'"}}
"""
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


def wrong_rows_of(result: AuditResult) -> list[tuple[str, int, int, str, tuple[str, ...]]]:
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
    assert wrong_rows_of(result) == [
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


def test_rows_whose_records_have_expired_are_counted_and_never_wrong(
    mirror_lake: MirrorLake, topic: Topics, produce: Producing, admin: AdminClient
) -> None:
    lake, name = mirror_lake, topic(1)
    keys = [0, 1, 2, 3, 0, 1, 4, 5]
    produce(name, 0, [value(key, f"v{at}") for at, key in enumerate(keys)], keys=[str(key) for key in keys])
    produce(name, 0, [None, None], keys=["5", "2"])
    lake.land(name, **PLAIN)
    trim(admin, name, 0, 5)
    produce(name, 0, [value(7, "not landed")], keys=["7"])

    result = audit(lake)
    assert (result.verdict, result.wrong) == (CLEAN, []), result.render()
    assert [(one.rows, one.rows_unseen, one.readable) for one in result.partitions] == [(4, 2, 5)]
    assert "5 of 10 landed offsets have no record in Kafka any more: 5 expired, 0 were compacted" in result.made[0]
    # Unseen: the rows of 0 and 3. The others are seen, and so are the deletions of 2 and 5.
    rows = lake.scan()
    one = rows.filter(pc.equal(rows["id"], 1))
    change(lake, 3, name="who knows")
    lake.append(with_values(one, {"id": 2, "_kafka_offset": 2}))
    lake.table().delete("id = 4")
    assert wrong_rows_of(audit(lake)) == [("extra", 0, 2, "2", ()), ("missing", 0, 6, "4", ())]


@pytest.mark.parametrize("soft_delete", [False, True])
def test_mirrors_of_events_are_folded_by_their_log_and_left_out_values_are_no_difference(
    mirror_lake: MirrorLake, topic: Topics, produce: Producing, admin: AdminClient, soft_delete: bool
) -> None:
    lake, name, source = mirror_lake, topic(1), Source()
    rows = {key: {"id": key, "name": f"n{key}", "big": "long"} for key in range(6)}
    source.begin()
    records = [one for row in rows.values() for one in source.change(None, row)]
    source.begin()
    for key in (1, 2):
        records += source.change(rows[key], {**rows[key], "name": "new", "big": UNAVAILABLE})
    records += [*source.change(rows[3], None), *source.change(rows[4], {**rows[4], "id": 40})]
    values, keys = ([getattr(one, part) for one in records] for part in ("value", "key"))
    produce(name, 0, values, keys=keys)
    lake.land(name, key=None, soft_delete=soft_delete, max_batch_bytes="1KB")
    result = audit(lake)
    assert (result.verdict, result.made) == (CLEAN, []), result.render()

    change(lake, 5, big="other")
    change(lake, 2, big="other")
    assert wrong_rows_of(audit(lake)) == [("different", 0, 5, "5", ("big",)), ("different", 0, 7, "2", ("big",))]
    # The value of 2 was in an expired event, and that of 5 is in an event of its own.
    trim(admin, name, 0, 4)
    result = audit(lake)
    assert wrong_rows_of(result) == [("different", 0, 5, "5", ("big",))], result.render()
    assert "2 rows have values of records that Kafka has no more" in " ".join(result.made)


def test_lost_files_are_found_without_a_look_at_rows(
    mirror_lake: MirrorLake, topic: Topics, produce: Producing
) -> None:
    lake, name = mirror_lake, topic(1)
    produce(name, 0, [value(key, "v") for key in range(5)], keys=[str(key) for key in range(5)])
    lake.land(name, **PLAIN)
    quick = audit(lake, full=False)
    assert (quick.verdict, quick.partitions) == (CLEAN, [])
    [file] = lake.live_files()
    Path(file).unlink()
    quick, full = audit(lake, full=False), audit(lake)
    assert (quick.verdict, len(quick.lost_files)) == (DAMAGE, 1)
    assert [one.fault.value for one in full.wrong] == ["missing"] * 5


def test_what_can_not_be_compared_is_said(mirror_lake: MirrorLake, topic: Topics, produce: Producing) -> None:
    lake, name = mirror_lake, topic(1)
    produce(name, 0, [value(key, "v") for key in range(5)], keys=[str(key) for key in range(5)])
    lake.land(name, **PLAIN, delete_when="name = 'gone'")
    with pytest.raises(InvalidArgument, match=r"landing: has history, which decides no row"):
        audit(lake, {"history": True})
    with pytest.raises(InvalidArgument, match="delete_when"):
        audit(lake, {"delete_when": "name ="})
    assert audit(lake, {"delete_when": "name = 'gone'"}).verdict is CLEAN
    # Another rule makes other rows: the audit proves the arguments, too.
    assert [one.fault.value for one in audit(lake, {"delete_when": "id < 2"}).wrong] == ["extra", "extra"]
    topic.delete(name)
    result = audit(lake)
    assert (result.verdict, result.wrong) == (BLIND, [])


@pytest.mark.parametrize("settings", [{}, {"history_columns": ["name"]}], ids=["each", "columns"])
def test_each_fault_of_a_version_is_found_and_no_other(
    mirror_lake: MirrorLake, topic: Topics, produce: Producing, admin: AdminClient, settings: dict[str, Any]
) -> None:
    lake, name = mirror_lake, topic(2)
    for partition in (0, 1):
        own = [key for key in range(12) if key % 2 == partition]
        values = [
            json.dumps({"id": key, "name": f"v{turn}", "at": f"2026-01-0{turn + 1}T00:00:00Z", "n": turn})
            for turn in range(3)
            for key in own
        ]
        produce(name, partition, values, keys=[str(number) for number in range(len(values))])
    lake.land(
        name, **PLAIN, schema="at timestamptz", sequence_by=["at"], history=True, max_batch_bytes="1KB", **settings
    )
    clean = audit(lake)
    assert (clean.verdict, clean.made, sum(one.rows for one in clean.partitions)) == (CLEAN, [], 36), clean.render()

    def version(key: int, at: int) -> pa.Table:
        rows = lake.scan()
        return rows.filter(pc.and_(pc.equal(rows["id"], key), pc.equal(rows["n"], at)))

    def become(key: int, at: int, **new: Any) -> None:
        rows = version(key, at)
        lake.table().delete(f"id = {key} and n = {at}")
        lake.append(with_values(rows, new))

    lake.table().delete("id = 0 and n = 1")
    lake.append(version(2, 2))
    become(4, 1, _valid_to=None, _is_current=True)
    become(6, 2, name="V2")
    lake.table().delete("id = 1 and n = 2")
    expected = [
        ("missing", 0, 6, "0", ()),
        ("different", 0, 8, "4", ("_valid_to", "_is_current")),
        ("doubled", 0, 13, "2", ()),
        ("different", 0, 15, "6", ("name",)),
        ("missing", 1, 12, "1", ()),
    ]
    assert wrong_rows_of(audit(lake)) == expected, audit(lake).render()
    # Expired: the first two versions of each key of a partition. Two open versions are wrong all the same.
    trim(admin, name, 0, 12)
    become(8, 0, _valid_to=None, _is_current=True)
    result = audit(lake)
    assert wrong_rows_of(result) == [("different", 0, 4, "8", ("_valid_to", "_is_current")), *expected[1:]], (
        result.render()
    )
    assert "12 expired" in result.made[0]


CSV = {"format": "csv", "csv_delimiter": ";", "schema": "id bigint, name string"}


def land_by_pipeline(
    name: str, table: str, kafka: Kafka, produce: Producing, connections: Connections, folder: Path
) -> Path:
    """Land two rows and a deletion by `delete_when`; return the pipeline's file."""
    values = [f"{key};{text}" for key, text in [(1, "a"), (2, "b"), (1, "gone")]]
    produce(name, 0, values, keys=["1", "2", "1"])
    config = MirrorConfig(topic=name, table=table, consumer_group="g", **PLAIN, **CSV, delete_when="name = 'gone'")
    land(build_job(config, kafka.client_config(), connections.catalog, run_id="r"))
    file = folder / "by_key.yaml"
    file.write_text(PIPELINE.format(topic=name, table=table))
    return file


def test_the_command_takes_the_arguments_of_a_pipeline_or_its_options(
    connections: Connections,
    kafka: Kafka,
    topic: Topics,
    produce: Producing,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, table = topic(1), "lake.by_key"
    file = land_by_pipeline(name, table, kafka, produce, connections, tmp_path)
    options = ["--format", "csv", "--csv-delimiter", ";", "--schema", CSV["schema"]]
    command = ["audit", "--table", table, "--full"]

    assert run(["audit", "--full", "--pipeline", str(file)]) == 0, capsys.readouterr()
    assert run([*command, *options, "--landing", '{"delete_when": "name = \'gone\'"}', "--json"]) == 0
    connections.catalog.load_table(table).delete("id = 2")
    capsys.readouterr()
    assert run(["audit", "--full", "--json", "--pipeline", str(file)]) == 1
    [wrong] = json.loads(capsys.readouterr().out)["wrong_rows"]
    assert wrong == {"fault": "missing", "partition": 0, "offset": 1, "key": {"id": "2"}}
    assert run([*command, *options, "--landing", "[]"]) == 2
    assert "--landing: '[]' is not a JSON object" in capsys.readouterr().err
