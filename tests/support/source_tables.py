"""A table of a real database with a mirror, and events of the table that are made by hand."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from airflow_lakestream.audit.result import AuditResult
from airflow_lakestream.audit.source_database import DatabaseAddress
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.run.source_audit import SourceAudit
from tests.support.lake import GROUP
from tests.support.mirror_lake import MirrorLake


@dataclass
class HandEvents:
    """Events of a table as Debezium writes them, in JSON without schemas."""

    source: str
    key: tuple[str, ...]
    place: int = 0

    def event(self, op: str, row: Mapping[str, Any], *, after_s: float = -3600) -> tuple[bytes, str]:
        """Return an event, and its record's key; its change is so many seconds after now."""
        self.place += 1
        names = ("db", "schema", "table") if self.source.count(".") == 2 else ("db", "table")
        place = {"lsn": self.place, "sequence": f'["{self.place}","{self.place}"]'}
        source = {**dict(zip(names, self.source.split("."), strict=True)), **place}
        source["ts_ms"] = int((time.time() + after_s) * 1000)
        before, after = (row, None) if op == "d" else (None, row)
        value = json.dumps({"before": before, "after": after, "source": source, "op": op}).encode()
        return value, json.dumps({name: row[name] for name in self.key})

    def events(self, op: str, rows: Iterable[Mapping[str, Any]]) -> tuple[list[bytes], list[str]]:
        """Return events of several rows, and the keys."""
        made = [self.event(op, row) for row in rows]
        return [value for value, _ in made], [key for _, key in made]


@contextmanager
def written_meanwhile(write: Callable[[], object]) -> Iterator[None]:
    """Let a table be written during the block, again and again."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(0.3):
            write()

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        try:
            yield
        finally:
            stop.set()
        done.result()


def audit_with(
    lake: MirrorLake, address: DatabaseAddress, landing: Mapping[str, Any] | None = None, *, patience: float = 60
) -> AuditResult:
    """Compare a mirror with its table."""
    look = lake_of(lake.name).part("audit")(table=lake.name, consumer_group=GROUP, full=True, kafka=lake.kafka)
    return SourceAudit(audit=look, address=address, landing=landing or {}, patience=patience).run(lake.catalog())


def faults_of(result: AuditResult) -> list[tuple[str, dict[str, str], tuple[str, ...]]]:
    """Return the wrong rows: fault, key, and columns."""
    return [(one.fault.value, dict(one.key), one.columns) for one in result.wrong]
