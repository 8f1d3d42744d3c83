"""What a query says, and leaves, where Spark or what it stands on fails; on a real Spark and a real broker."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.driver.lease import read_lease
from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.kafka.errors import TopicMissing
from airflow_lakestream.spark.causes import cause_of
from airflow_lakestream.spark.checkpoint import CheckpointDamaged, read_checkpoint
from airflow_lakestream.spark.packages import kafka_packages, resolve
from tests.support.broker import Producing, Topics
from tests.support.lake import Lake, assert_landed_once, events
from tests.support.spark import SETTINGS, SparkRun, start_app

pytestmark = pytest.mark.integration


def fill_the_disk(_: int) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def run_out_of_memory(_: int) -> NoReturn:
    raise MemoryError


def be_killed(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def divide(number: int) -> float:
    return 1 / number


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (fill_the_disk, "a disk is full (OSError: [Errno 28] No space left on device). Free space"),
        (run_out_of_memory, "an executor, or a Python worker of it, ran out of memory (MemoryError). Give it more"),
        (be_killed, "a Python worker of an executor was killed, or crashed ("),
        (divide, "ZeroDivisionError: division by zero."),
    ],
)
def test_what_a_task_failed_with_is_said(task: Callable[[int], Any], told: str, spark: SparkSession) -> None:
    with pytest.raises(Exception, match="collectAndServe") as caught:
        spark.sparkContext.parallelize([0], 1).map(task).collect()
    assert cause_of(caught.value).startswith(told)
    assert "collectAndServe" not in cause_of(caught.value)


def test_a_damaged_checkpoint_is_refused_and_without_it_each_record_lands_once(
    lake: Lake, topic: Topics, produce: Producing, spark: SparkSession
) -> None:
    name, run = topic(partitions=1), SparkRun(lake, "")
    run.topic = name
    produce(name, 0, events(0, 0, 20))
    landed = 20
    for file in ("offsets/{}", "commits/{}", "metadata", "sources/0/0"):
        run.run(spark)
        checkpoint = read_checkpoint(str(run.checkpoint))
        assert checkpoint is not None
        damaged = run.checkpoint / file.format(checkpoint.planned[-1])
        damaged.write_bytes(damaged.read_bytes()[:4])
        produce(name, 0, events(0, landed, 5))
        with pytest.raises(CheckpointDamaged, match=f"{damaged.name}.*Delete the checkpoint. Nothing is lost"):
            run.run(spark)
        assert_landed_once(lake, name, {0: landed})
        lease = read_lease(str(run.checkpoint))
        assert lease is not None
        assert (lease.terminal, "Delete the checkpoint" in lease.error) == (True, True)
        shutil.rmtree(run.checkpoint)
        landed += 5
    run.run(spark)
    assert_landed_once(lake, name, {0: landed})


@pytest.mark.parametrize(
    ("gone", "left", "refusal"),
    [
        ("offsets/4", "", r"offsets/4 is missing\."),
        ("offsets/4", "offsets/.4.crc", r"offsets/4 is missing\."),
        ("commits/5", "commits/.5.crc", r"commits/5 is missing, and its checksum \.5\.crc is left"),
        # No later start of Spark needs it.
        ("commits/2", "commits/.2.crc", None),
    ],
)
def test_a_gap_on_which_spark_would_fail_is_named_before_anything_is_read(
    gone: str, left: str, refusal: str | None, lake: Lake, topic: Topics, produce: Producing, spark: SparkSession
) -> None:
    name = topic(partitions=1)
    run = SparkRun(lake, name)
    for batch in range(6):
        produce(name, 0, events(0, 5 * batch, 5))
        run.run(spark)
    checkpoint = read_checkpoint(str(run.checkpoint))
    assert checkpoint is not None
    assert (checkpoint.planned, checkpoint.committed) == (tuple(range(6)),) * 2
    folder, number = gone.split("/")
    checksum = f"{folder}/.{number}.crc"
    for file in {gone, checksum} - {left}:
        (run.checkpoint / file).unlink()
    produce(name, 0, events(0, 30, 5))
    # However often it is tried.
    for _ in range(2 if refusal else 0):
        with pytest.raises(CheckpointDamaged, match=rf"{refusal}.*Delete the checkpoint\. Nothing is lost") as stopped:
            run.run(spark)
        assert isinstance(stopped.value, Terminal)
    assert_landed_once(lake, name, {0: 30})
    lease = read_lease(str(run.checkpoint))
    assert lease is not None
    assert lease.terminal is bool(refusal)
    if refusal:
        shutil.rmtree(run.checkpoint)
    run.run(spark)
    assert_landed_once(lake, name, {0: 35})


def test_a_jar_that_was_cut_is_named_by_the_program_that_was_given_it(
    lake: Lake, topic: Topics, produce: Producing
) -> None:
    name = topic(partitions=1)
    run = SparkRun(lake, name)
    produce(name, 0, events(0, 0, 5))
    jars = resolve(kafka_packages())
    (source,) = (jar for jar in jars if "spark-sql-kafka" in jar)
    cut = lake.folder / Path(source).name
    cut.write_bytes(Path(source).read_bytes()[:100_000])
    given = ",".join([str(cut), *(jar for jar in jars if jar != source)])
    with start_app(run.config(spark={**SETTINGS, "spark.jars": given}), lake.folder) as app:
        assert app.wait(200) != 0
    said = (lake.folder / "driver.log").read_text()
    assert f"{cut} is not a complete jar: it was cut, or damaged. Delete the folder" in said
    assert "has no Kafka source" not in said
    assert not run.checkpoint.exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"properties": None}, "PyIceberg can not read its metadata"),
        ({"location": "file:///proc/events"}, "no file can be written below /proc/events/data"),
        ({"table-uuid": "x"}, "PyIceberg can not read its metadata .*table-uuid"),
        ({"last-sequence-number": 0}, "last-sequence-number is 0, and a snapshot has 1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_table_that_can_not_be_landed_in_is_named_before_a_record_is_read(
    change: dict[str, Any], told: str, lake: Lake, topic: Topics, produce: Producing, spark: SparkSession
) -> None:
    name = topic(partitions=1)
    run = SparkRun(lake, name)
    produce(name, 0, events(0, 0, 5))
    run.run(spark)
    file = Path(lake.table().metadata_location.removeprefix("file://"))
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    produce(name, 0, events(0, 5, 5))
    with pytest.raises(LakestreamError, match=rf"^lake\.events: .*{told}") as stopped:
        run.run(spark)
    assert isinstance(stopped.value, Terminal)
    checkpoint = read_checkpoint(str(run.checkpoint))
    assert checkpoint is not None
    assert checkpoint.committed == (0,)
    lease = read_lease(str(run.checkpoint))
    assert lease is not None
    assert lease.terminal


def test_a_topic_that_is_gone_is_named(lake: Lake, topic: Topics, produce: Producing, spark: SparkSession) -> None:
    name = topic(partitions=1)
    run = SparkRun(lake, name)
    produce(name, 0, events(0, 0, 20))
    run.run(spark)
    topic.delete(name)
    with pytest.raises(TopicMissing, match=f"'{name}' does not exist"):
        run.run(spark)
