"""Mirrors of Maxwell's and Canal's documents on a real broker: by Spark, by the worker, and audited by their topic."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.run.mirror_audit import MirrorAudit
from airflow_lakestream.spark import readers
from tests.mirrors.test_upsert_spark import by_spark, by_worker
from tests.support.broker import Producing, Topics
from tests.support.delta_lake import DeltaLake
from tests.support.lake import GROUP, Lake

pytestmark = [pytest.mark.integration]

PARTITIONS = 2


class Database:
    """A table with rows by key, and the documents of its changes."""

    def __init__(self) -> None:
        self.rows: dict[int, str] = {}
        self._chance, self._place = random.Random(5), 0

    def changes(self, count: int) -> list[tuple[int | None, int | None, str]]:
        """Return changes: the key before, the key after, and the value; the rows follow."""
        found = list[tuple[int | None, int | None, str]]()
        for number in range(count):
            key, other = self._chance.randrange(300), self._chance.randrange(300)
            old = key if key in self.rows else None
            new: int | None = key
            if old is not None and self._chance.random() < 0.3:
                new = None if other in self.rows else other
            text = self.rows.pop(key, "")
            text = f"v{number}" if new is not None else text
            if new is not None:
                self.rows[new] = text
            found.append((old, new, text))
        return found

    def by_maxwell(self, count: int) -> list[tuple[int, str]]:
        """Return documents with their partitions, by the new key's hash; each has a position in the log."""
        found = []
        for old, new, text in self.changes(count):
            self._place += 100
            row = {"id": old if new is None else new, "text": text}
            kind = "insert" if old is None else "delete" if new is None else "update"
            document = {"database": "shop", "table": "orders", "type": kind, "ts": 1_800_000_000 + self._place // 100}
            document |= {"xid": 1, "commit": True, "position": f"bin.000007:{self._place}", "data": row}
            if kind == "update":
                document["old"] = {"text": "before"} | ({} if old == new else {"id": old})
            found.append((row["id"] % PARTITIONS, json.dumps(document)))
        return found

    def by_canal(self, count: int) -> list[str]:
        """Return documents, each with the changes of one kind that follow each other."""
        found, some = list[str](), self.changes(count)
        kinds = ["INSERT" if old is None else "DELETE" if new is None else "UPDATE" for old, new, _ in some]
        start = 0
        for end in range(1, count + 1):
            if end < count and kinds[end] == kinds[start]:
                continue
            own, kind, start = some[start:end], kinds[start], end
            data = [{"id": str(old if new is None else new), "text": text} for old, new, text in own]
            olds = [{"id": str(old), "text": "before"} for old, _, _ in own] if kind == "UPDATE" else None
            document = {"data": data, "old": olds, "database": "shop", "table": "orders", "pkNames": ["id"]}
            document |= {"type": kind, "isDdl": False, "es": 1_800_000_000_000, "ts": 1, "sql": "", "id": 1, "gtid": ""}
            found.append(json.dumps(document))
        return found


def keyed(document: str) -> str:
    """Return Maxwell's key of a record."""
    found = json.loads(document)
    return json.dumps({"database": found["database"], "table": found["table"], "pk.id": found["data"]["id"]})


@pytest.mark.parametrize("lake", ["iceberg", "delta"], indirect=True)
def test_spark_and_the_worker_follow_documents_in_turn_and_the_audit_finds_no_fault(
    lake: Lake, topic: Topics, produce: Producing, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "LEAST_BYTES", 1)
    databases = {"maxwell": Database(), "canal": Database()}
    topics = {"maxwell": topic(PARTITIONS), "canal": topic(1)}

    def landing(envelope: str) -> dict[str, Any]:
        own = {"topic": topics[envelope], "table": f"{lake.name}_{envelope}", "consumer_group": GROUP}
        return own | {"envelope": envelope, "schema": "id bigint, text string"}

    def write() -> None:
        sent = databases["maxwell"].by_maxwell(400)
        for partition in range(PARTITIONS):
            own = [document for number, document in sent if number == partition]
            produce(topics["maxwell"], partition, own, keys=[keyed(one) for one in own])
        produce(topics["canal"], 0, databases["canal"].by_canal(400))

    for run in (by_spark, by_worker, by_spark):
        write()
        for envelope, database in databases.items():
            run(lake, landing(envelope), spark)
            found = lake.scan(f"_{envelope}").to_pylist()
            assert {row["id"]: row["text"] for row in found} == database.rows
            assert len(found) == len(database.rows)
    for envelope in databases:
        table = landing(envelope)["table"]
        look = lake_of(table).part("audit")(table=table, consumer_group=GROUP, full=True, kafka=lake.kafka)
        tables: Any = DeltaStorage() if isinstance(lake, DeltaLake) else lake.catalog()
        result = MirrorAudit(audit=look, landing={"schema": "id bigint, text string"}).run(tables)
        assert (result.verdict, result.wrong, result.blind) == (AuditVerdict.CLEAN, [], [])
