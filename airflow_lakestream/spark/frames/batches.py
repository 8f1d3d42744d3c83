"""How many rows of a result Spark hands to Python at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BYTES, _RECORDS = (f"spark.sql.execution.arrow.{name}PerBatch" for name in ("maxBytes", "maxRecords"))
# Java's greatest integer stands for no limit.
_WITHOUT_LIMIT = str(2**31 - 1)
_FEW, _MOST = 1_000, 10_000


@contextmanager
def counted_batches(spark: SparkSession, staged: Sequence[int]) -> Iterator[None]:
    """Let batches be limited by their rows alone, of results that have at most a row for each staged one.

    Spark adds up the bytes of a batch anew for each row, by default: a third of the JVM's CPU time for a join. Staged
    files hold no more than `tables.row_buffer` does, 64 MiB, so as many rows as the smallest of them has are no more
    than two files' bytes. Where a session has a limit of its own, or a file has few rows, Spark goes on adding.

    :param staged: the rows of each staged file.
    """
    most, conf = min(staged, default=0), spark.conf
    if most < _FEW or conf.get(_BYTES, None) is not None:
        yield
        return
    given = conf.get(_RECORDS, None)
    # None, or less than one, is no limit for Spark.
    limit = int(given or 0)
    conf.set(_BYTES, _WITHOUT_LIMIT)
    conf.set(_RECORDS, str(min(most, limit if limit > 0 else _MOST)))
    try:
        yield
    finally:
        conf.unset(_BYTES)
        conf.unset(_RECORDS) if given is None else conf.set(_RECORDS, given)
