"""Configuration of a landing by the extract path, validated on construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import pyarrow as pa
from pyiceberg.schema import Schema

from airflow_lakestream.config import arguments
from airflow_lakestream.config.checks import auditor_of
from airflow_lakestream.config.decoding import DecodingSettings
from airflow_lakestream.config.settings import SettingField, written
from airflow_lakestream.config.sql import SqlStatement
from airflow_lakestream.core.bad_records import USUAL, RejectLimit
from airflow_lakestream.core.checks import LandingChecks, RowChecker
from airflow_lakestream.core.landing.batch import RunLimits
from airflow_lakestream.core.landing.modes import IntervalMode, RangesMode, ResumeMode, RunMode
from airflow_lakestream.core.names import DEFAULT_METADATA, check_group
from airflow_lakestream.core.policies import (
    MaintainMode,
    ModeName,
    OnDataLoss,
    OnError,
    SchemaEvolution,
    SqlInput,
    StartOffset,
    TableFormat,
    Tombstones,
    UnknownFields,
    choose,
    is_given,
    landing_tombstones,
)
from airflow_lakestream.core.routing import NewTables, TableTemplate, check_topic_or_pattern, is_pattern
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.keys import KEY_COLUMN
from airflow_lakestream.decode.metadata import metadata_schema
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.fan_out.admission import FanOut
from airflow_lakestream.iceberg.fitness import check_properties
from airflow_lakestream.iceberg.table_properties import MAINTAIN
from airflow_lakestream.kafka.source import StartAt
from airflow_lakestream.lakes import LakeCapability, LakeFormat, lake_named
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.columns import to_timed_schema, with_rescued

_BELONGS_TO = {
    "interval_start": ModeName.INTERVAL,
    "interval_end": ModeName.INTERVAL,
    "ranges": ModeName.RANGES,
}


@dataclass(frozen=True, kw_only=True)
class StreamSettings:
    """Settings of a stream of any engine: source, table, start, losses, checks."""

    topic: str
    table: str
    consumer_group: str
    start_offset: SettingField[StartOffset] = SettingField(StartOffset.EARLIEST)
    start_timestamp: SettingField[int | None] = SettingField(None)
    max_rejected: SettingField[RejectLimit | None] = SettingField(None)
    partition_by: SettingField[tuple[str, ...] | None] = SettingField(None)
    table_properties: SettingField[Mapping[str, str]] = SettingField(None, arguments.properties)
    on_data_loss: SettingField[OnDataLoss] = SettingField(OnDataLoss.FAIL)
    checks: SettingField[LandingChecks | None] = SettingField(None)

    @property
    def start(self) -> StartAt:
        """Start of the group's first resume. Raises InvalidArgument."""
        if (self.start_offset is StartOffset.TIMESTAMP) != (self.start_timestamp is not None):
            raise InvalidArgument("start_timestamp", 'goes with start_offset="timestamp", and is needed there.')
        return StartAt(self.start_offset, self.start_timestamp)


@dataclass(frozen=True, kw_only=True)
class ExtractConfig(DecodingSettings, StreamSettings):
    """All settings of a landing by the extract path; `KafkaExtractOperator` explains each setting.

    Takes values as users and templates write them (numbers as text, durations as "60s"), and raises InvalidArgument
    naming the argument. Checks that need the topic or the table come later, when these are read.
    """

    table_format: str = TableFormat.ICEBERG
    mode: SettingField[ModeName] = SettingField(ModeName.RESUME)
    interval_start: SettingField[int | None] = SettingField(None)
    interval_end: SettingField[int | None] = SettingField(None)
    ranges: SettingField[RangesMode | None] = SettingField(None)
    replace: SettingField[bool] = SettingField(False)
    max_records: SettingField[int | None] = SettingField(None)
    max_batch_bytes: SettingField[int] = SettingField("256MiB")
    max_bytes_per_second: SettingField[int | None] = SettingField(None)
    checkpoint_interval: SettingField[float] = SettingField(60)
    poll_timeout: SettingField[float] = SettingField(30)
    idle_timeout: SettingField[float] = SettingField(0)
    schema_evolution: SettingField[SchemaEvolution] = SettingField(SchemaEvolution.NONE)
    on_error: SettingField[OnError] = SettingField(OnError.REJECT)
    tombstones: str | None = Tombstones.KEEP
    metadata_columns: Sequence[str] = DEFAULT_METADATA
    sort_order: SettingField[tuple[str, ...] | None] = SettingField(None)
    maintain: SettingField[MaintainMode | None] = SettingField(None)
    new_tables: SettingField[NewTables] = SettingField(NewTables.FAIL)
    max_tables: SettingField[int | None] = SettingField(100)
    home_table: str | None = None
    allow_group_overlap: SettingField[bool] = SettingField(False)
    parallelism: SettingField[int | None] = SettingField(None)

    def __post_init__(self) -> None:
        for one in fields(self):
            # Templates and files may yield a value of another type.
            object.__setattr__(self, one.name, arguments.as_text(one.name, str(one.type), getattr(self, one.name)))
        check_topic_or_pattern(self.topic)
        check_group(self.consumer_group)
        self._check_payload()
        self._check_replacement()
        self._check_limits()
        _ = self.fan_out, self.coverage, self.start, self.design, self.maintain_mode
        self.lake.check_design(self.table_design)
        _ = self.auditor
        _ = self.tombstone_policy

    @property
    def tombstone_policy(self) -> Tombstones:
        """Outcome of records without a value."""
        return landing_tombstones("tombstones", self.tombstones)

    @property
    def payload(self) -> PayloadFormats:
        """Formats of keys and values."""
        given = () if self._given_schema is None else [column.name for column in self._given_schema.fields]
        return replace(
            super().payload,
            refused_characters=self.lake.characters_refused,
            taken_columns=self.lake.columns_taken,
            given_columns=tuple(name for name in given if name != KEY_COLUMN),
        )

    def _check_payload(self) -> None:
        payload, schema = self.payload, self._given_schema
        if payload.registry is not None and not payload.uses_registry:
            problem = f"the format is {self.format!r}, whose records name no schema."
            raise InvalidArgument("schema_registry", problem, "Leave it out, or correct format.")
        payload.check_names()
        if payload.renamed and is_given(self.sql):
            raise InvalidArgument("rename_columns", "the statement in sql names the columns itself.", "Write AS in it.")
        if payload.times and is_given(self.sql) and choose(SqlInput, "sql_input", self.sql_input) is SqlInput.RAW:
            path, source = payload.times[0]
            problem = f"{source} has no effect on the column {path[0]!r}, which the statement in sql makes."
            remedy = (
                f"Leave it out of the schema ('{path[0]} timestamp'), and let the statement make the time from the "
            )
            raise InvalidArgument(
                "schema", problem, f"{remedy}field: make_timestamptz(microseconds), or timezone('Europe/Berlin', ...)."
            )
        if schema is not None:
            payload.check([column.name for column in schema.fields])
        self._check_schema_changes()

    def _check_schema_changes(self) -> None:
        design = self.design
        if design.grows and design.evolution is SchemaEvolution.NONE:
            raise InvalidArgument(
                "unknown_fields",
                '"evolve" adds columns to the table, and schema_evolution is "none".',
                'Set schema_evolution="add" or "widen"; or unknown_fields="rescue", which needs one column only.',
            )
        for argument, is_set in (
            ("schema_evolution", design.evolution is not SchemaEvolution.NONE),
            ("unknown_fields", design.rescues),
        ):
            if is_set and self.template.by_record:
                raise InvalidArgument(
                    argument,
                    f"'{getattr(self, argument)}' is not for {self.table!r}, a table that records choose: one commit "
                    "can't change the schemas of several tables.",
                    "Change these tables by hand, the home table with them.",
                )

    @property
    def statement(self) -> SqlStatement | None:
        """SQL statement for the records, or None."""
        return SqlStatement.parse(vars(self), self._given_schema, metadata_schema(self.metadata_columns))

    @property
    def _given_schema(self) -> Schema | None:
        return to_timed_schema(self.schema)[0] if is_given(self.schema) else None

    @property
    def template(self) -> TableTemplate:
        """Template of the table's name, with the topic's name in place as soon as the topic is known."""
        if LakeCapability.FAN_OUT not in self.lake.can:
            return TableTemplate(self.table, (self.lake.check_name(self.table),))
        template = TableTemplate.parse(self.table)
        return template if is_pattern(self.topic) else template.of_topic(self.topic)

    def of_topic(self, topic: str) -> ExtractConfig:
        """Return the configuration for a single topic of a regex, with the topic's name in the names of tables."""
        home = TableTemplate.parse(str(self.home_table)).of_topic(topic).text if is_given(self.home_table) else None
        return replace(self, topic=topic, table=self.template.of_topic(topic).text, home_table=home)

    @property
    def fan_out(self) -> FanOut | None:
        """Fan-out for records that choose a table, or None without a choice."""
        template = self.template
        if not template.by_record:
            if is_given(self.home_table):
                problem = f"goes with a table that records choose; {self.table!r} is not such a table."
                raise InvalidArgument("home_table", problem)
            return None
        home = TableTemplate.parse(str(self.home_table) if is_given(self.home_table) else "any.{topic}", "home_table")
        if home.by_record or (is_pattern(self.topic) and not home.by_topic):
            raise InvalidArgument(
                "home_table", f"{self.home_table!r}: each topic has one.", 'Write "lake.{topic}_home".'
            )
        decoding = (self.format, self.unknown_fields, *self.metadata_columns, *self.payload.further_settings)
        if self.statement is not None:
            decoding += (f"sql={self.statement.text}", f"sql_input={self.statement.input}")
        name = home.of_topic(self.topic).text if is_given(self.home_table) else ""
        if not is_pattern(self.topic):
            name = name or template.home(self.topic, self.consumer_group)
        return FanOut(self.topic, template, name, decoding, self.new_tables, self.max_tables or 100)

    @property
    def coverage(self) -> RunMode:
        """Mode of the run. The mode decides about the covered offsets."""
        mode = self.mode
        for argument, owner in _BELONGS_TO.items():
            if mode is not owner and is_given(getattr(self, argument)):
                raise InvalidArgument(argument, f'goes with mode="{owner}"; the mode is "{mode}".')
        if mode is not ModeName.RESUME and self.start_offset is not StartOffset.EARLIEST:
            raise InvalidArgument("start_offset", f'goes with mode="resume"; mode="{mode}" has its own begin.')
        if mode is ModeName.RANGES:
            if is_pattern(self.topic):
                raise InvalidArgument("ranges", "belong to one topic; the topic is a regex.", "Name the topic.")
            if self.ranges is None:
                raise InvalidArgument("ranges", 'is missing; mode="ranges" needs it.', "Write [[0, 100, 250]].")
            return self.ranges
        if mode is ModeName.INTERVAL:
            return self._by_interval()
        start = self.start_offset
        return ResumeMode(start_moves=start is StartOffset.LATEST, from_the_first=start is StartOffset.EARLIEST)

    def _check_replacement(self) -> None:
        """Refuse settings that the replacement of landed offsets contradicts. Raises InvalidArgument."""
        if not self.replace:
            return
        if self.template.by_record:
            raise InvalidArgument("replace", f"does not go with {self.table!r}, a table that records choose.")
        if self.mode is ModeName.RESUME:
            raise InvalidArgument("replace", 'goes with mode="interval" or "ranges", which set what to replace.')
        if self.max_records is not None:
            raise InvalidArgument("max_records", "can't limit a replacement, which is one snapshot.", "Leave it out.")

    def _by_interval(self) -> IntervalMode:
        start, end = self.interval_start, self.interval_end
        if start is None or end is None:
            missing = "interval_start" if start is None else "interval_end"
            raise InvalidArgument(missing, 'is missing; mode="interval" needs it.')
        if end <= start:
            given = [written(self, name) for name in ("interval_end", "interval_start")]
            raise InvalidArgument("interval_end", f"{given[0]} is not after {given[1]}.")
        return IntervalMode(start, end)

    def _check_limits(self) -> None:
        """Refuse limits that the mode, the topic or the policy contradicts. Raises InvalidArgument."""
        if self.idle_timeout and self.mode is not ModeName.RESUME:
            raise InvalidArgument("idle_timeout", 'goes with mode="resume": the other modes have their own end.')
        if self.idle_timeout and is_pattern(self.topic):
            raise InvalidArgument("idle_timeout", "can't follow the topics of a regex, which are landed in turn.")
        if self.max_rejected is not None and self.on_error is OnError.FAIL:
            problem = 'goes with on_error="reject" or "skip"; with "fail" the first bad record fails the run.'
            raise InvalidArgument("max_rejected", problem)
        if self.max_bytes_per_second is not None and (self.parallelism or 1) > 1:
            problem = f"{self.parallelism} processes do not share a limit of max_bytes_per_second."
            raise InvalidArgument("parallelism", problem, "Leave one of both out.")

    @property
    def limits(self) -> RunLimits:
        """Limits of the run: for each commit, and for the end."""
        return RunLimits(
            max_records=self.max_records,
            max_batch_bytes=self.max_batch_bytes,
            checkpoint_interval=self.checkpoint_interval,
            idle_timeout=self.idle_timeout,
            max_rejected=self.max_rejected or USUAL,
        )

    @property
    def auditor(self) -> RowChecker | None:
        """Auditor of the rows before the commit, or None without checks. Raises InvalidArgument."""
        return auditor_of({**vars(self), "table": self.template.text, "table_format": self.lake.format})

    @property
    def processes(self) -> int | None:
        """Number of reading processes; None to choose a number by the processors."""
        return self.parallelism if self.max_bytes_per_second is None else 1

    @property
    def maintain_mode(self) -> MaintainMode | None:
        """Whether the run compacts the table; None if the table's property decides."""
        mode = self.maintain
        wanted, argument = mode or self.table_properties.get(MAINTAIN), "maintain"
        if wanted != MaintainMode.AUTO:
            return mode
        if mode is None:
            argument = "table_properties"
        self.lake.require(LakeCapability.COMPACT, argument, self.table)
        if self.template.by_record:
            problem = f"a run does not compact {self.table!r}, tables that records choose."
            raise InvalidArgument(argument, problem, "Use LakestreamMaintainOperator.")
        return mode

    @property
    def lake(self) -> LakeFormat:
        """The format of the table."""
        return lake_named("table_format", self.table_format)

    @property
    def table_design(self) -> TableDesign:
        """Design of the table itself; subclasses may write files by another design."""
        return self.design

    @property
    def decoded(self) -> pa.Schema | None:
        """Columns of decoded records, or None if these are the table's own columns.

        Here always None; `FrameConfig` has other columns.
        """
        return None

    @property
    def design(self) -> TableDesign:
        """Design for creating a missing table, and for checking an existing table."""
        rescues, payload = self.unknown_fields == UnknownFields.RESCUE, self._given_schema
        check_properties(self.table_properties)
        design = TableDesign(
            metadata=metadata_schema(self.metadata_columns),
            schema=with_rescued(payload) if rescues and payload is not None else payload,
            partition_by=self.partition_by,
            sort_order=self.sort_order,
            properties=self.table_properties,
            evolution=self.schema_evolution,
            rescues=rescues,
            grows=self.unknown_fields == UnknownFields.EVOLVE,
            incoming=partial(self.payload.newest_columns, self.topic),
        )
        if (sql := self.statement) is None:
            return design
        blamed = "schema" if sql.takes_given_schema else "sql"
        return replace(design, schema=sql.schema, argument=blamed, notes=sql.properties(self.consumer_group))
