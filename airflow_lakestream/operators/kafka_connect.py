"""KafkaConnectOperator: a connector of Kafka Connect, applied once and watched from Airflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_lakestream.config.arguments import positive_seconds, proven_share
from airflow_lakestream.config.checks import auditor_of

# No import of PyIceberg, Arrow or Kafka's client at the top: Airflow parses DAG files again every half minute.
from airflow_lakestream.config.setting import Check, SettingTaker
from airflow_lakestream.connect.configuration import SESSION, as_text, complete_config, refuse_literal_secrets
from airflow_lakestream.connect.connector import (
    ConnectorFailed,
    ConnectorGaveUp,
    ConnectorKind,
    ConnectorSpec,
    OnKillConnector,
)
from airflow_lakestream.core.policies import choose, is_given, is_literal
from airflow_lakestream.driver.supervisor import SupervisionDecision
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError
from airflow_lakestream.links import TableLink, TopicLink, links_until_run
from airflow_lakestream.operators.arguments import documented, set_arguments, templated
from airflow_lakestream.operators.base import run_key
from airflow_lakestream.operators.supervised.operator import SupervisedOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_lakestream.connect.driving import ConnectorSupervision
    from airflow_lakestream.triggers.kafka_connect import KafkaConnectTrigger

# Default of `stall_timeout`, in seconds, for a connector without a ledger, whose commit interval is unknown.
_STALL_S = 1_800.0
# Settings of the connector that a look in the triggerer needs; others stay out of Airflow's database.
_TRIGGER_SETTINGS = ("topics", "consumer.override.group.id", "value.converter", SESSION)


@documented(SettingTaker.CONNECT)
class KafkaConnectOperator(SupervisedOperator):
    """Run a connector on Kafka Connect, and keep the connector's tasks running and moving.

    Creates a missing connector, adopts an existing one, and sends a configuration only if it differs: after any
    configuration Connect restarts all tasks. Restarts failed tasks. For Iceberg's sink it publishes the branch that the
    sink writes: files and ledger are added to the table's main branch in one commit. Ends well when somebody stops the
    connector. The worker's death leaves the connector running, and the retry adopts it: give the task retries.

    Returns, and puts on the event of each outlet asset, a report of what all tries published: `batches` (publications),
    `read`, `rows`, `skipped`, `ranges` as [partition, from, until], `lag`, `snapshot_ids`, `restarts`.

    Raises AirflowFailException if only a change of input helps, and errors that Airflow retries otherwise.

    .. seealso:: docs/connect.md

    :param connector: the connector's name in Connect; two tasks with the same name supervise one connector (templated)
    :param config: the connector's configuration, without literal secrets: use the workers' config providers (templated)
    :param kind: `"iceberg_sink"`, published with a ledger; `"sink"` and `"source"`, supervised without (templated)
    :param connect_conn_id: connection of type `http`: the workers' host (several, divided by commas) and port, schema
        `https`, login and password; `ca_file` and `timeout` in the extra (templated)
    :param kafka_conn_id: connection of type `kafka`, for lag and offsets; None for a source. Without a ledger,
        None leaves stalls unwatched (templated)
    :param publish_interval: time between two publications, by default also between two commits of the sink (templated)
    :param stall_timeout: running tasks with unread records that neither read nor commit for that long are
        restarted; default: two commits of the sink with their time-outs, else half an hour (templated)
    :param on_kill_action: action on the connector after a person's clear or "mark failed": `"stop"`, `"pause"` or
        `"leave"` (templated)
    :param kwargs: of `SupervisedOperator`: restarts, time-outs, deferring; `checkpoint_location`, `stop_timeout` and
        `healthy_after` among them belong to drivers, and the first two are refused
    """

    engine = "connect"
    on_kill_actions = OnKillConnector
    place = "connector"
    template_fields_renderers = {"config": "json", "checks": "json"}
    operator_extra_links = links_until_run(TopicLink(), TableLink())
    ui_color = "#d3e4f4"

    # The supervision's memory from an earlier process of the task.
    _handed_on: Mapping[str, Any] = {}

    def __init__(
        self,
        *,
        connector: str,
        config: Mapping[str, Any],
        kind: str = ConnectorKind.ICEBERG_SINK.value,
        connect_conn_id: str = "kafka_connect_default",
        kafka_conn_id: str | None = "kafka_default",
        iceberg_conn_id: str = "iceberg_default",
        consumer_group: str | None = None,
        publish_interval: float | str = "60s",
        checks: Mapping[str, Any] | None = None,
        prove: float | str = "all",
        stall_timeout: float | str | None = None,
        on_kill_action: str = OnKillConnector.STOP.value,
        **kwargs: Any,
    ) -> None:
        for name in ("checkpoint_location", "stop_timeout"):
            if name in kwargs:
                raise InvalidArgument(name, "belongs to drivers with checkpoints; Connect keeps a connector's place.")
        super().__init__(stall_timeout=stall_timeout, on_kill_action=on_kill_action, **kwargs)
        # Here, before Airflow stores a DAG with a secret anywhere.
        refuse_literal_secrets(config)
        checks_of_literals: dict[str, Check] = {"kind": partial(choose, ConnectorKind), **self._checks()}
        set_arguments(self, KafkaConnectOperator, {**locals(), "config": dict(config)}, checks_of_literals)
        if all(map(is_literal, (connector, self.config, kind, iceberg_conn_id, publish_interval))):
            self.spec()

    template_fields = tuple(dict.fromkeys((*templated(__init__), *SupervisedOperator.template_fields)))

    def spec(self) -> ConnectorSpec:
        """Check the arguments, and return the specification of the connector.

        The configuration of Iceberg's sink is completed. The limits depend on the sink's commits. Raises
        InvalidArgument.
        """
        if not is_given(self.connector):
            raise InvalidArgument("connector", "is missing: Connect knows a connector by its name.")
        kind, config = choose(ConnectorKind, "kind", self.kind), as_text(self.config)
        refuse_literal_secrets(config)
        interval = positive_seconds("publish_interval", self.publish_interval)
        sink = None
        if kind is ConnectorKind.ICEBERG_SINK:
            sink = complete_config(str(self.connector), config, str(self.iceberg_conn_id), interval)
            config = dict(sink.config)
        elif is_given(self.checks):
            problem = f"go with kind={ConnectorKind.ICEBERG_SINK.value!r}: only this kind has a branch to publish."
            raise InvalidArgument("checks", problem, "Leave them out.")
        elif not config.get("connector.class"):
            raise InvalidArgument("config", "connector.class is missing.", "Set it: it is the connector's Java class.")
        limits = self.limits()
        usual_stall = sink.commit_bound if sink else _STALL_S
        stall = usual_stall if limits.stall_timeout is None else limits.stall_timeout
        return ConnectorSpec(
            name=str(self.connector),
            kind=kind,
            config=config,
            limits=replace(limits, stall_timeout=stall, stop_timeout=None),
            poll_interval=self.seconds_between_looks(),
            publish_interval=interval,
            sink=sink,
            coordinator_group=sink.coordinator_group if sink else "",
        )

    def new_supervisor(self, context: Context, wait: Callable[[float], None]) -> ConnectorSupervision:
        """Check all arguments, and return the supervision of the connector. Raises InvalidArgument."""
        from airflow_lakestream.connect.driving import ConnectorSupervision
        from airflow_lakestream.connect.publishing import BranchPublisher
        from airflow_lakestream.hooks.iceberg import IcebergHook
        from airflow_lakestream.hooks.kafka import KafkaHook
        from airflow_lakestream.hooks.kafka_connect import KafkaConnectHook
        from airflow_lakestream.kafka.groups import KafkaGroups

        spec = self.spec()
        client = KafkaConnectHook(self.connect_conn_id).open_client()
        groups, publisher = None, None
        if spec.kind is not ConnectorKind.SOURCE and is_given(self.kafka_conn_id):
            hook = KafkaHook(str(self.kafka_conn_id))
            kafka = hook.configuration()
            groups = KafkaGroups(kafka, hook.where)
            if spec.sink is not None:
                catalog = IcebergHook(self.iceberg_conn_id).open_catalog()
                auditor = auditor_of({"checks": self.checks})
                run_id, group = run_key(context), self.group()
                share = proven_share("prove", self.prove)
                publisher = BranchPublisher(spec.sink, catalog, kafka, hook.where, group, run_id, auditor, share)
        elif spec.sink is not None:
            raise InvalidArgument("kafka_conn_id", "is None, but the sink's start is set and checked in Kafka.")
        return ConnectorSupervision(spec, client, groups, publisher, wait, self._handed_on)

    def stream_names(self) -> Mapping[str, Any]:
        """Return topic, table and group of a sink with a ledger."""
        sink = self._supervision().spec.sink
        return {"topic": sink.topic, "table": sink.table, "consumer_group": self.group()} if sink else {}

    def _supervision(self) -> ConnectorSupervision:
        """Return the supervision that `new_supervisor` has made for this task."""
        from airflow_lakestream.connect.driving import ConnectorSupervision

        assert isinstance(self._supervisor, ConnectorSupervision), "`new_supervisor` makes a ConnectorSupervision"
        return self._supervisor

    def group(self) -> str:
        """Return the name of the ledger."""
        return str(self.consumer_group) if is_given(self.consumer_group) else self.dag_id

    def new_trigger(self, **watched: Any) -> KafkaConnectTrigger:
        """Return the trigger for the connector."""
        from airflow_lakestream.triggers.kafka_connect import KafkaConnectTrigger

        supervision = self._supervision()
        connect = self._trigger_arguments(supervision.spec)
        return KafkaConnectTrigger(**watched, connect=connect, handed_on=supervision.to_hand_on())

    def _trigger_arguments(self, spec: ConnectorSpec) -> dict[str, Any]:
        """Return the argument `connect` of `KafkaConnectTrigger`, without secrets."""
        sink = spec.sink
        return {
            "connector": spec.name,
            "kind": spec.kind.value,
            "config": {key: spec.config[key] for key in _TRIGGER_SETTINGS if key in spec.config},
            "connect_conn_id": self.connect_conn_id,
            "kafka_conn_id": self.kafka_conn_id if spec.kind is not ConnectorKind.SOURCE else None,
            "iceberg_conn_id": self.iceberg_conn_id if sink else None,
            "publish_interval": spec.publish_interval,
            "coordinator_group": spec.coordinator_group,
            "topic": sink.topic if sink else None,
            "table": sink.table if sink else None,
            "branch": sink.branch if sink else None,
            "consumer_group": self.group() if sink else None,
        }

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Go on after the trigger's event: publish, report, restart, or give up."""
        self._handed_on = event["handed_on"]
        return super().execute_complete(context, event)

    def give_up_error(self, location: str, decision: SupervisionDecision) -> LakestreamError:
        """Return the error for giving up a connector.

        ConnectorFailed for a final failure; otherwise ConnectorAtDamage at a damaged batch, or else ConnectorGaveUp,
        which Airflow retries.
        """
        if decision.terminal:
            return ConnectorFailed(location, decision.reason)
        at_damage = self._supervision().at_damage()
        return at_damage or ConnectorGaveUp(location, decision.reason, decision.history.restarts)
