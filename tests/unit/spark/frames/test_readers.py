"""Who reads for a function: executors, also where rows are tried one by one, since what others read misses it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_lakestream.config.frames import FrameConfig
from airflow_lakestream.core.landing.plan import Plan, TopicState
from airflow_lakestream.core.ledger import TopicIdentity
from airflow_lakestream.core.ports import RowsNotWritable
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.run.job import build_job
from airflow_lakestream.spark.frames.function import load_function
from airflow_lakestream.spark.frames.readers import FrameReaders
from airflow_lakestream.spark.readers import SparkReaders

PLAN = Plan(TopicState(TopicIdentity("t", "i", "c"), {}), RangeSet.of("t", 0, 0, 9))


@pytest.mark.parametrize("argument", ["transform", "stream_transform"])
def test_a_careful_landing_with_a_function_is_read_by_executors_all_the_same(argument: str) -> None:
    name = "tests.support.frames:unchanged"
    given = {"topic": "t", "table": "lake.t", "consumer_group": "g", "schema": "id bigint", argument: name}
    config = FrameConfig(**given)
    job = build_job(config, {"bootstrap.servers": "b"}, None, run_id="r")
    careful = replace(job, careful=True)
    common = None, config, {}, "here"
    readers = FrameReaders(*common, function=load_function(name, argument))
    assert readers.can_read(careful, PLAN)
    assert not SparkReaders(*common).can_read(careful, PLAN)
    # Rows of a function's are no records that could be rejected: there is nothing to try.
    with pytest.raises(RowsNotWritable):
        job.with_trials(RowsNotWritable("lake.t", "too long", None))
