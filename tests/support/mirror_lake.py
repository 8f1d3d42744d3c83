"""A lake whose table is a mirror that the worker keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.cdc.merge.memory import SUFFIX
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.spark.apps import CDC_TO_DELTA, CDC_TO_ICEBERG
from dev.services.kafka import Kafka
from tests.support.cdc import Source
from tests.support.delta_lake import DeltaLake
from tests.support.delta_table import stray_files
from tests.support.lake import TABLE, Lake, assert_files_are_whole


class MirrorLake(Lake):
    """A mirror in an Iceberg table; `app` keeps the same one by Spark."""

    kind = MirrorConfig
    app = CDC_TO_ICEBERG
    # What `failing` meets first where rows are deleted: the commit to the mirror's memory.
    commits_before_main = 1

    def settings(self, topic: str, **config: Any) -> ExtractConfig:
        return super().settings(topic, **{"key": ["id"], **config})

    def assert_is(self, source: Source) -> None:
        """Assert that the mirror has the source's rows, each once."""
        found = self.scan().to_pylist()
        assert {row["id"]: row["total"] for row in found} == source.rows
        assert len(found) == len(source.rows)

    def assert_whole(self, *, leftovers_of_a_kill: bool = False) -> None:
        """Assert it of the memory of deleted rows, too."""
        super().assert_whole(leftovers_of_a_kill=leftovers_of_a_kill)
        if self.catalog().table_exists(TABLE + SUFFIX):
            assert_files_are_whole(self.table(TABLE + SUFFIX), leftovers_of_a_kill=leftovers_of_a_kill)


class DeltaMirrorLake(MirrorLake, DeltaLake):
    """A mirror in a Delta table."""

    app = CDC_TO_DELTA
    commits_before_main = 0

    def assert_whole(self, *, leftovers_of_a_kill: bool = False) -> None:
        DeltaLake.assert_whole(self, leftovers_of_a_kill=leftovers_of_a_kill)

    def stray(self) -> set[str]:
        memory = self.place + SUFFIX
        return super().stray() | (stray_files(memory) if Path(memory).exists() else set())


LAKES: dict[str, type[MirrorLake]] = {"iceberg": MirrorLake, "delta": DeltaMirrorLake}


@pytest.fixture(params=LAKES)
def mirror_lake(request: pytest.FixtureRequest, tmp_path: Path, kafka: Kafka) -> MirrorLake:
    """Give an empty lake of each format."""
    return LAKES[request.param](tmp_path, kafka.client_config())
