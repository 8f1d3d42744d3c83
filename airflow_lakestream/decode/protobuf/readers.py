"""Protocols between readers of messages and readers of fields: a field may be a message, too."""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa

from airflow_lakestream.core.policies import TimestampsFiner
from airflow_lakestream.decode.lanes.lanes import ByteLanes


class MessageReader(Protocol):
    """Reader of messages of the same type; see `protobuf.columns`."""

    def read(self, lanes: ByteLanes, depth: int = 0) -> list[pa.Array]:
        """Read the lanes to the ends; return the columns."""


class ReaderCompiler(Protocol):
    """Compiler of readers of columns; see `protobuf.columns`."""

    finer: TimestampsFiner

    def message(self, descriptor: Any, fields: list[pa.Field], path: str = "") -> MessageReader:
        """Return the reader of a message's fields. Raises Unfit."""

    def checker(self, descriptor: Any) -> MessageReader:
        """Return a reader of the message without any column, for validation."""
