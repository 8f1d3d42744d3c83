"""Parts of a task that supervises a connector, built from the operator's arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_lakestream.config.arguments import proven_share
from airflow_lakestream.config.checks import auditor_of
from airflow_lakestream.connect.configuration import SESSION
from airflow_lakestream.connect.connector import ConnectorKind, ConnectorSpec
from airflow_lakestream.connect.driving import ConnectorSupervision
from airflow_lakestream.connect.publishing import BranchPublisher
from airflow_lakestream.core.policies import is_given
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.hooks.iceberg import IcebergHook
from airflow_lakestream.hooks.kafka import KafkaHook
from airflow_lakestream.hooks.kafka_connect import KafkaConnectHook
from airflow_lakestream.kafka.groups import KafkaGroups
from airflow_lakestream.operators.base import run_key

if TYPE_CHECKING:
    from airflow_lakestream.operators.kafka_connect import KafkaConnectOperator

# Part of the configuration that a look in the triggerer needs; the rest stays out of Airflow's database.
_LOOKED_AT = ("topics", "consumer.override.group.id", "value.converter", SESSION)


def build_supervision(
    operator: KafkaConnectOperator, context: Any, wait: Callable[[float], None], handed_on: Mapping[str, Any]
) -> ConnectorSupervision:
    """Check all arguments, and return the supervision of the connector.

    :param wait: waits for some seconds, and raises an error after a signal.
    :param handed_on: values from the trigger's event; empty in a new task.

    Raises InvalidArgument.
    """
    spec = operator.spec()
    client = KafkaConnectHook(operator.connect_conn_id).open_client()
    groups, publisher = None, None
    if spec.kind is not ConnectorKind.SOURCE and is_given(operator.kafka_conn_id):
        hook = KafkaHook(str(operator.kafka_conn_id))
        kafka = hook.configuration()
        groups = KafkaGroups(kafka, hook.where)
        if spec.sink is not None:
            catalog = IcebergHook(operator.iceberg_conn_id).open_catalog()
            auditor = auditor_of({"checks": operator.checks})
            run_id, group = run_key(context), operator.group()
            share = proven_share("prove", operator.prove)
            publisher = BranchPublisher(spec.sink, catalog, kafka, hook.where, group, run_id, auditor, share)
    elif spec.sink is not None:
        raise InvalidArgument("kafka_conn_id", "is None, but the sink's start is set and checked in Kafka.")
    return ConnectorSupervision(spec, client, groups, publisher, wait, handed_on)


def watched_by(operator: KafkaConnectOperator, spec: ConnectorSpec) -> dict[str, Any]:
    """Return the argument `connect` of `KafkaConnectTrigger`, without secrets."""
    sink = spec.sink
    return {
        "connector": spec.name,
        "kind": spec.kind.value,
        "config": {key: spec.config[key] for key in _LOOKED_AT if key in spec.config},
        "connect_conn_id": operator.connect_conn_id,
        "kafka_conn_id": operator.kafka_conn_id if spec.kind is not ConnectorKind.SOURCE else None,
        "iceberg_conn_id": operator.iceberg_conn_id if sink else None,
        "publish_interval": spec.publish_interval,
        "coordinator_group": spec.coordinator_group,
        "topic": sink.topic if sink else None,
        "table": sink.table if sink else None,
        "branch": sink.branch if sink else None,
        "consumer_group": operator.group() if sink else None,
    }
