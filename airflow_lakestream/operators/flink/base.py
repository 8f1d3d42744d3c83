"""Base of the operators with Flink jobs: the cluster, the state, the links."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

# No import of PyIceberg or Arrow at the top: Airflow parses DAG files again every half minute.
from airflow_lakestream.config.arguments import count, positive_seconds
from airflow_lakestream.config.literals import Check
from airflow_lakestream.config.setting import SettingTaker
from airflow_lakestream.core.policies import is_given
from airflow_lakestream.links import FlinkLink, TableLink, TopicLink, links_until_run
from airflow_lakestream.operators.arguments import documented, set_arguments, templated
from airflow_lakestream.operators.base import run_key
from airflow_lakestream.operators.supervised.operator import SupervisedOperator
from airflow_lakestream.stores.folders import is_object_store

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_lakestream.driver.driving import DriverSupervision
    from airflow_lakestream.flink.job_config import JobConfig
    from airflow_lakestream.triggers.flink_stream import FlinkStreamTrigger

_CHECKS: dict[str, Check] = {
    "checkpoint_interval": positive_seconds,
    "parallelism": partial(count, unit="subtasks"),
}


@documented(SettingTaker.FLINK)
class FlinkOperator(SupervisedOperator):
    """A job of Flink, supervised by a driver next to the worker.

    :param checkpoint_interval: time between two checkpoints (templated)
    :param parallelism: subtasks of the job; default: the cluster's (templated)
    :param driver_folder: folder of the drivers' logs; default: `$AIRFLOW_HOME/lakestream` (templated)
    :param flink_conn_id: connection of type `http`: the SQL Gateway's address, and `jobmanager_url` in its extra
        (templated)
    :param kwargs: arguments of `SupervisedOperator`
    """

    engine = "flink"
    driver_pages = ((FlinkLink(), "{url}"),)
    operator_extra_links = links_until_run(FlinkLink(), TopicLink(), TableLink())
    ui_color = "#f4c7d4"

    def __init__(
        self,
        *,
        checkpoint_interval: float | str = "60s",
        parallelism: int | str | None = None,
        driver_folder: str | None = None,
        kafka_conn_id: str = "kafka_default",
        iceberg_conn_id: str = "iceberg_default",
        flink_conn_id: str = "flink_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        set_arguments(self, FlinkOperator, locals(), _CHECKS)

    template_fields: Sequence[str] = (*templated(__init__), *SupervisedOperator.template_fields)

    @abstractmethod
    def configuration(self, owner: str) -> JobConfig:
        """Check all arguments, and return the driver's configuration. Raises InvalidArgument."""

    def new_supervisor(self, context: Context, wait: Callable[[float], None]) -> DriverSupervision:
        """Check all arguments, and return the supervision of the driver. Raises InvalidArgument."""
        from airflow_lakestream.operators.flink.set_up import build_supervision

        owner = run_key(context)
        return build_supervision(self, self.configuration(owner), owner, wait)

    def store_conn_id(self) -> str | None:
        """Return the connection of the object store with lease and checkpoints; None for a local path."""
        location = self.checkpoint_location
        return self.iceberg_conn_id if is_given(location) and is_object_store(str(location)) else None

    def new_trigger(self, **watched: Any) -> FlinkStreamTrigger:
        """Return the trigger for the driver."""
        from airflow_lakestream.triggers.flink_stream import FlinkStreamTrigger

        return FlinkStreamTrigger(flink_conn_id=self.flink_conn_id, **watched)
