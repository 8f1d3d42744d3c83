"""What is told of Spark's errors: by the texts that Spark 4.0 really gives."""

import re

import pytest

from airflow_lakestream.spark.causes import QueryRefused, cause_of, query_failed

TOP = "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
ABORTED = "Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task 0.3 in "
TASK = f": org.apache.spark.SparkException: {ABORTED}stage 0.0 (TID 3) (10.0.0.1 executor 1): "
PYTHON = (
    f'{TASK}org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n  File "w.py", line 1\n'
)
END = "\n\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:561)\nDriver stacktrace:\n"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (f"{PYTHON}MemoryError\n{END}", r"ran out of memory \(MemoryError\)\. .*spark\.executor\.memoryOverhead"),
        (
            f"{PYTHON}OSError: [Errno 28] No space left on device\n{END}",
            r"a disk is full \(OSError: .*spark\.local\.dir",
        ),
        (f"{PYTHON}pyarrow.lib.ArrowInvalid: odd\n{END}", r"^pyarrow\.lib\.ArrowInvalid: odd\.$"),
        (f"{PYTHON}AssertionError\n{END}", r"^AssertionError\.$"),
        (
            f"{TASK}org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\n\tat x\n"
            "Caused by: java.io.EOFException\n\tat y\n",
            r"a Python worker of an executor was killed.*exited unexpectedly \(crashed\)\).*memoryOverhead",
        ),
        (
            f"{TASK}ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: worker lost\n",
            "an executor was lost .*ExecutorLostFailure.*Look into its log",
        ),
        (f"{TASK}java.lang.OutOfMemoryError\n", r"ran out of memory \(.*OutOfMemoryError"),
        (
            ": java.lang.IllegalStateException: odd\nCaused by: java.io.IOException: the cause\n\tat x",
            "^java.io.IOExc.*cause",
        ),
    ],
)
def test_the_root_cause_is_told_with_its_remedy(said: str, told: str) -> None:
    cause = cause_of(Exception(TOP + said))
    assert re.search(told, cause), cause
    assert "collectAndServe" not in cause


def test_what_a_restart_cant_help_is_told_apart() -> None:
    lost = "[STREAM_FAILED] x\nCaused by: org.apache.kafka.common.errors.UnknownTopicOrPartitionException: x"
    assert isinstance(query_failed("c", Exception(lost)), QueryRefused)
    damaged = "x\nCaused by: org.apache.kafka.common.errors.CorruptRecordException: Record is corrupt (stored crc = 1)"
    assert isinstance(query_failed("c", Exception(damaged)), QueryRefused)
    assert "forget --damaged" in cause_of(Exception(damaged))
    assert not isinstance(query_failed("c", Exception("TimeoutException: x")), QueryRefused)
    assert cause_of(Exception("")) == "Exception."
