"""`lakestream status` of a Delta table and a Spark checkpoint that are both on S3."""

from __future__ import annotations

import json
import uuid

import pytest

from airflow_lakestream.driver.lease import HeldLease
from airflow_lakestream.hooks.store import DeltaStorageHook
from dev.services.s3 import REGION, S3
from tests.support.broker import Producing
from tests.support.delta_lake import DELTA
from tests.support.delta_table import GROUP
from tests.support.lake import Lake, events
from tests.support.status import LONG, StatusCommand, landings, old

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("connections")]


@DELTA
def test_a_table_and_its_querys_checkpoint_on_s3_are_opened_by_one_connection(
    lake: Lake, old_topic: str, produce: Producing, status_after: StatusCommand, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = f"{s3.bucket('status')}/{uuid.uuid4().hex}"
    place, checkpoint = f"s3://{folder}/events", f"s3a://{folder}/checkpoint"
    extra = {"region_name": REGION, "endpoint_url": s3.url}
    key = {"conn_type": "aws", "login": s3.access_key, "password": s3.secret_key, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE_STORE", json.dumps(key))
    storage = DeltaStorageHook("lake_store").open_storage()
    produce(old_topic, 0, events(0, 0, 5), timestamps=old(5))
    lake.land(old_topic, catalog=storage, table=place)
    inputs = {"app": "kafka_to_delta", "topic": old_topic, "table": place, "group": GROUP}
    with HeldLease.take(checkpoint, "f", "a task", inputs=inputs, properties=storage.options):
        code, [stream] = status_after(LONG, "--checkpoint", checkpoint, "--storage-conn", "lake_store")
    assert (code, stream["state"], stream["engine"], stream["driver"]) == (0, "landing", "spark", "held")
    assert (stream["table"], landings(stream)) == (place, [0])
