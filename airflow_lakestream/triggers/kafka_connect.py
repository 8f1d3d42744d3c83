"""Trigger that watches a connector. The class must keep its path, which Airflow's database has for waiting tasks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from airflow_lakestream.connect.configuration import session_of
from airflow_lakestream.connect.connector import ConnectorKind, ConnectorSpec, OnKillConnector
from airflow_lakestream.connect.driving import stop_connector
from airflow_lakestream.connect.judging import ConnectorMemory, ConnectorWatch
from airflow_lakestream.connect.observer import ConnectorObserver
from airflow_lakestream.connect.publishing import head_of
from airflow_lakestream.driver.supervisor import DriverLook, SupervisionHistory
from airflow_lakestream.hooks.iceberg import IcebergHook
from airflow_lakestream.hooks.kafka import KafkaHook
from airflow_lakestream.hooks.kafka_connect import KafkaConnectHook
from airflow_lakestream.kafka.groups import KafkaGroups
from airflow_lakestream.metrics import tags_of
from airflow_lakestream.triggers.driver import DriverTrigger


class KafkaConnectTrigger(DriverTrigger):
    """Watches a connector, see `DriverTrigger`. Fires with "wait" for a due publication, since only a worker publishes.

    :param connect: the connector without secrets: `connector`, `kind`, `config` as far as looks need it, the ids of the
        connections, `publish_interval`, and for a sink with a ledger the arguments of `head_of`.
    :param handed_on: values that worker and trigger hand to each other, with `memory`, the fields of `ConnectorMemory`.
        The event has the newest memory.
    """

    engine = "connect"

    def __init__(self, *, connect: Mapping[str, Any], handed_on: Mapping[str, Any], **arguments: Any) -> None:
        super().__init__(**arguments)
        self.connect = dict(connect)
        self.handed_on = dict(handed_on)
        self._watch: ConnectorWatch | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class, and the arguments to rebuild this trigger, without secrets."""
        path, arguments = super().serialize()
        return path, {**arguments, "connect": self.connect, "handed_on": self.handed_on}

    def wants_worker(self, look: DriverLook) -> bool:
        """Return whether a publication is due; only a worker publishes."""
        assert self._watch is not None, "`run` has opened the watch"
        return self._watch.is_due(float(self.connect["publish_interval"]))

    def open_watch(self) -> Any:
        """Return the watch of the connector."""
        connect, limits = self.connect, self._limits()
        kafka = KafkaHook(connect["kafka_conn_id"]) if connect["kafka_conn_id"] else None
        spec = ConnectorSpec(
            name=connect["connector"],
            kind=ConnectorKind(connect["kind"]),
            config=connect["config"],
            limits=limits,
            poll_interval=self.poll_interval,
            publish_interval=float(connect["publish_interval"]),
            coordinator_group=connect["coordinator_group"],
        )
        head = None
        if connect["table"]:
            catalog = IcebergHook(connect["iceberg_conn_id"]).open_catalog()
            head = partial(head_of, catalog, connect["table"], connect["branch"])
        groups = None if kafka is None else KafkaGroups(kafka.configuration(), kafka.where)
        observer = ConnectorObserver(spec, KafkaConnectHook(connect["connect_conn_id"]).open_client(), groups, head)
        memory = ConnectorMemory.parse(self.handed_on["memory"])
        self._watch = ConnectorWatch(
            observer.look, limits, SupervisionHistory.parse(self.history), memory, session_of(spec.config)
        )
        return self._watch

    def stop(self) -> str:
        """Stop the connector; return the result in words."""
        client = KafkaConnectHook(self.connect["connect_conn_id"]).open_client()
        return stop_connector(client, self.connect["connector"], OnKillConnector(self.on_kill_action))

    def tags(self, look: DriverLook) -> dict[str, str]:
        """Return the tags of the measurements of a look."""
        # Airflow sets the trigger's task.
        stream = {name: self.connect.get(name) for name in ("topic", "table", "consumer_group")}
        return tags_of(getattr(self, "task_instance", None), stream, engine=self.engine)

    def event(self, look: DriverLook) -> dict[str, Any]:
        """Return the values of the event to fire after a look, with the newest memory."""
        assert self._watch is not None, "`run` has opened the watch"
        memory = self._watch.memory.to_dict()
        return {**super().event(look), "handed_on": {**self.handed_on, "memory": memory}}
