"""Trigger that watches a Flink driver. The class must keep its path, which Airflow's database has for waiting tasks."""

from __future__ import annotations

from typing import Any

from airflow_lakestream.driver.supervisor import OnKill
from airflow_lakestream.hooks.flink import DEFAULT, FlinkHook
from airflow_lakestream.hooks.store import store_properties
from airflow_lakestream.triggers.driver import DriverTrigger


class FlinkStreamTrigger(DriverTrigger):
    """Watches a driver of Flink, see `DriverTrigger`.

    :param flink_conn_id: connection of the cluster, used to cancel the job of a killed driver.
    """

    engine = "flink"

    def __init__(self, flink_conn_id: str = DEFAULT, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.flink_conn_id = flink_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class, and the arguments to rebuild this trigger, without secrets."""
        path, arguments = super().serialize()
        return path, {**arguments, "flink_conn_id": self.flink_conn_id}

    def stop(self) -> str:
        """Stop the driver, and cancel the job of a killed driver; return the result in words."""
        result = super().stop()
        if self.on_kill_action != OnKill.KILL:
            return result
        # These import PyIceberg, which takes long: not while the triggerer loads this module.
        from airflow_lakestream.flink.job import cancel_noted
        from airflow_lakestream.flink.rest import FlinkAddress

        _, manager = FlinkHook(self.flink_conn_id).addresses()
        cancel_noted(self.checkpoint_location, store_properties(self.storage_conn_id) or {}, FlinkAddress(**manager))
        return f"{result}, and its job was canceled"
