"""The mirrors of a play: which apps keep them, what they hold, and why one has stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_lakestream.cdc.stops import StopReason
from airflow_lakestream.core.policies import MergeMode
from airflow_lakestream.driver.progress import DriverProgress, read_progress
from airflow_lakestream.exceptions import LakestreamError
from airflow_lakestream.spark.app_config import AppConfig
from airflow_lakestream.spark.apps import CDC_TO_DELTA
from airflow_lakestream.spark.stream import kafka_to_iceberg
from tests.support.broker import poll_until
from tests.support.cdc import mirror_config
from tests.support.delta_table import live_files
from tests.support.hostile.oracle import rows_of
from tests.support.hostile.schema import HostileTable
from tests.support.lake import GROUP, Lake
from tests.support.spark import SETTINGS, start_app

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REASON = re.compile(rf"\[({'|'.join(StopReason)})\]\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Stop:
    """An app has ended by itself: for a reason of the list, or with an error that has none."""

    reason: StopReason | None
    text: str

    @classmethod
    def of(cls, text: str) -> Stop:
        found = _REASON.findall(text)
        return cls(StopReason(found[-1]) if found else None, text)

    def is_of(self, table: HostileTable) -> bool:
        """Tell whether the text names the table's mirror, or its topic."""
        names = [mirror_name(table), mirror_name(table).removeprefix("lake."), table.topic]
        names += [f"delta-{table.number}"] * table.delta
        return any(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", self.text) for name in names)


@dataclass
class App:
    """One app over some tables: all those of a play into Iceberg, one into Delta, or one that is told its key.

    `chance` draws the merge mode of each run: a table has deletes of one run and files that another has written anew.
    """

    tables: list[HostileTable]
    lake: Lake
    folder: Path
    is_delta: bool = False
    landing: dict[str, Any] = field(default_factory=dict)
    chance: Random = field(default_factory=lambda: Random(0))
    checkpoints: int = 0

    @property
    def checkpoint(self) -> Path:
        return self.folder / f"checkpoint-{self.checkpoints}"

    @property
    def progress(self) -> DriverProgress:
        return read_progress(str(self.checkpoint))

    def config(self, **settings: Any) -> AppConfig:
        topics = [one.topic for one in self.tables]
        if self.is_delta:
            landing = {"topic": topics[0], "table": self.place(self.tables[0]), "consumer_group": GROUP, **self.landing}
            given = {"app": CDC_TO_DELTA, "kafka": self.lake.kafka, "landing": landing, **settings}
            return AppConfig.parse({**given, "checkpoint_location": str(self.checkpoint)})
        # A checkpoint belongs to its topics: with others comes another, and the tables know what they have.
        topic = f"^({'|'.join(re.escape(one) for one in sorted(set(topics)))})$"
        # Small files are rewritten by `auto`: most deletes come of the other.
        mode = self.chance.choice([*MergeMode, *[MergeMode.MERGE_ON_READ] * 3]).value
        given = {"table": "lake.{topic}", "merge_mode": mode, **self.landing, **settings}
        config = mirror_config(self.lake, topic, self.folder, **given)
        return replace(config, checkpoint_location=str(self.checkpoint))

    def place(self, table: HostileTable) -> str:
        return str(self.folder / f"delta-{table.number}")

    def leave(self, table: HostileTable) -> None:
        """Mirror a table no more."""
        self.tables.remove(table)
        self.checkpoints += 1

    def join(self, table: HostileTable) -> None:
        self.tables.append(table)
        self.checkpoints += 1

    def run(self, spark: SparkSession) -> Stop | None:
        """Run to the end of the topics in this process; return why it has stopped before."""
        try:
            kafka_to_iceberg(self.config(), spark)
        except LakestreamError as e:
            return Stop.of(str(e))
        except Exception as e:  # noqa: BLE001  # a library's exception is a failure of the play, with its text
            return Stop(None, f"{type(e).__name__}: {e}")
        return None

    def start(self) -> subprocess.Popen[str]:
        """Start the program in a process of its own, in small batches."""
        settings = {**SETTINGS, "spark.local.dir": str(self.folder)}
        return start_app(
            self.config(spark=settings, trigger="200 milliseconds", max_offsets_per_trigger=60), self.folder
        )

    def kill_after(self, app: subprocess.Popen[str], before: DriverProgress, moves: int) -> None:
        """Kill the process group once it has moved so often, or has nothing more to do; one that has ended is left.

        :param before: what was known when the app was started; a move is a batch, or a step within one.
        """

        def is_due() -> bool:
            now = self.progress
            is_idle = now.batches > before.batches and now.newest is not None and not now.newest.lag
            return is_idle or now.moves >= before.moves + moves or app.poll() is not None

        poll_until(is_due, f"{moves} moves of the app", 240)
        if app.poll() is None:
            os.killpg(app.pid, signal.SIGKILL)
        app.wait()

    def found(self, table: HostileTable) -> pa.Table:
        """Return the rows of a mirror."""
        if not self.is_delta:
            return rows_of(self.lake.table(mirror_name(table)))
        place = self.place(table)
        paths = [Path(place, path) for path in live_files(place)]
        parts = [pq.read_table(path) for path in paths]
        return pa.concat_tables(parts, promote_options="default") if parts else pa.table({})


def mirror_name(table: HostileTable) -> str:
    """Return the name that `lake.{topic}` comes to."""
    return "lake." + re.sub(r"[^a-z0-9_]", "_", table.topic.lower())


def stopped_table(stop: Stop, tables: Sequence[HostileTable]) -> HostileTable | None:
    """Return the table whose mirror has stopped."""
    return next((one for one in sorted(tables, key=lambda one: -len(one.topic)) if stop.is_of(one)), None)
