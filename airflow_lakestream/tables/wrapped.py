"""Sinks around an inner sink, with calls passed on by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_lakestream.core.ledger import TopicIdentity
from airflow_lakestream.core.ports import HandoverSink, SharedSink, Sink


class WrappedSink:
    """Base of a wrapping `core.ports.Sink`: passes calls on. The subclass implements loading and commits."""

    def __init__(self, inner: Sink) -> None:
        self.inner = inner

    def write(self, rows: Any, identity: TopicIdentity) -> None:
        """Buffer rows for the next commit."""
        self.inner.write(rows, identity)

    def pass_over(self, identity: TopicIdentity, partition: int, offsets: Any) -> None:
        """Note the offsets of records without a row."""
        self.inner.pass_over(identity, partition, offsets)

    def discard(self) -> None:
        """Discard all rows since the last commit; never raises."""
        self.inner.discard()

    def schema_changes(self, snapshot_id: int) -> Sequence[str]:
        """Return the schema changes of a landing, in words."""
        return self.inner.schema_changes(snapshot_id)


class WrappedTakingSink(WrappedSink):
    """Base of a wrapping `core.ports.HandoverSink`."""

    inner: HandoverSink

    def outline(self) -> Any:
        """Return the outline of the table, for writing files in another process."""
        return self.inner.outline()

    def take_over(self, files: Mapping[str, Any]) -> None:
        """Add files staged by a process of this run to the next commit."""
        self.inner.take_over(files)

    def sweep(self, folder: str) -> None:
        """Delete the uncommitted files below this folder of the table's data; never raises."""
        self.inner.sweep(folder)


class WrappedSharedSink(WrappedTakingSink):
    """Base of a wrapping `core.ports.SharedSink`."""

    inner: SharedSink

    def write_below(self, folder: str) -> None:
        """Write later files below this folder of the table's data."""
        self.inner.write_below(folder)

    def hand_over(self) -> Mapping[str, Any]:
        """Write all buffered rows, and return the staged files for `adopt`."""
        return self.inner.hand_over()

    def let_go(self) -> None:
        """Give up ownership of the files handed over: `discard` no longer deletes the files."""
        self.inner.let_go()

    def misfit(self, files: Mapping[str, Any]) -> str | None:
        """Return the reason against the use of handed files, or None."""
        return self.inner.misfit(files)

    def adopt(self, files: Mapping[str, Any]) -> None:
        """Add files staged by another worker to the next commit; `discard` does not delete the files."""
        self.inner.adopt(files)
