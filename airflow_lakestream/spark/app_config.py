"""Configuration of a bundled Spark app that lands records, validated on construction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from functools import cached_property
from typing import Any, Self

import pyarrow as pa
from pyiceberg.schema import Schema

from airflow_lakestream.config import arguments
from airflow_lakestream.config.arguments import AVAILABLE_NOW as AVAILABLE_NOW
from airflow_lakestream.config.arguments import check_keys, problem_of
from airflow_lakestream.config.frames import FrameConfig
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.config.setting import SettingTaker
from airflow_lakestream.config.settings import refusal_of
from airflow_lakestream.core.policies import ModeName, is_given
from airflow_lakestream.driver.lease_record import fingerprint_of
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.lakes import LakeCapability, lake_of_app
from airflow_lakestream.registry.config import RegistryConfig
from airflow_lakestream.spark.apps import KAFKA_TO_DELTA, KAFKA_TO_ICEBERG, MIRROR_APPS, check_app
from airflow_lakestream.spark.configuration import AppSettings
from airflow_lakestream.spark.lake_settings import identity_of

# The apps that land records. Other apps have their own configurations.
LANDING_APPS = (KAFKA_TO_ICEBERG, KAFKA_TO_DELTA, *MIRROR_APPS)
# Keys that are left out of the fingerprint: they differ from one submit to the next, or `fingerprint` replaces them.
_NOT_IN_FINGERPRINT = ("kafka", "catalog", "storage", "owner", "run_id", "lease_location")
# Settings that only a query has.
_QUERY_SETTINGS = ("checkpoint_location", "max_batches", "max_offsets_per_trigger")


@dataclass(frozen=True, kw_only=True)
class AppConfig(AppSettings):
    """Configuration of an app that lands records.

    :param kafka: librdkafka settings, as in a Kafka connection of Airflow; may hold secrets.
    :param storage: for Delta apps, options of the table's store as delta-rs reads them; may hold secrets.
    :param landing: arguments of the landing; for kafka_to_iceberg, the arguments of `KafkaExtractOperator`.
    :param checkpoint_location: path or URI of the query's checkpoint; a query needs one.
    :param trigger: "available_now", or the time between two batches, such as "10 seconds".
    :param max_batches: the number of batches after which the query ends.
    :param max_offsets_per_trigger: most offsets in one batch.
    :param code: fingerprint of the function that `landing` names: another function makes another stream.
    :param run_id: for an interval or ranges: the same in each try of one run, so that a retry finds the earlier rows.

    Raises InvalidArgument, which names the key, for settings that can't work.
    """

    kafka: Mapping[str, Any]
    landing: Mapping[str, Any]
    checkpoint_location: str | None = None
    trigger: str = AVAILABLE_NOW
    max_batches: int | str | None = None
    max_offsets_per_trigger: int | str | None = None
    run_id: str = ""
    storage: Mapping[str, str] = field(default_factory=dict)
    code: str = ""

    def __post_init__(self) -> None:
        check_app(self.app)
        self.check_sections("kafka", "landing", "storage")
        if not self.kafka.get("bootstrap.servers"):
            raise InvalidArgument("kafka", "bootstrap.servers is missing.")
        if problem := problem_of(self.kafka):
            raise InvalidArgument("kafka", *problem)
        _ = self.seconds_between_batches, self.most_batches, self.most_offsets
        if self.app in LANDING_APPS:
            self._check_landing()

    def _check_landing(self) -> None:
        """Raise InvalidArgument for settings that do not fit: those of a query, or of a single landing."""
        extract = self.extract
        if self.is_query:
            if not is_given(self.checkpoint_location):
                raise InvalidArgument("checkpoint_location", "is missing; a query keeps its place there.")
            if str(self.checkpoint_location).startswith(("s3://", "s3n://")):
                raise InvalidArgument("checkpoint_location", "Spark needs s3a:// for S3.", "Write s3a://bucket/path.")
            if self.run_id:
                raise InvalidArgument("run_id", "is not for a query: each batch has its own.", "Leave it out.")
            if self.lease_location is not None:
                raise InvalidArgument("lease_location", "is not for a query: its lease is next to the checkpoint.")
            return
        for key in _QUERY_SETTINGS:
            if is_given(getattr(self, key)):
                problem = f'goes with landing.mode="resume"; the mode is "{extract.mode}", which is landed at once.'
                raise InvalidArgument(key, problem, "Leave it out.")
        if self.trigger != AVAILABLE_NOW:
            raise InvalidArgument("trigger", f"goes with a query; landing.mode is '{extract.mode}'.", "Leave it out.")

    # Parsed here and not on construction: file and fingerprint of a configuration keep values as the user wrote them.
    @cached_property
    def seconds_between_batches(self) -> float | None:
        """Seconds between the starts of two batches, or None for a query that ends."""
        return arguments.between_batches("trigger", self.trigger)

    @cached_property
    def most_batches(self) -> int | None:
        """The number of batches after which the query ends, or None without a limit."""
        return arguments.count("max_batches", self.max_batches, "batches")

    @cached_property
    def most_offsets(self) -> int | None:
        """The greatest number of offsets of a batch, or None without a limit."""
        return arguments.count("max_offsets_per_trigger", self.max_offsets_per_trigger, "offsets")

    @cached_property
    def extract(self) -> ExtractConfig:
        """Configuration of the landing. Raises InvalidArgument."""
        if self.storage:
            lake_of_app(self.app).require(LakeCapability.STORE, "storage")
        return landing_of(self.app, self.landing)

    @property
    def is_query(self) -> bool:
        """Whether a streaming query lands; otherwise an interval or ranges are landed at once."""
        return str(self.landing.get("mode", ModeName.RESUME)) == ModeName.RESUME

    @property
    def store_properties(self) -> dict[str, str]:
        """Properties of the store of lease, progress and checkpoint: the catalog's properties, or the Delta table's."""
        return dict(self.storage) if LakeCapability.STORE in lake_of_app(self.app).can else self.catalog_properties

    @property
    def inputs(self) -> dict[str, str]:
        """The inputs that a checkpoint keeps for ever: app, topic, table and consumer group."""
        return {
            "app": self.app,
            "topic": str(self.landing.get("topic", "")),
            "table": str(self.landing.get("table", "")),
            "group": str(self.landing.get("consumer_group", "")),
        }

    @property
    def fingerprint(self) -> str:
        """A fingerprint, equal for two configurations if a driver may serve both; a new password does not change it."""
        settings = {key: value for key, value in self.to_dict().items() if key not in _NOT_IN_FINGERPRINT}
        registry = self.landing.get("schema_registry")
        if registry is not None:
            address = registry.get("url") if isinstance(registry, dict) else getattr(registry, "url", registry)
            settings["landing"] = {**settings["landing"], "schema_registry": address}
        settings["kafka"] = {"bootstrap.servers": self.kafka.get("bootstrap.servers")}
        settings["catalog"] = identity_of(self.catalog_name, self.catalog_properties)
        return fingerprint_of(settings)

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """Read a configuration from a mapping. Raises InvalidArgument with the key."""
        needs_catalog = LakeCapability.CATALOG in lake_of_app(given.get("app")).can
        return super().parse(given if needs_catalog else {"catalog": {}, **given})

    @staticmethod
    def to_json(value: Any) -> Any:
        """Return the JSON form of a value whose type JSON does not have. Raises InvalidArgument without a form."""
        if isinstance(value, RegistryConfig):
            return {key: item for key, item in asdict(value).items() if item is not None}
        if isinstance(value, datetime):
            return value.isoformat()
        if isinstance(value, Schema | pa.Schema):
            remedy = 'Write it as text, such as "id bigint not null, name string".'
            raise InvalidArgument("landing.schema", "a schema object has no place in a file.", remedy)
        return AppSettings.to_json(value)


def landing_of(app: str, landing: Mapping[str, Any]) -> ExtractConfig:
    """Return the configuration of the landing of an app. Raises InvalidArgument.

    :param app: one of `LANDING_APPS`.
    :param landing: arguments of `KafkaExtractOperator`, or of `KafkaMirrorOperator` for a mirror.
    """
    config_class = MirrorConfig if app in MIRROR_APPS else FrameConfig
    table_format = lake_of_app(app).format
    if landing.get("table_format", table_format) != table_format:
        raise InvalidArgument("landing.table_format", f"{app} lands in tables of {table_format}.")
    check_keys("landing", landing, [setting.name for setting in fields(config_class)])
    for key in ("topic", "table", "consumer_group"):
        if not is_given(landing.get(key)):
            raise InvalidArgument(f"landing.{key}", "is missing.")
    for key, value in landing.items():
        if is_given(value) and (refusal := refusal_of(SettingTaker.SPARK, key, "landing.")):
            raise refusal
    return config_class(**{**landing, "table_format": table_format})
