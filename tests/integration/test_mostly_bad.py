"""A run that would reject most of what it read: it fails before it commits, says why, and leaves nothing."""

from __future__ import annotations

import json
import struct
import uuid
from dataclasses import replace
from typing import Any

import pytest

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.bad_records import TooManyRejected
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.names import REJECTED
from airflow_lakestream.exceptions import Terminal
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.run.job import build_job
from airflow_lakestream.run.replay import RejectReplay
from dev.services.registry import Registry
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.delta_lake import EACH_FORMAT
from tests.support.faults import SmallChunks
from tests.support.lake import GROUP, TABLE, Lake
from tests.support.lake_reading import at, numbers, one_partition
from tests.support.parallel_run import ParallelRun
from tests.support.shared_run import SharedRun

pytestmark = pytest.mark.integration

SCHEMA = "n bigint not null"
BAD = ["no JSON"]
AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]})


name = one_partition


def mixed(bad: int, good: int) -> list[str]:
    return [*(BAD * bad), *numbers(good)]


def in_chunks(job: LandingJob, records: int) -> LandingJob:
    """Let each chunk of so many records be a commit."""
    return replace(job, reader=SmallChunks(job.reader, records), limits=replace(job.limits, max_batch_bytes=1))


def has_nothing(lake: Lake) -> bool:
    return not any(path.is_file() for path in lake.folder.rglob("*") if path.name != "catalog.db")


@pytest.mark.parametrize("on_error", ["reject", "skip"])
@EACH_FORMAT
def test_each_format_that_is_not_the_topics_fails_and_leaves_nothing(
    lake: Lake, topic: Topics, produce: Producing, registry: Registry, on_error: str
) -> None:
    root = lake.folder
    framed = [
        struct.pack(">bI", 0, registry.register(f"t-{uuid.uuid4().hex}", AVRO)) + bytes([2 * n]) for n in range(20)
    ]
    documents = [f'{{"N": {n}}}' for n in range(20)]
    for values, of_format, cause in (
        (documents, "avro", 'the values look like JSON, and format="avro" was given: try format="json"'),
        (documents, "protobuf", 'the values look like JSON, and format="protobuf" was given'),
        (documents, "json_schema", 'the values look like JSON, and format="json_schema" was given'),
        (documents, "json", "a field 'N' for the column 'n': names match exactly"),
        (framed, "json", '"avro" or "protobuf", with schema_registry'),
        (framed, "protobuf", 'format="protobuf" does not fit what follows'),
        (framed, "json_schema", 'try format="avro" or "protobuf"'),
    ):
        name = topic(partitions=1)
        lake.folder = root / name
        lake.folder.mkdir()
        produce(name, 0, values)
        given = {"format": of_format, "schema": SCHEMA, "on_error": on_error}
        given |= {} if of_format == "json" else {"schema_registry": registry.url}

        with pytest.raises(TooManyRejected, match=r"20 of 20 records of this run are bad, more than 50%") as caught:
            lake.land(name, run_id="r", **given)

        assert isinstance(caught.value, Terminal)
        assert cause in str(caught.value)
        assert f"at stage decode: {name}[0] offset 0: " in str(caught.value)
        assert has_nothing(lake), "no table, no file, no rejected record"
        # Another try of the run fails as well; where they are expected, they are taken.
        with pytest.raises(TooManyRejected):
            lake.land(name, run_id="r", **given)
        report = lake.land(name, run_id="r", max_rejected=1.0, **given).to_dict()
        counted = {key: report[key] for key in ("read", "rows", "bad", "remaining_lag")}
        assert counted == {"read": 20, "rows": 0, "bad": 20, "remaining_lag": 0}
        assert report["rejected" if on_error == "reject" else "skipped"] == 20


@pytest.mark.parametrize(
    ("bad", "good", "fails"), [(9, 0, False), (10, 0, True), (10, 10, False), (11, 10, True), (30, 100, False)]
)
@pytest.mark.parametrize("on_error", ["reject", "skip"])
def test_most_is_more_than_half_and_ten_at_least(
    lake: Lake, name: str, produce: Producing, on_error: str, bad: int, good: int, fails: bool
) -> None:
    produce(name, 0, mixed(bad, good))
    if fails:
        with pytest.raises(TooManyRejected, match=f"{bad} of {bad + good} records"):
            lake.land(name, schema=SCHEMA, on_error=on_error)
        assert lake.has_nothing()
    else:
        report = lake.land(name, schema=SCHEMA, on_error=on_error)
        assert (report.counts.written, report.bad.count) == (good, bad)


def test_tombstones_skipped_on_request_and_filtered_records_are_not_bad(
    lake: Lake, name: str, produce: Producing
) -> None:
    produce(name, 0, [*numbers(2), *([None] * 20), *numbers(20)])
    config = {
        "schema": SCHEMA,
        "sql_input": "decoded",
        "tombstones": "skip",
        "sql": "select n from {{ input }} where n > 18",
    }
    report = lake.land(name, **config)
    assert report.counts == Counts(read=42, written=1, skipped=20, filtered=21)
    assert report.to_dict()["bad"] == 0


@pytest.mark.parametrize("on_error", ["reject", "skip"])
def test_what_was_committed_before_stays_and_the_next_run_reads_the_rest_again(
    lake: Lake, name: str, produce: Producing, on_error: str
) -> None:
    produce(name, 0, [*numbers(10), *mixed(5, 5), *(BAD * 20)])
    config = {"schema": SCHEMA, "on_error": on_error}
    with pytest.raises(TooManyRejected, match=r"25 of 40 records .* The 20 records that it committed before stay"):
        land(in_chunks(lake.job(name, "r", **config), 20))
    assert lake.offsets() == at(0, [*range(10), *range(15, 20)])
    assert lake.entry(name).landed.width == 20
    kept = 5 if on_error == "reject" else 0
    assert number_of_rejected(lake) == kept

    # Corrected (here: expected), the rest lands.
    report = lake.land(name, max_rejected=1.0, **config)
    assert report.counts.read == 20
    assert lake.entry(name).landed.width == 40
    assert number_of_rejected(lake) == kept * 5


def number_of_rejected(lake: Lake) -> int:
    return lake.scan(REJECTED).num_rows


@pytest.mark.parametrize("on_error", ["reject", "skip"])
@EACH_FORMAT
def test_tries_of_one_run_are_counted_together(lake: Lake, name: str, produce: Producing, on_error: str) -> None:
    """What was skipped as bad by an earlier try is told by its snapshot, beside tombstones."""
    produce(name, 0, [*numbers(20), *(BAD * 9), None, *(BAD * 4), *numbers(20)])
    config = {"schema": SCHEMA, "on_error": on_error, "max_rejected": 12, "tombstones": "skip"}
    lake.land(name, "r", max_records=30, **config)
    with pytest.raises(TooManyRejected, match=r"13 of 54 records .* more than max_rejected=12"):
        lake.land(name, "r", **config)
    # For another run only its own count.
    report = lake.land(name, "other", **config)
    assert (report.counts.read, report.bad.count) == (24, 4)


def test_max_rejected_goes_with_skip(lake: Lake, name: str, produce: Producing) -> None:
    produce(name, 0, mixed(3, 10))
    with pytest.raises(TooManyRejected, match=r"3 of 13 records .* more than max_rejected=2"):
        lake.land(name, schema=SCHEMA, on_error="skip", max_rejected=2)
    assert lake.has_nothing()
    assert lake.land(name, schema=SCHEMA, on_error="skip", max_rejected="25%").counts.skipped == 3


@pytest.mark.parametrize("on_error", ["reject", "skip"])
def test_processes_that_read_side_by_side_are_counted_together(lake: Lake, topic_of: TopicOf, on_error: str) -> None:
    name = topic_of(*(mixed(40, 20) for partition in range(3)))
    config = {"schema": SCHEMA, "on_error": on_error}
    with pytest.raises(TooManyRejected, match=r"120 of 180 records .* at stage decode: .*no JSON"):
        ParallelRun(lake, name, config).land()
    assert has_nothing(lake)
    with pytest.raises(TooManyRejected, match="more than max_rejected=30"):
        ParallelRun(lake, name, {**config, "max_rejected": 30}).land()
    assert has_nothing(lake)
    report = ParallelRun(lake, name, {**config, "max_rejected": "70%"}).land()
    assert (report["rows"], report["bad"]) == (60, 120)


@pytest.mark.parametrize("on_error", ["reject", "skip"])
@EACH_FORMAT
def test_the_commit_of_a_group_decides_and_deletes_what_was_handed_over(
    lake: Lake, topic: Topics, produce: Producing, on_error: str
) -> None:
    name = topic(partitions=2)
    # One share alone has no bad record, the other one nothing else.
    produce(name, 0, numbers(20))
    produce(name, 1, BAD * 30)
    run = SharedRun(lake, name, {"schema": SCHEMA, "on_error": on_error})
    plan = run.plan(2)
    founded = sorted(str(path) for path in lake.folder.rglob("*") if path.is_file())
    pieces = run.read_all(plan)
    with pytest.raises(TooManyRejected, match=r"30 of 50 records .* Likely cause: .*") as caught:
        run.commit(plan, pieces)
    assert f"{name}[1] offset 0: not valid JSON" in str(caught.value)
    assert [path for path in lake.folder.rglob("*") if path.is_file() and str(path) not in founded] == []
    # Where they are expected, clearing the commit alone is enough: it reads what was deleted.
    run.config["max_rejected"] = 1.0
    report = run.commit(plan, pieces)
    assert (report.counts.written, report.bad.count) == (20, 30)


def test_records_that_no_table_may_be_had_for_count(lake: Lake, name: str, produce: Producing) -> None:
    produce(name, 0, ['{"n": 1, "kind": "a"}'] * 10 + ['{"n": 1}'] * 12)
    config = {"table": "lake.{kind}", "schema": "n bigint, kind string", "new_tables": "create"}
    with pytest.raises(TooManyRejected, match=r"12 of 22 records .* 12 at stage route: .* it has no field 'kind'"):
        lake.land(name, **config)
    assert lake.has_nothing()
    assert lake.land(name, max_rejected=1.0, **config).counts == Counts(read=22, written=10, rejected=12)


@EACH_FORMAT
def test_a_replace_that_would_put_rejected_records_in_the_place_of_rows_changes_nothing(
    lake: Lake, name: str, produce: Producing, registry: Registry
) -> None:
    produce(name, 0, numbers(20))
    lake.land(name, schema=SCHEMA)
    before = lake.snapshots()
    again = {"mode": "ranges", "ranges": [[0, 0, 20]], "replace": True, "format": "avro"}
    with pytest.raises(TooManyRejected, match="20 of 20 records"):
        lake.land(name, schema_registry=registry.url, **again)
    assert lake.snapshots() == before


def test_a_replay_that_rejects_all_of_them_again_is_no_failure(lake: Lake, name: str, produce: Producing) -> None:
    produce(name, 0, BAD * 20)
    lake.land(name, schema=SCHEMA, max_rejected=1.0)
    done = RejectReplay(table=TABLE, consumer_group=GROUP).run(lake.catalog())
    assert done.counts == Counts(read=20, rejected=20)
    assert number_of_rejected(lake) == 20


@pytest.mark.parametrize("on_error", ["reject", "skip"])
@EACH_FORMAT
def test_a_mirror_of_a_topic_without_events_fails_and_leaves_nothing(
    lake: Lake, name: str, produce: Producing, on_error: str
) -> None:
    event = '{"before": null, "after": {"id": 1}, "op": "c", "source": {"lsn": 1, "ts_ms": 1}}'
    produce(name, 0, [*numbers(20), event])
    given = {"topic": name, "table": lake.name, "consumer_group": GROUP, "key": ["id"], "on_error": on_error}
    form = lake_of(lake.name).format

    def mirror(**more: Any) -> Any:
        config = MirrorConfig(**given, table_format=form, **more)
        return land(build_job(config, lake.kafka, lake.catalog(), run_id=uuid.uuid4().hex))

    with pytest.raises(TooManyRejected, match=r"20 of 21 records .* not change events of Debezium"):
        mirror()
    assert has_nothing(lake)
    assert mirror(max_rejected=1.0).counts.written == 1


def test_a_regex_counts_each_topic_for_itself(lake: Lake, topic: Topics, produce: Producing) -> None:
    from airflow_lakestream.run.topics import land_run

    good, bad = topic(partitions=1), topic(partitions=1)
    produce(good, 0, numbers(100))
    produce(bad, 0, BAD * 20)
    config = ExtractConfig(topic=f"^({good}|{bad})$", table="lake.{topic}", consumer_group=GROUP, schema=SCHEMA)
    with pytest.raises(TooManyRejected, match="20 of 20 records"):
        land_run(config, lake.kafka, lake.catalog(), run_id="r")
    (table,) = lake.catalog().list_tables("lake")
    assert lake.catalog().load_table(table).scan().to_arrow().num_rows == 100
    report = land_run(replace(config, max_rejected=1.0), lake.kafka, lake.catalog(), run_id="r2").to_dict()
    assert report["bad"] == 20


@EACH_FORMAT
def test_a_table_that_is_there_gets_no_commit(lake: Lake, name: str, produce: Producing) -> None:
    produce(name, 0, numbers(5))
    lake.land(name, schema=SCHEMA)
    produce(name, 0, BAD * 20)
    with pytest.raises(TooManyRejected):
        lake.land(name)
    assert len(lake.snapshots()) == 1
    lake.assert_whole()
    assert not number_of_rejected(lake)
