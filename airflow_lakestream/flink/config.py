"""Configuration of a landing by Flink, validated on construction, and given to the driver in a private file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from pyiceberg.schema import Schema

from airflow_lakestream.config import arguments
from airflow_lakestream.config.checks import auditor_of
from airflow_lakestream.config.landing import ExtractConfig, StreamSettings
from airflow_lakestream.config.settings import SettingField
from airflow_lakestream.core.checks import RowChecker
from airflow_lakestream.core.names import check_branch, check_group, check_table_name, check_topic
from airflow_lakestream.core.policies import OF_INPUT, OnError, SqlInput, choose, is_given
from airflow_lakestream.decode.metadata import metadata_schema
from airflow_lakestream.driver.lease_record import fingerprint_of
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.flink.formats.known import check_format
from airflow_lakestream.flink.formats.reading import json_reading, raw_reading, type_of
from airflow_lakestream.flink.job_config import JobConfig
from airflow_lakestream.flink.statements import METADATA
from airflow_lakestream.lakes import LakeCapability, lake_of
from airflow_lakestream.registry.config import RegistryConfig
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.ddl import parse_schema
from airflow_lakestream.transform.to_flink.translate import translated
from airflow_lakestream.transform.transform import RAW_SCHEMA

APP = "flink_sql"


@dataclass(frozen=True, kw_only=True)
class FlinkConfig(StreamSettings, JobConfig):
    """Arguments of the landing and of the Flink cluster. See `FlinkSqlOperator` for the landing's arguments.

    :param registry: the fields of `RegistryConfig`, for `format="avro"`; may hold secrets.
    :param on_error: the treatment of bad records that Flink leaves to the extract; empty: Flink leaves none.

    Raises InvalidArgument, which names the key, for settings that can't work.
    """

    app: str = APP
    columns: str = ""
    sql: str | None = None
    sql_input: str = SqlInput.RAW
    schema: str | None = None
    format: str = "json"
    registry: Mapping[str, Any] = field(default_factory=dict)
    branch: str = ""
    publish_interval: SettingField[float] = SettingField(60.0)
    prove: SettingField[float] = SettingField(arguments.ALL)
    on_error: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sections("registry")
        self.check_catalog()
        check_topic(self.topic)
        lake_of(self.table).require(LakeCapability.PUBLISH, "table", self.table)
        check_table_name(self.table)
        check_group(self.consumer_group)
        check_format("format", self.format)
        if self.leaves_to_extract and self.prove < 1:
            problem = 'must be "all" with on_error or {{ input }}: a row that is not compared may be wrong.'
            raise InvalidArgument("prove", problem, "Leave it out; or land columns without on_error.")
        if self.is_common:
            # Computed here for their errors only.
            _ = self.extract, self.select
        else:
            self._check_columns_and_own_sql()
        if not self.reads_texts and not self.finds_columns:
            self._check_columns()
        check_branch("branch", self.on_branch)
        if is_given(self.schema) and not is_given(self.sql):
            raise InvalidArgument("schema", "goes with sql: without it the table has the columns.", "Leave it out.")
        _ = self.start, self.design, self.auditor

    def _check_columns_and_own_sql(self) -> None:
        """Check arguments without a statement of the common SQL subset. Raises InvalidArgument.

        The columns are needed, unless the extract finds them. Arguments of the common SQL subset are refused, and
        `on_error` is refused with Flink's own SQL, which the extract can't run.
        """
        if not is_given(self.columns) and not self.finds_columns:
            problem = "is missing: Flink needs the columns of the records."
            remedy = (
                'Write them, such as "id bigint, name string"; or give on_error, and the first records define them.'
            )
            raise InvalidArgument("columns", problem, remedy)
        if choose(SqlInput, "sql_input", self.sql_input) is not SqlInput.RAW:
            raise InvalidArgument("sql_input", "goes with sql that reads from {{ input }}.")
        if not self.on_error:
            if self.max_rejected is not None:
                raise InvalidArgument("max_rejected", "goes with on_error.")
        elif is_given(self.sql):
            problem = "does not go with Flink's own SQL, which the extract can't run."
            raise InvalidArgument("on_error", problem, "Let the statement read from {{ input }}.")
        else:
            _ = self.extract

    def _check_columns(self) -> None:
        """Refuse columns that the format can never fill. Raises InvalidArgument."""
        columns = self.source_columns
        if self.format == "json":
            json_reading(columns)
        elif self.format == "raw":
            raw_reading(columns)
        else:
            for column in columns.fields:
                type_of(column.field_type, column.name)
            _check_registry(self.registry_config)

    @property
    def is_common(self) -> bool:
        """Whether the statement is in the common SQL subset of all engines."""
        return is_given(self.sql) and OF_INPUT.search(str(self.sql)) is not None

    @property
    def reads_texts(self) -> bool:
        """Whether the statement reads keys and values as text."""
        return self.is_common and self.sql_input == SqlInput.RAW

    @property
    def leaves_to_extract(self) -> bool:
        """Whether the driver lands records by the extract's code if Flink's rows might differ."""
        return self.is_common or bool(self.on_error)

    @property
    def finds_columns(self) -> bool:
        """Whether the columns are the table's, which the extract creates from the registry or the first records."""
        return not is_given(self.columns) and not is_given(self.sql) and bool(self.on_error)

    @property
    def read_as(self) -> str:
        """Flink's format for the records; `sql` for texts to be parsed by a statement."""
        return "sql" if self.reads_texts else self.format

    @cached_property
    def select(self) -> str | None:
        """The SELECT from `source` for Flink; None to land all columns. Raises InvalidArgument.

        A statement of the common SQL subset is translated for Flink; Flink's own SQL stays as it is.
        """
        if not self.is_common:
            return self.sql
        statement = self.extract.statement
        assert statement is not None, "is_common requires a statement"
        columns = statement.transform.input_schema
        if self.reads_texts or columns is None:
            return translated(str(self.sql), RAW_SCHEMA, raw=True)
        return translated(str(self.sql), columns, raw=False)

    @cached_property
    def extract(self) -> ExtractConfig:
        """The configuration of an extract with the same rows. Raises InvalidArgument."""
        decodes = not self.reads_texts
        return ExtractConfig(
            **{setting.name: getattr(self, setting.name) for setting in fields(StreamSettings)},
            format=self.format,
            schema_registry=self.registry_config if decodes and self.registry else None,
            schema=(self.columns if decodes else self.schema) or None,
            sql=self.sql if self.is_common else None,
            sql_input=self.sql_input,
            on_error=choose(OnError, "on_error", self.on_error or OnError.REJECT),
        )

    @property
    def registry_config(self) -> RegistryConfig:
        """The registry of the topic's schemas. Raises InvalidArgument without a registry."""
        if not self.registry:
            problem = f'is missing: records of format="{self.format}" name schemas that it has.'
            raise InvalidArgument("schema_registry", problem, "Give a URL or the id of a connection.")
        return RegistryConfig.parse(self.registry)

    @cached_property
    def source_columns(self) -> Schema:
        """The columns of the records."""
        return parse_schema(self.columns, "columns")

    @property
    def design(self) -> TableDesign:
        """The table's design: for a new table, and for the check of an existing table."""
        if self.leaves_to_extract:
            return self.extract.table_design
        payload = parse_schema(str(self.schema)) if is_given(self.schema) else None
        return TableDesign(
            metadata=metadata_schema(METADATA),
            schema=payload if is_given(self.sql) else self.source_columns,
            partition_by=self.partition_by,
            properties=self.table_properties,
            argument="schema" if is_given(self.sql) else "columns",
        )

    @property
    def auditor(self) -> RowChecker | None:
        """The checker of rows before a publication; None without checks."""
        return auditor_of(vars(self))

    @property
    def on_branch(self) -> str:
        """The branch of Flink's rows."""
        return self.branch or f"flink-{self.consumer_group}"

    @property
    def job_name(self) -> str:
        """The job's name on Flink's dashboard."""
        return f"lakestream {self.topic} to {self.table} ({self.consumer_group})"

    @property
    def inputs(self) -> dict[str, str]:
        """The inputs that the checkpoint keeps for ever."""
        return {"app": APP, "topic": self.topic, "table": self.table, "group": self.consumer_group}

    @property
    def places(self) -> dict[str, Any]:
        """The identities of Kafka, catalog, Flink and registry, without secrets."""
        places = super().places
        return {**places, "registry": self.registry["url"]} if self.registry else places

    @property
    def program(self) -> str:
        """A fingerprint, equal for two configurations if a job may continue from the state of either."""
        job = {name: getattr(self, name) for name in ("topic", "table", "columns", "sql", "format", "parallelism")}
        if self.is_common:
            # A new version of the package may translate the same statement differently.
            job |= {"sql_input": self.sql_input, "select": self.select}
        return fingerprint_of({**job, "branch": self.on_branch, **self.places})


def _check_registry(registry: RegistryConfig) -> None:
    """Refuse a registry with a client's certificate: Flink would show the key in errors. Raises InvalidArgument."""
    for name in ("cert_file", "key_file", "key_password"):
        if getattr(registry, name):
            raise InvalidArgument(
                f"schema_registry.{name}",
                "is not for Flink, which writes the options of a table into its errors and log, the key among them.",
                "Log in by a name and a password, or a token.",
            )
