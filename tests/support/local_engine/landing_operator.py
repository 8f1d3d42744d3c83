"""The operator of an engine that is a plain process beside the worker: the least that an engine has to give."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_lakestream.operators.arguments import templated
from airflow_lakestream.operators.supervised.operator import SupervisedOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_lakestream.driver.driving import DriverSupervision
    from airflow_lakestream.triggers.driver import DriverTrigger

_APP = Path(__file__).with_name("app.py")


class LocalLandingOperator(SupervisedOperator):
    """Land a topic by a process beside the worker, which outlives the task.

    :param landing: arguments of a landing, see `ExtractConfig` (templated)
    :param pause: seconds between two looks at the topic; None: land what there is, and end (templated)
    :param driver_folder: where drivers have their logs (templated)
    """

    engine = "local"

    def __init__(
        self, *, landing: Mapping[str, Any], driver_folder: str, pause: float | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.landing = landing
        self.driver_folder = driver_folder
        self.pause = pause

    template_fields: Sequence[str] = (*templated(__init__), *SupervisedOperator.template_fields)

    def new_supervisor(self, context: Context, wait: Callable[[float], None]) -> DriverSupervision:
        """Return what finds or submits the driver."""
        from airflow_lakestream.driver.detached import DetachedBackend, DetachedJob
        from airflow_lakestream.driver.driver_folder import DriverConfig, new_folder
        from airflow_lakestream.driver.driving import DriverSupervision, StreamSpec
        from airflow_lakestream.driver.lease_record import fingerprint_of
        from airflow_lakestream.hooks.iceberg import IcebergHook
        from airflow_lakestream.hooks.kafka import KafkaHook
        from airflow_lakestream.operators.base import run_key

        location, owner = str(self.checkpoint_location), run_key(context)
        content = {"checkpoint_location": location, "landing": dict(self.stream_names()), "pause": self.pause}
        known = {"fingerprint": fingerprint_of(content), "inputs": {"topic": self.stream_names()["topic"]}}
        secret = {"kafka": KafkaHook().configuration(), "catalog": IcebergHook().properties()}
        config = DriverConfig({**content, **known, **secret, "owner": owner}, known["fingerprint"], known["inputs"])
        spec = StreamSpec(
            location, config.fingerprint, config.inputs, self.limits(), self.seconds_between_looks(), owner
        )

        def prepare() -> DetachedJob:
            folder = new_folder(Path(self.driver_folder), location)
            command = [sys.executable, str(_APP), "--config", str(config.write(folder))]
            environment = {name: value for name, value in os.environ.items() if "AIRFLOW" not in name}
            return DetachedJob(command, environment, folder)

        return DriverSupervision(spec, DetachedBackend(), prepare, wait)

    def stream_names(self) -> Mapping[str, Any]:
        """Return the landing's arguments."""
        return {"consumer_group": self.dag_id, **self.landing}

    def new_trigger(self, **watched: Any) -> DriverTrigger:
        """Return what watches the driver in the triggerer."""
        from tests.support.local_engine.trigger import LocalTrigger

        return LocalTrigger(**watched)
