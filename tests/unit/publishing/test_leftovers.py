"""What Flink leaves out is landed by the extract, and rows that are others than the extract's never show."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.landing.modes import RangesMode
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.publishing.refusals import RecordDoubted, RowsDiffer
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.flink.extract_stream import ExtractProof, LeftoverLog, left_out_ranges
from airflow_lakestream.run.job import build_job
from airflow_lakestream.run.publication import KafkaLogView
from tests.support.fault_log import Kind, ModelReader, ModelSource, Shape
from tests.support.lake import QUICK_RETRIES
from tests.support.publishing import BRANCH, GROUP, TABLE, TOPIC, World


def extract(world: World, **config: Any) -> LandingJob:
    told = {"schema": "n bigint", "metadata_columns": ("topic", "partition", "offset"), **config}
    made = ExtractConfig(topic=TOPIC, table=TABLE, consumer_group=GROUP, table_properties=QUICK_RETRIES, **told)
    job = build_job(made, {"bootstrap.servers": "none"}, world.catalog(), run_id=uuid.uuid4().hex)
    return replace(job, source=ModelSource(world.log), reader=ModelReader(world.log, 7))


def published(world: World, **config: Any) -> tuple[LandingReport, RangeSet]:
    """Publish with the extract's proof; return what is left to the extract, too."""
    job = extract(world, **config)
    proof = ExtractProof(job, {}, lambda: world.table().schema())
    log = LeftoverLog(KafkaLogView(ModelReader(world.log, 7)))
    return world.publish(proof=proof, log=log), left_out_ranges(world.entry(), TOPIC, BRANCH, published=True)


def land_rest(world: World, ranges: RangeSet, **config: Any) -> LandingReport:
    given = tuple((p, *interval) for topic, p in ranges.partitions for interval in ranges.intervals(topic, p))
    return land(replace(extract(world, **config), mode=RangesMode(given)))


def test_what_has_no_row_is_landed_by_the_extract_as_a_row_or_rejected(world: World) -> None:
    world.produce(0, Kind.TOMBSTONE, Kind.ABORTED, Kind.MARKER, Kind.DATA)
    world.log.partitions[1].entries[2].shape = Shape.BAD
    rows = [one for one in world.read() if one not in ((0, 2), (1, 2))]
    world.write(rows)
    report, left = published(world, on_error="reject")
    assert report.counts.written == len(rows)
    bare = len(world.log.partitions[0].entries) - 4
    assert left == RangeSet.of(TOPIC, 0, 2, 3) | RangeSet.of(TOPIC, 0, bare, bare + 1) | RangeSet.of(TOPIC, 1, 2, 3)
    # Where the driver dies here, the next one finds them.
    assert left_out_ranges(world.entry(), TOPIC, BRANCH) == left
    counts = land_rest(world, left).counts
    assert (counts.read, counts.written, counts.rejected) == (3, 2, 1)
    entry = world.entry()
    assert not left_out_ranges(entry, TOPIC, BRANCH)
    for p, log in enumerate(world.log.partitions):
        assert entry.held.first_missing(TOPIC, p, 0) == log.end
    assert world.rows() == sorted([*rows, (0, 2), (0, bare)])
    # The engine goes on behind it.
    world.records(1, 5)
    world.step()
    report, left = published(world)
    assert (report.counts.written, bool(left)) == (5, False)


def test_what_has_left_main_again_is_left_once_more_and_what_the_job_is_to_read_never(world: World) -> None:
    world.write([one for one in world.read() if one != (0, 2)])
    _, left = published(world)
    head = world.heads()
    assert left == RangeSet.of(TOPIC, 0, 2, 3)
    assert head is not None
    land_rest(world, left)
    world.table().manage_snapshots().rollback_to_snapshot(head).commit()
    assert left_out_ranges(world.entry(), TOPIC, BRANCH, published=True) == left
    land_rest(world, left)
    # Another run lands behind what the job has to read yet.
    world.records(0, 10)
    end = world.log.partitions[0].end
    land_rest(world, RangeSet.of(TOPIC, 0, end - 3, end))
    assert not left_out_ranges(world.entry(), TOPIC, BRANCH, published=True)
    assert left_out_ranges(world.entry(), TOPIC, BRANCH) == RangeSet.of(TOPIC, 0, end - 10, end - 3)


@pytest.mark.parametrize(("spoilt", "said"), [("another value", "n"), ("no value", "n"), ("a bad record", "no row")])
def test_a_row_that_is_not_the_extract_s_is_named_and_nothing_shows(world: World, spoilt: str, said: str) -> None:
    world.step()
    published(world)
    world.records(0, 4)
    at = world.log.partitions[0].end - 3
    rows = world.read()
    values = [p * 1_000_000 + o for p, o in rows]
    if spoilt == "a bad record":
        world.log.partitions[0].entries[at].shape = Shape.BAD
    place = rows.index((0, at))
    values[place] = {"another value": -1, "no value": None}.get(spoilt, values[place])  # type: ignore[assignment]  # of any type
    world.write(rows, n=pa.array(values, pa.int64()))
    head = world.heads()
    with pytest.raises(RowsDiffer, match=rf"1 row has other values.*{TOPIC}\[0\] offset {at}: {said}"):
        published(world)
    assert world.heads() == head
    # What the driver does then.
    land(extract(world))
    world.begin_again()
    world.records(0, 2)
    world.step()
    assert published(world)[0].counts.written == 2
    entry = world.entry()
    assert entry.held.first_missing(TOPIC, 0, 0) == world.log.partitions[0].end


def test_filtered_is_what_the_statement_leaves_out_and_not_what_has_no_row(world: World) -> None:
    value = "json_value(value, '$.n')"
    statement = f"SELECT {value}::BIGINT AS n FROM {{{{ input }}}} WHERE {value} <> '1000002'"
    sql: dict[str, Any] = {"schema": None, "sql": statement}
    rows = [one for one in world.read() if one not in ((0, 2), (1, 2))]
    world.write(rows)
    _, left = published(world, **sql)
    counts = land_rest(world, left, **sql).counts
    assert (counts.read, counts.written, counts.filtered) == (2, 1, 1)


def test_a_bad_record_that_is_to_fail_fails_the_publication(world: World) -> None:
    world.log.partitions[1].entries[2].shape = Shape.BAD
    world.step()
    with pytest.raises(RecordDoubted, match=rf"{TOPIC}\[1\] offset 2"):
        published(world, on_error="fail")
