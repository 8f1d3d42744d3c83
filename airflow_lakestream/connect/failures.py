"""How the supervision of a connector ends badly."""

from __future__ import annotations

from airflow_lakestream.exceptions import LakestreamError, Terminal, Transient

_LEFT = "What it has committed is published, or is by the next run."


class ConnectorFailed(LakestreamError, Terminal):
    """The connector's tasks fail with an error that comes again."""

    def __init__(self, connector: str, reason: str) -> None:
        super().__init__(f"connector {connector}: it {reason}. {_LEFT}")


class ConnectorGaveUp(LakestreamError, Transient):
    """The connector's tasks failed more often than `max_restarts` allows, without a healthy period in between."""

    def __init__(self, connector: str, reason: str, restarts: int) -> None:
        super().__init__(f"connector {connector}: its tasks were restarted {restarts} times and it {reason}. {_LEFT}")
