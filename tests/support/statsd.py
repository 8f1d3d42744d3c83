"""A StatsD server of one test: a UDP socket that Airflow's own client sends to, in InfluxDB's style of tags."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.broker import poll_until


@dataclass(frozen=True)
class Metric:
    """One that has come: `kind` is c (counter), g (gauge) or ms (timer)."""

    name: str
    value: float
    kind: str
    tags: dict[str, str]

    @classmethod
    def parse(cls, text: str) -> Metric:
        """Read `name,tag=value,...:value|kind`."""
        named, _, rest = text.partition(":")
        name, *tags = named.split(",")
        value, kind = rest.split("|")[:2]
        return cls(name, float(value), kind, dict(tag.split("=", 1) for tag in tags))


@dataclass
class StatsD:
    """What was received; `lakestream.*` alone."""

    port: int
    _received: list[Metric] = field(default_factory=list)

    def named(self, name: str, **tags: str) -> list[Metric]:
        """Return what came of one name, `lakestream.` in front of it, with these tags."""
        full = f"airflow.lakestream.{name}"
        found = [one for one in list(self._received) if one.name == full]
        return [one for one in found if tags.items() <= one.tags.items()]

    def sum(self, name: str, **tags: str) -> float:
        """Return the sum of a counter."""
        return sum(one.value for one in self.named(name, **tags))

    def last(self, name: str, **tags: str) -> float | None:
        """Return a gauge's last value."""
        found = self.named(name, **tags)
        return found[-1].value if found else None

    def wait(self, name: str, **tags: str) -> Metric:
        """Return the first one that comes."""
        poll_until(lambda: bool(self.named(name, **tags)), f"a metric {name} with {tags}", 180)
        return self.named(name, **tags)[0]

    @property
    def names(self) -> set[str]:
        """Every name that came, without `lakestream.`."""
        return {one.name.removeprefix("airflow.lakestream.") for one in list(self._received)}

    def take(self, datagram: bytes) -> None:
        """Keep what is ours of a datagram."""
        for text in datagram.decode().splitlines():
            if text.startswith("airflow.lakestream."):
                self._received.append(Metric.parse(text))


@pytest.fixture
def statsd(monkeypatch: pytest.MonkeyPatch) -> Iterator[StatsD]:
    """Give a server, and tell the Airflow processes that a test starts to send to it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(0.1)
        given, ended = StatsD(server.getsockname()[1]), threading.Event()

        def serve() -> None:
            while not ended.is_set():
                try:
                    given.take(server.recv(65_536))
                except TimeoutError:
                    continue

        settings: dict[str, Any] = {"ON": "True", "HOST": "127.0.0.1", "PORT": given.port, "INFLUXDB_ENABLED": "True"}
        for name, value in settings.items():
            monkeypatch.setenv(f"AIRFLOW__METRICS__STATSD_{name}", str(value))
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield given
        finally:
            ended.set()
            thread.join()
