"""`lakestream mirror resnapshot` in a process that dies in the middle of it."""

from __future__ import annotations

import os
from typing import Any

from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.run.resnapshot import MirrorResnapshot
from tests.support.lake import GROUP, Lake


def die_at(text: str, kind: str, lake: Lake, table: str, settings: dict[str, Any]) -> None:
    """Read a mirror anew, and die, as by SIGKILL, as soon as it says something with this text in it."""

    def say(told: str) -> None:
        if text in told:
            os._exit(9)

    work = MirrorResnapshot(table=table, consumer_group=GROUP, kafka=lake.kafka, report=say, **settings)
    work.run(DeltaStorage() if kind == "delta" else lake.catalog())
