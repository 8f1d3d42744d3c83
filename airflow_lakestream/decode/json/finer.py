"""Times in text finer than microseconds, cut if the landing is configured to truncate."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.core.policies import TimestampsFiner
from airflow_lakestream.decode.json.values import Scalars, time_of_day, timestamp
from airflow_lakestream.decode.values import iso8601

_CUTTING: Scalars = (
    (lambda kind: t.is_timestamp(kind) and kind.unit == "us", partial(timestamp, cuts=True)),
    (lambda kind: t.is_time64(kind) and kind.unit == "us", partial(time_of_day, cuts=True)),
)


def scalars_for(finer: TimestampsFiner) -> Scalars:
    """Return the coercions for cutting times, or an empty tuple if times are not cut."""
    return _CUTTING if finer is TimestampsFiner.TRUNCATE else ()


def texts_for(finer: TimestampsFiner, texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return texts for a column of this type, with times cut if the policy is to truncate."""
    is_time = t.is_timestamp(kind) or t.is_time64(kind)
    return iso8601.cut(texts) if is_time and finer is TimestampsFiner.TRUNCATE else texts
