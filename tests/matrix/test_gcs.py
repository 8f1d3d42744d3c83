"""The contract of stores in Google Cloud Storage, by fake-gcs-server with the conditional PUT that it lacks."""

from __future__ import annotations

import pytest

from airflow_lakestream.driver.driver_folder import StoreOverwrites
from airflow_lakestream.driver.lease import HeldLease, read_lease
from airflow_lakestream.onramp.doctor.finding import PartHealth
from airflow_lakestream.onramp.doctor.lake import check_store
from dev.stack import Stack
from tests.matrix.every_store import *  # noqa: F403  # pytest collects the tests here, for this store

STORE = "GCS"


def test_a_store_without_conditional_writes_is_refused(stack: Stack) -> None:
    careless = stack.up_gcs(careless=True)
    place, known = f"gs://{careless.bucket('careless')}/checkpoint", careless.properties()

    with pytest.raises(StoreOverwrites, match="two drivers could each hold the lease"):
        HeldLease.take(place, "f", "a test", properties=known)
    assert read_lease(place, known) is None

    [found] = check_store(place, known, read_only=False)
    assert (found.health, "could be created again" in found.text) == (PartHealth.WRONG, True)
