"""What a query says, and leaves, where Spark or what it stands on fails; on a real Spark and a real broker."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.driver.lease import read_lease
from airflow_lakestream.kafka.errors import TopicMissing
from airflow_lakestream.spark.causes import cause_of
from airflow_lakestream.spark.checkpoint import CheckpointDamaged, read_checkpoint
from tests.support.broker import Producing, Topics
from tests.support.lake import Lake, assert_landed_once, events
from tests.support.spark import SparkRun

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


def test_a_topic_that_is_gone_is_named(lake: Lake, topic: Topics, produce: Producing, spark: SparkSession) -> None:
    name = topic(partitions=1)
    run = SparkRun(lake, name)
    produce(name, 0, events(0, 0, 20))
    run.run(spark)
    topic.delete(name)
    with pytest.raises(TopicMissing, match=f"'{name}' does not exist"):
        run.run(spark)
