"""Waits for a driver of the local engine."""

from __future__ import annotations

from airflow_lakestream.triggers.driver import DriverTrigger


class LocalTrigger(DriverTrigger):
    """Watches a driver of the local engine, see `DriverTrigger`."""

    engine = "local"
