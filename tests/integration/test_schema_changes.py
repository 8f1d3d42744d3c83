"""Schemas that change in the landing's own commit, and fields without a column: on a real broker and a real table."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from pyiceberg.types import StringType

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.audit.run import Audit
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.names import RESCUED
from airflow_lakestream.core.sharing.parallel import folder_of, land_pieces, plan_shares, read_share
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.run.repair import TableRepair
from airflow_lakestream.tables.schema.types import schema_text
from dev.services.registry import Registry
from tests.integration.test_formats import avro_bytes, framed
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.delta_lake import EACH_FORMAT
from tests.support.faults import InterposedSink, SmallChunks, before
from tests.support.killed_run import POINTS, run_until_killed
from tests.support.lake import GROUP, TABLE, Lake
from tests.support.parallel_run import ParallelRun

pytestmark = pytest.mark.integration

FIRST = "id int, name string"
WIDER = "id bigint, name string, score double"


def values(start: int, count: int, **more: Any) -> list[str]:
    return [json.dumps({"id": n, "name": f"n{n}", **more}) for n in range(start, start + count)]


def schema_of(lake: Lake) -> str:
    whole = lake.table().schema()
    return schema_text(type(whole)(*(f for f in whole.fields if not f.name.startswith("_kafka_"))))


@pytest.fixture
def name(lake: Lake, topic_of: TopicOf) -> str:
    """Give a topic of two partitions with ten records each, landed as `id int, name string`."""
    name = topic_of(*(values(0, 10, score=0.5) for partition in (0, 1)))
    lake.land(name, schema=FIRST, on_error="fail")
    return name


def test_a_landing_changes_the_schema_and_says_so(lake: Lake, name: str, produce: Producing) -> None:
    produce(name, 0, [json.dumps({"id": 2**40, "score": 1.5})])

    report = lake.land(name, schema=WIDER, schema_evolution="widen")

    changes = ["widen column id from int to bigint", "add column score double"]
    assert report.to_dict()["schema_changes"] == changes
    assert schema_of(lake) == WIDER
    assert len(lake.snapshots()) == 2
    assert lake.column("id") == [*range(10), 2**40, *range(10)]
    assert lake.column("score") == [*[None] * 10, 1.5, *[None] * 10]
    lake.assert_whole()
    produce(name, 0, [json.dumps({"id": 1})])
    assert lake.land(name, schema=WIDER, schema_evolution="widen").schema_changes == []


def test_a_retry_of_a_run_that_landed_reports_its_change(lake: Lake, name: str, produce: Producing) -> None:
    produce(name, 0, values(10, 1))
    first = lake.land(name, "r", schema=WIDER, schema_evolution="widen")

    assert lake.land(name, "r", schema=WIDER, schema_evolution="widen").schema_changes == first.schema_changes != []


def test_a_run_with_nothing_to_land_changes_no_schema(lake: Lake, name: str) -> None:
    report = lake.land(name, schema=WIDER, schema_evolution="widen")

    assert (report.schema_changes, report.snapshot_ids, schema_of(lake)) == ([], [], FIRST)


def test_what_can_not_be_had_is_an_error_and_changes_nothing(lake: Lake, name: str, produce: Producing) -> None:
    produce(name, 0, values(10, 1))
    with pytest.raises(InvalidArgument, match="'name' is string in the table and int is given"):
        lake.land(name, schema="id int, name int", schema_evolution="widen")

    assert (schema_of(lake), len(lake.snapshots())) == (FIRST, 1)


def test_runs_that_add_the_same_columns_at_once_all_land_once_each(lake: Lake, name: str, produce: Producing) -> None:
    for partition in (0, 1):
        produce(name, partition, values(10, 20, score=1.5))
    meeting = before(threading.Barrier(2, timeout=60).wait)
    settings = {"schema": WIDER, "schema_evolution": "widen", "max_batch_bytes": 300}
    jobs = [
        lake.job(
            name,
            f"run-{n}",
            catalog=lake.failing(meeting),
            mode="ranges",
            ranges=[[n, 10, 30]],
            **settings,
        )
        for n in (0, 1)
    ]

    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(land, jobs))

    changes = ["widen column id from int to bigint", "add column score double"]
    assert sorted(report.schema_changes for report in reports) == [[], changes]
    assert len(lake.table().schemas()) == 2
    assert lake.offsets() == [(partition, offset) for partition in (0, 1) for offset in range(30)]
    assert lake.column("score") == [*[None] * 10, *[1.5] * 20] * 2
    lake.assert_whole()


@pytest.mark.parametrize(
    ("other", "theirs"),
    [
        ({"schema": "id bigint, name string", "schema_evolution": "widen"}, "id bigint, name string"),
        ({"schema": f"{FIRST}, extra int", "schema_evolution": "add"}, f"{FIRST}, extra int"),
        ({"schema": FIRST}, FIRST),
    ],
    ids=["widens", "adds another column", "appends"],
)
@pytest.mark.parametrize("mine", [{"schema": f"{FIRST}, score double", "schema_evolution": "add"}, {}])
def test_a_run_beside_another_that_changes_the_schema_between_its_plan_and_its_commit(
    lake: Lake, name: str, produce: Producing, other: dict[str, str], theirs: str, mine: dict[str, str]
) -> None:
    for partition in (0, 1):
        produce(name, partition, values(10, 5, score=1.5))
    settings = {"mode": "ranges", "ranges": [[0, 10, 15]]}
    job = lake.job(name, **settings, **mine)

    def meanwhile() -> None:
        lake.land(name, mode="ranges", ranges=[[1, 10, 15]], **other)

    land(replace(job, sink=InterposedSink(job.sink, meanwhile)))

    added = ", score double" if mine else ""
    assert schema_of(lake) == theirs + added
    assert lake.offsets() == [(partition, offset) for partition in (0, 1) for offset in range(15)]
    assert lake.column("id") == [*range(15)] * 2
    if mine:
        assert lake.column("score") == [*[None] * 10, *[1.5] * 5, *[None] * 15]
    lake.assert_whole()


@pytest.mark.parametrize(
    ("point", "applied"),
    [(point, point in ("just after the commit", "before the mirror")) for point in POINTS],
)
def test_a_killed_run_leaves_schema_and_rows_or_neither(
    lake: Lake, name: str, produce: Producing, point: str, applied: bool
) -> None:
    produce(name, 0, values(10, 20, score=1.5))
    config = {"schema": WIDER, "schema_evolution": "widen", "unknown_fields": "rescue"}
    run_until_killed(lake, topic=name, run_id="r", config=config, chunk=5, point=point, number=1)

    after = f"{WIDER}, _rescued string"
    assert schema_of(lake) == (after if applied else FIRST)
    assert len(lake.offsets()) == (40 if applied else 20)

    report = lake.land(name, "r", **config)
    assert schema_of(lake) == after
    assert lake.offsets() == [(0, n) for n in range(30)] + [(1, n) for n in range(10)]
    assert [text.split()[0] for text in report.schema_changes] == ["widen", "add", "add"]
    lake.assert_whole(leftovers_of_a_kill=True)


def test_a_new_version_in_the_registry_adds_and_widens_columns(
    lake: Lake, topic: Topics, produce: Producing, registry: Registry
) -> None:
    name = topic(1)
    fields = [{"name": "id", "type": "int"}, {"name": "name", "type": "string"}]
    old = {"type": "record", "name": "Order", "fields": fields}
    new = {
        **old,
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"], "default": None},
            {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        ],
    }
    first = registry.register(f"{name}-value", json.dumps(old))
    settings = {"format": "avro", "schema_registry": registry.url, "schema_evolution": "widen", "on_error": "fail"}
    produce(name, 0, [framed(first, avro_bytes(old, {"id": 1, "name": "a"}))])
    lake.land(name, **settings)
    second = registry.register(f"{name}-value", json.dumps(new))
    produce(name, 0, [framed(second, avro_bytes(new, {"id": 2**40, "name": None, "tags": ["t"]}))])

    report = lake.land(name, **settings)

    assert sorted(report.schema_changes) == [
        "add column tags array<string>",
        "make column name optional",
        "widen column id from int to bigint",
    ]
    assert [(row["id"], row["name"], row["tags"]) for row in lake.records()] == [(1, "a", None), (2**40, None, ["t"])]


NESTED: list[dict[str, Any]] = [
    {"id": 1},
    {"id": 2, "s": {"a": 1, "b": [1, {"c": None}]}, "x": "é\n\"'\\", "deep": {"er": {"est": [[]]}}},
    {"id": 3, "l": [{"a": 1}, {"z": True}, None], "": 0, "_rescued": "own", "id2": None},
    {"id": 4, "s": None, "n": {}},
]


def test_what_has_no_column_is_rescued_whole(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(
        [*map(json.dumps, NESTED), '{"id":5,"big":1e400,"exact":0.1000,"neg":-0,"n":123456789012345678901}']
    )

    schema = "id int, s struct<a: int>, l array<struct<a: int>>"
    report = lake.land(name, schema=schema, unknown_fields="rescue", on_error="fail")

    assert report.schema_changes == []
    assert schema_of(lake) == f"{schema}, _rescued string"
    texts = lake.column(RESCUED)
    assert [None if text is None else json.loads(text) for text in texts[:4]] == [
        None,
        {"s": {"b": [1, {"c": None}]}, "x": "é\n\"'\\", "deep": {"er": {"est": [[]]}}},
        {"l": [None, {"z": True}, None], "": 0, "_rescued": "own", "id2": None},
        {"n": {}},
    ]
    assert texts[4] == '{"big":1e400,"exact":0.1000,"neg":-0,"n":123456789012345678901}'
    assert lake.column("l")[2] == [{"a": 1}, {"a": None}, None]


def test_many_records_of_one_layout_are_rescued_too(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = topic(1)
    documents = [{"id": n, "name": f"n{n}", "more": {"n": n, "t": f"t{n}"}, "f": n / 4} for n in range(5_000)]
    produce(name, 0, map(json.dumps, documents))

    lake.land(name, schema=FIRST, unknown_fields="rescue")

    assert [{**d, **json.loads(text)} for d, text in zip(documents, lake.column(RESCUED), strict=True)] == documents


def test_the_rescued_column_comes_to_a_table_that_lacks_it(lake: Lake, name: str, produce: Producing) -> None:
    produce(name, 0, values(10, 2, other=[1]))

    report = lake.land(name, unknown_fields="rescue")

    assert report.schema_changes == ["add column _rescued string"]
    assert lake.column(RESCUED) == [*[None] * 10, *['{"other":[1]}'] * 2, *[None] * 10]


def test_an_inferred_table_that_rescues(lake: Lake, topic_of: TopicOf, produce: Producing) -> None:
    name = topic_of(values(0, 3))
    lake.land(name, unknown_fields="rescue")
    produce(name, 0, values(3, 1, late=1.50))
    lake.land(name, unknown_fields="rescue")

    assert schema_of(lake) == "id bigint, name string, _rescued string"
    assert lake.column(RESCUED) == [None, None, None, '{"late":1.5}']


EVOLVE = {"unknown_fields": "evolve", "schema_evolution": "add"}


@EACH_FORMAT
def test_fields_without_a_column_become_columns(lake: Lake, name: str, produce: Producing) -> None:
    produce(name, 0, [json.dumps({"id": 10, "at": "2026-11-22T00:00:00Z", "s": {"a": 1}})])
    produce(name, 1, [json.dumps({"id": 11, "s": {"a": 2, "b": [True]}, "nothing": None}), '{"id":12,"s":{"a":"x"}}'])
    job = lake.job(name, **EVOLVE)

    report = land(replace(job, reader=SmallChunks(job.reader, 1)))

    assert report.counts.rejected == 1
    rows = [row for row in lake.records() if row["id"] >= 10]
    assert [(row["id"], row["s"]) for row in rows] == [(10, {"a": 1, "b": None}), (11, {"a": 2, "b": [True]})]
    assert "add column at timestamp" in report.schema_changes
    assert not any("nothing" in text for text in report.schema_changes)
    lake.assert_whole()


def test_a_table_that_grows_over_several_commits_of_one_run(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = topic(1)
    documents = [{"id": n, f"f{n // 10}": n} for n in range(40)]
    produce(name, 0, map(json.dumps, documents))
    job = lake.job(name, max_batch_bytes=100, **EVOLVE)

    report = land(replace(job, reader=SmallChunks(job.reader, 5)))

    assert len(report.snapshot_ids) > 3
    # The first batch of all made the table, with what it had.
    assert report.schema_changes == ["add column f1 bigint", "add column f2 bigint", "add column f3 bigint"]
    found = [{k: v for k, v in row.items() if v is not None and not k.startswith("_kafka")} for row in lake.records()]
    assert found == documents
    lake.assert_whole()


def test_runs_that_infer_another_type_for_the_same_field_at_once(lake: Lake, name: str, produce: Producing) -> None:
    produce(name, 0, values(10, 5, x=1))
    produce(name, 1, values(10, 5, x="text"))
    meeting = before(threading.Barrier(2, timeout=60).wait)
    jobs = [
        lake.job(name, f"run-{n}", catalog=lake.failing(meeting), mode="ranges", ranges=[[n, 10, 15]], **EVOLVE)
        for n in (0, 1)
    ]

    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(land, jobs))

    kind = str(lake.table().schema().find_type("x"))
    # Numbers have a place in a string, texts have none among numbers.
    assert [report.counts.rejected for report in reports] == ([0, 5] if kind == "long" else [0, 0])
    assert len(lake.offsets()) == (25 if kind == "long" else 30)
    lake.assert_whole()


def test_replace_and_the_rows_of_an_evolved_table(lake: Lake, name: str) -> None:
    settings = {"schema": WIDER, "schema_evolution": "widen", "mode": "ranges", "ranges": [[0, 2, 5]], "replace": True}

    report = lake.land(name, **settings)

    assert report.schema_changes == ["widen column id from int to bigint", "add column score double"]
    assert lake.column("score") == [None, None, 0.5, 0.5, 0.5, *[None] * 15]
    assert lake.column("id") == [*range(10)] * 2
    lake.land(name, **(settings | {"ranges": [[0, 0, 10], [1, 0, 10]]}))
    assert lake.column("score") == [0.5] * 20
    lake.assert_whole()


def test_audit_and_repair_over_rows_of_several_schemas(lake: Lake, name: str, produce: Producing) -> None:
    produce(name, 0, values(10, 5, score=1.5, more=1))
    lake.land(name, schema=WIDER, schema_evolution="widen", unknown_fields="rescue")
    look = Audit(table=TABLE, consumer_group=GROUP, full=True, kafka=lake.kafka)
    assert look.run(lake.catalog()).verdict is AuditVerdict.CLEAN
    lake.table().delete("id = 3 or id = 12")
    assert look.run(lake.catalog()).verdict is AuditVerdict.DAMAGE

    TableRepair(audit=look, unknown_fields="rescue").run(lake.catalog())

    assert look.run(lake.catalog()).verdict is AuditVerdict.CLEAN
    assert lake.column("id") == [*range(15), *range(10)]
    # What is landed again has what the table has a place for by now.
    assert [row["score"] for row in lake.records() if row["id"] in (3, 12)] == [0.5, 1.5, 0.5]
    assert lake.column(RESCUED) == [*[None] * 10, *['{"more":1}'] * 5, *[None] * 10]


def test_several_workers_write_for_the_schema_that_their_commit_brings(
    lake: Lake, name: str, produce: Producing
) -> None:
    for partition in (0, 1):
        produce(name, partition, values(10, 50, score=1.5))
    settings = {"schema": WIDER, "schema_evolution": "widen", "unknown_fields": "rescue"}
    plan = plan_shares(lake.job(name, "r", **settings), 2, least_width=1)
    pieces = [p for share in plan.shares for p in read_share(lake.job(name, "r", **settings), share, folder_of("r"))]
    assert schema_of(lake) == FIRST

    report = land_pieces(lake.job(name, "r", **settings), pieces, plan.within, folder_of("r"))

    assert len(report.snapshot_ids) == 1
    assert report.schema_changes == [
        "widen column id from int to bigint",
        "add column score double",
        "add column _rescued string",
    ]
    assert lake.column("score") == [*[None] * 10, *[1.5] * 50] * 2
    assert lake.offsets() == [(partition, offset) for partition in (0, 1) for offset in range(60)]


def test_workers_whose_schema_is_no_more_are_read_again(lake: Lake, name: str, produce: Producing) -> None:
    produce(name, 0, values(10, 5, score=1.5))
    settings = {"schema": f"{FIRST}, score double", "schema_evolution": "add"}
    plan = plan_shares(lake.job(name, "r", **settings), 1, least_width=1)
    pieces = [p for share in plan.shares for p in read_share(lake.job(name, "r", **settings), share, folder_of("r"))]
    with lake.table().update_schema() as update:
        update.add_column("extra", StringType())

    land_pieces(lake.job(name, "r", **settings), pieces, plan.within, folder_of("r"))

    assert lake.column("score") == [*[None] * 10, *[1.5] * 5, *[None] * 10]


def test_child_processes_write_for_the_schema_that_the_commits_bring(lake: Lake, name: str, produce: Producing) -> None:
    for partition in (0, 1):
        produce(name, partition, values(10, 200, score=1.5, more=[1]))
    settings = {"schema": WIDER, "schema_evolution": "widen", "unknown_fields": "rescue", "max_batch_bytes": 6_000}

    report = ParallelRun(lake, name, settings).land()

    assert (report["processes"], report["rows"]) == (2, 400)
    assert len(report["schema_changes"]) == 3
    assert len(lake.snapshots()) > 2
    assert lake.column("score") == [*[None] * 10, *[1.5] * 200] * 2
    assert lake.column(RESCUED) == [*[None] * 10, *['{"more":[1]}'] * 200] * 2
    assert len(lake.table().schemas()) == 2
    lake.assert_whole()
