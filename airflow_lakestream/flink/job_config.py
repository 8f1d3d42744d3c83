"""Configuration common to all jobs of Flink, given to the driver in a private file."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from airflow_lakestream.config import arguments
from airflow_lakestream.config.settings import SettingField, written
from airflow_lakestream.driver.lease_record import fingerprint_of
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.flink import statements
from airflow_lakestream.flink.rest import FlinkAddress
from airflow_lakestream.spark.configuration import AppSettings
from airflow_lakestream.spark.lake_settings import identity_of

_NUMBERS = ("checkpoint_interval", "publish_interval", "parallelism")


@dataclass(frozen=True, kw_only=True)
class JobConfig(AppSettings):
    """The Flink cluster of a job, and the location of the job's state.

    :param kafka: librdkafka settings; may hold secrets.
    :param gateway: fields of the SQL Gateway's `FlinkAddress`; may hold secrets.
    :param manager: fields of the JobManager's `FlinkAddress`; may hold secrets.

    Raises InvalidArgument, which names the key, for settings that can't work.
    """

    kafka: Mapping[str, Any] = field(default_factory=dict)
    gateway: Mapping[str, str]
    manager: Mapping[str, str]
    checkpoint_location: str
    checkpoint_interval: SettingField[float] = SettingField(60.0, arguments.positive_seconds)
    parallelism: SettingField[int | None] = SettingField(None, partial(arguments.count, unit="subtasks"))

    def __post_init__(self) -> None:
        self.check_sections("kafka", "gateway", "manager")
        if str(self.checkpoint_location).startswith("s3n:"):
            raise InvalidArgument("checkpoint_location", "Flink does not support s3n://.", "Write s3://bucket/path.")

    def check_catalog(self) -> None:
        """Refuse a catalog unfit for Flink, before anything is created. Raises InvalidArgument."""
        if self.catalog_properties:
            statements.create_catalog(self.catalog_name, self.catalog_properties)

    @property
    @abstractmethod
    def job_name(self) -> str:
        """The job's name on Flink's dashboard."""

    @property
    @abstractmethod
    def program(self) -> str:
        """A fingerprint, equal for two configurations if a job of either does the same work."""

    @property
    def fingerprint(self) -> str:
        """A fingerprint, equal for two configurations if a driver may serve both."""
        settings = {setting.name: written(self, setting.name) for setting in fields(self)}
        # By their values: "60s" and 60 are the same time.
        settings |= {name: getattr(self, name) for name in _NUMBERS if name in settings}
        # Replaced by `places`, which have the addresses and no logins: a login may change.
        for name in ("kafka", "catalog", "gateway", "manager", "owner", "database", "registry"):
            settings.pop(name, None)
        return fingerprint_of({**settings, **self.places})

    @property
    def places(self) -> dict[str, Any]:
        """The identities of Kafka, catalog and Flink, without secrets."""
        return {
            "kafka": self.kafka.get("bootstrap.servers"),
            "catalog": identity_of(self.catalog_name, self.catalog_properties),
            "flink": [self.gateway.get("url"), self.manager.get("url")],
        }

    @property
    def gateway_address(self) -> FlinkAddress:
        """The address of the SQL Gateway."""
        return FlinkAddress(**self.gateway)

    @property
    def manager_address(self) -> FlinkAddress:
        """The address of the JobManager."""
        return FlinkAddress(**self.manager)
