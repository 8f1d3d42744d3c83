"""Limits on the rows of a batch from Spark to Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BYTES, _RECORDS = (f"spark.sql.execution.arrow.{name}PerBatch" for name in ("maxBytes", "maxRecords"))
# Java's greatest integer means no limit.
_WITHOUT_LIMIT = str(2**31 - 1)
_FEW, _MOST = 1_000, 10_000


@contextmanager
def counted_batches(spark: SparkSession, staged: Sequence[int]) -> Iterator[None]:
    """Limit batches by rows alone, for results with at most a row for each staged row.

    By default, Spark adds up a batch's bytes again for each row: a third of the JVM's CPU time for a join. A staged
    file holds at most `tables.row_buffer`, 64 MiB, so a batch with as many rows as the smallest file has holds at most
    the bytes of two files. If a session has its own limit, or a file has few rows, Spark keeps adding.

    :param staged: the rows of each staged file.
    """
    most, conf = min(staged, default=0), spark.conf
    if most < _FEW or conf.get(_BYTES, None) is not None:
        yield
        return
    given = conf.get(_RECORDS, None)
    # For Spark, None or less than one means no limit.
    limit = int(given or 0)
    conf.set(_BYTES, _WITHOUT_LIMIT)
    conf.set(_RECORDS, str(min(most, limit if limit > 0 else _MOST)))
    try:
        yield
    finally:
        conf.unset(_BYTES)
        conf.unset(_RECORDS) if given is None else conf.set(_RECORDS, given)
