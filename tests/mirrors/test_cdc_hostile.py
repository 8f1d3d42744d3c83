"""Hostile databases: random schemas, random changes of them and of their rows, mirrors that are killed meanwhile."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dev.services.connect import Connect
from dev.services.kafka import Kafka
from dev.services.postgres import Postgres
from tests.support.hostile.database import Database
from tests.support.hostile.events import Extract
from tests.support.hostile.mirrors import mirror_name
from tests.support.hostile.play import Play, as_table
from tests.support.hostile.readers import readers_of
from tests.support.lake import Lake, assert_files_are_whole
from tests.support.maintaining import maintained

# Of those that the play has left, so many are landed by the extract path, too.
MOST_RETIRED = 6

pytestmark = pytest.mark.integration


@pytest.fixture
def database(postgres: Postgres, connect: Connect, kafka: Kafka) -> Iterator[Database]:
    with postgres.connect() as sql:
        found = Database(sql, postgres, connect, kafka, f"h{uuid.uuid4().hex[:8]}")
        yield found
        found.end()


# A long play has no end in time.
@pytest.mark.timeout(0 if "LAKESTREAM_CDC_TRANSACTIONS" in os.environ else 1_500)
def test_mirrors_of_hostile_databases_have_their_rows_or_have_stopped_for_a_reason(
    lake: Lake, database: Database, spark: SparkSession, tmp_path: Path
) -> None:
    with readers_of(lake, spark, tmp_path / "readers") as readers:
        play = Play(
            int(os.environ.get("LAKESTREAM_CDC_SEED", "7")),
            database,
            lake,
            tmp_path,
            spark,
            readers,
            transactions=int(os.environ.get("LAKESTREAM_CDC_TRANSACTIONS", "150")),
            kills=int(os.environ.get("LAKESTREAM_CDC_KILLS", "2")),
        )
        play.run()
    extract = Extract(database.sql, lake, tmp_path, was_anew=len(database.connectors) > 1)
    for table in [*play.tables, *play.retired[:MOST_RETIRED]]:
        extract.look_at(table, is_there=table in play.tables)
    print(as_table({**play.figures, **{f"extract: {name}": count for name, count in extract.figures.items()}}))
    failures = [*play.failures, *extract.failures]
    assert not failures, "\n\n".join([play.again, *failures])
    assert play.figures["kills"] == play.kills
    # A table that was made after the last quiet moment has no mirror yet.
    names = [name for table in play.tables if lake.catalog().table_exists(name := mirror_name(table))]
    for file in lake.folder.glob("warehouse/**/*.*"):
        os.utime(file, (0, 0))
    maintained(lake, spark, *names, remove_orphans=True)
    for mirror in map(lake.table, names):
        assert set(mirror.refs()) == {"main"}
        assert_files_are_whole(mirror)
    assert extract.figures["last events"]
