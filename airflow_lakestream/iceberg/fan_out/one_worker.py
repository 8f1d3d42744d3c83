"""What a sink that one worker writes alone answers to those that would share a run with others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_lakestream.exceptions import InvalidArgument


class OneWorkerSink:
    """The part of `core.ports.Sink` by which workers hand files over: refused, each with InvalidArgument."""

    def write_below(self, folder: str) -> None:
        """Refuse."""
        raise _refusal()

    def hand_over(self) -> Mapping[str, Any]:
        """Refuse."""
        raise _refusal()

    def let_go(self) -> None:
        """Refuse."""
        raise _refusal()

    def outline(self) -> Any:
        """Refuse."""
        raise _refusal()

    def take_over(self, files: Mapping[str, Any]) -> None:
        """Refuse."""
        raise _refusal()

    def misfit(self, files: Mapping[str, Any]) -> str | None:
        """Refuse."""
        raise _refusal()

    def adopt(self, files: Mapping[str, Any]) -> None:
        """Refuse."""
        raise _refusal()

    def schema_changes(self, snapshot_id: int) -> Sequence[str]:
        """Say nothing: such tables keep their schemas."""
        return ()

    def sweep(self, folder: str) -> None:
        """Refuse."""
        raise _refusal()


def _refusal() -> InvalidArgument:
    return InvalidArgument(
        "table", "tables that records choose are written by one worker.", "Use KafkaExtractOperator."
    )
