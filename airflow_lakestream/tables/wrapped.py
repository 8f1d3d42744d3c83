"""A sink around another one: what it does not do otherwise, the inner one does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_lakestream.core.ledger import TopicIdentity
from airflow_lakestream.core.ports import SharedSink, Sink, TakingSink


class WrappedSink:
    """A part of `core.ports.Sink`; how it loads and commits is for the class below to say."""

    def __init__(self, inner: Sink) -> None:
        self.inner = inner

    def write(self, rows: Any, identity: TopicIdentity) -> None:
        """Take rows for the next commit."""
        self.inner.write(rows, identity)

    def pass_over(self, identity: TopicIdentity, partition: int, offsets: Any) -> None:
        """Be told of records that became no row."""
        self.inner.pass_over(identity, partition, offsets)

    def discard(self) -> None:
        """Forget what was taken since the last commit; never raises."""
        self.inner.discard()

    def schema_changes(self, snapshot_id: int) -> Sequence[str]:
        """Say what a landing changed in the table's schema."""
        return self.inner.schema_changes(snapshot_id)


class WrappedTakingSink(WrappedSink):
    """The same of `core.ports.TakingSink`."""

    inner: TakingSink

    def outline(self) -> Any:
        """Return what a sink in another process needs to write files."""
        return self.inner.outline()

    def take_over(self, files: Mapping[str, Any]) -> None:
        """Take files that a process of this run handed over."""
        self.inner.take_over(files)

    def sweep(self, folder: str) -> None:
        """Delete the files below this folder of the table's data that no commit has; never raises."""
        self.inner.sweep(folder)


class WrappedSharedSink(WrappedTakingSink):
    """The same of `core.ports.SharedSink`."""

    inner: SharedSink

    def write_below(self, folder: str) -> None:
        """Write files below this folder of the table's data from now on."""
        self.inner.write_below(folder)

    def hand_over(self) -> Mapping[str, Any]:
        """Write out what was taken, and return what `adopt` needs of it."""
        return self.inner.hand_over()

    def let_go(self) -> None:
        """Leave what was handed over to who took it."""
        self.inner.let_go()

    def misfit(self, files: Mapping[str, Any]) -> str | None:
        """Say why handed files can't be used; None if they can."""
        return self.inner.misfit(files)

    def adopt(self, files: Mapping[str, Any]) -> None:
        """Take files that another worker handed over for the next commit."""
        self.inner.adopt(files)
