"""A Delta table has no transforms: a day that is no column names the statement that makes one."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_lakestream.delta.columns import check_partitions
from airflow_lakestream.exceptions import InvalidArgument

SCHEMA = pa.schema([("id", pa.int64()), ("event_timestamp", pa.timestamp("us", "UTC"))])


def test_a_date_that_is_no_column_names_the_cast_that_makes_it() -> None:
    with pytest.raises(InvalidArgument, match=r'CAST\(event_timestamp AS DATE\) AS "date"'):
        check_partitions(SCHEMA, ["date"])
