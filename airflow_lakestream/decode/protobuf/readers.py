"""What readers of messages and of their fields know of each other: a message has fields, and a field may be one."""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa

from airflow_lakestream.core.policies import TimestampsFiner
from airflow_lakestream.decode.lanes.lanes import Lanes


class MessageReader(Protocol):
    """Reads messages of one type; see `protobuf_columns`."""

    def read(self, lanes: Lanes, depth: int = 0) -> list[pa.Array]:
        """Read the lanes to their ends; return the columns."""


class Compiler(Protocol):
    """Makes readers of columns; see `protobuf_columns`."""

    patient: bool
    finer: TimestampsFiner

    def message(self, descriptor: Any, fields: list[pa.Field], path: str = "") -> MessageReader:
        """Return the reader of a message's fields. Raises Unfit."""

    def checker(self, descriptor: Any) -> MessageReader:
        """Return a reader that wants no field of the message."""
