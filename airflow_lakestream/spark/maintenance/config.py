"""Configuration of `maintain_iceberg`: a catalog, Spark's settings, and the works of `config.maintenance`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from airflow_lakestream.config.arguments import items
from airflow_lakestream.config.maintenance import MaintenanceSection
from airflow_lakestream.driver.lease_record import fingerprint_of
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.lakes import LakeCapability, lake_of
from airflow_lakestream.spark.apps import MAINTAIN_ICEBERG
from airflow_lakestream.spark.configuration import AppSettings
from airflow_lakestream.spark.lake_settings import catalog_settings, identity_of


@dataclass(frozen=True, kw_only=True)
class MaintenanceConfig(AppSettings):
    """The configuration of `maintain_iceberg`.

    :param maintenance: see `MaintenanceSection`.

    Raises InvalidArgument, which names the key, for settings that can't work.
    """

    app: str = MAINTAIN_ICEBERG
    maintenance: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.app != MAINTAIN_ICEBERG:
            raise InvalidArgument("app", f"{self.app!r} has another program.", f"This one is {MAINTAIN_ICEBERG!r}.")
        self.check_sections("maintenance")
        # Computed for their checks.
        _ = self.work, self.catalog_settings

    @cached_property
    def work(self) -> MaintenanceSection:
        """The work to do. Raises InvalidArgument."""
        for name in items("maintenance.tables", self.maintenance.get("tables")) or ():
            lake_of(name).require(LakeCapability.MAINTAIN, "maintenance.tables", name)
        section = MaintenanceSection.parse(self.maintenance)
        if section.retention is not None:
            remedy = "Let the worker do it: `lakestream maintain --retention`, or LakestreamMaintainOperator."
            raise InvalidArgument("maintenance.retention", "Spark's app removes no old rows.", remedy)
        if section.compact is not None and section.compact.parallelism > 1:
            remedy = "Leave it out: max-concurrent-file-group-rewrites of compact.options is Spark's."
            raise InvalidArgument("maintenance.compact.parallelism", "is for the worker.", remedy)
        return section

    @property
    def inputs(self) -> dict[str, str]:
        """The inputs that the lease's location keeps for ever."""
        return {"app": self.app, "catalog": self.catalog_name}

    @property
    def fingerprint(self) -> str:
        """A fingerprint, equal for two configurations if a driver may serve both."""
        catalog = identity_of(self.catalog_name, self.catalog_properties)
        return fingerprint_of({"maintenance": self.maintenance, "spark": self.spark, "catalog": catalog})

    @property
    def catalog_settings(self) -> dict[str, str]:
        """The settings of Spark's catalog. Raises InvalidArgument."""
        return catalog_settings(self.catalog_name, self.catalog_properties, self.spark)
