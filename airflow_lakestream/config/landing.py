"""Configuration of a landing by the extract path, validated on construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema

from airflow_lakestream.config import arguments
from airflow_lakestream.config.checks import auditor_of
from airflow_lakestream.config.decoding import DecodingSettings
from airflow_lakestream.config.sql import SqlStatement
from airflow_lakestream.core.bad_records import USUAL, RejectLimit
from airflow_lakestream.core.checks import RowChecker
from airflow_lakestream.core.landing.batch import RunLimits
from airflow_lakestream.core.landing.modes import IntervalMode, ResumeMode, RunMode, parse_ranges
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
    seconds,
    size_in_bytes,
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
    start_offset: str = StartOffset.EARLIEST
    start_timestamp: str | int | datetime | None = None
    max_rejected: int | float | str | None = None
    partition_by: Sequence[str] | str | None = None
    table_properties: Mapping[str, str] = field(default_factory=dict)
    on_data_loss: str = OnDataLoss.FAIL
    checks: Mapping[str, Any] | None = None

    loss_policy = arguments.chosen(OnDataLoss, "on_data_loss")
    partitioning = arguments.ParsedSetting("partition_by", arguments.items)
    properties = arguments.ParsedSetting("table_properties", lambda _, value: arguments.properties(value))

    @cached_property
    def start(self) -> StartAt:
        """Start of the group's first resume."""
        offset = choose(StartOffset, "start_offset", self.start_offset)
        if (offset is StartOffset.TIMESTAMP) != is_given(self.start_timestamp):
            raise InvalidArgument("start_timestamp", 'goes with start_offset="timestamp", and is needed there.')
        if offset is not StartOffset.TIMESTAMP:
            return StartAt(offset)
        return StartAt(offset, arguments.milliseconds("start_timestamp", self.start_timestamp))


@dataclass(frozen=True, kw_only=True)
class ExtractConfig(DecodingSettings, StreamSettings):
    """All settings of a landing by the extract path; `KafkaExtractOperator` explains each setting.

    Takes values as users and templates write them (numbers as text, durations as "60s"), and raises InvalidArgument
    naming the argument. Checks that need the topic or the table come later, when these are read.
    """

    table_format: str = TableFormat.ICEBERG
    mode: str = ModeName.RESUME
    interval_start: str | int | datetime | None = None
    interval_end: str | int | datetime | None = None
    ranges: str | Sequence[Sequence[int]] | None = None
    replace: bool | str = False
    max_records: int | str | None = None
    max_batch_bytes: int | str = "256MiB"
    max_bytes_per_second: int | str | None = None
    checkpoint_interval: float | str = 60
    poll_timeout: float | str = 30
    idle_timeout: float | str = 0
    schema_evolution: str = SchemaEvolution.NONE
    on_error: str = OnError.REJECT
    tombstones: str | None = Tombstones.KEEP
    metadata_columns: Sequence[str] = DEFAULT_METADATA
    sort_order: Sequence[str] | str | None = None
    maintain: str | None = None
    new_tables: str = NewTables.FAIL
    max_tables: int | str = 100
    home_table: str | None = None
    allow_group_overlap: bool | str = False
    parallelism: int | str | None = None

    run_mode = arguments.chosen(ModeName, "mode")
    error_policy = arguments.chosen(OnError, "on_error")
    unknown_policy = arguments.chosen(UnknownFields, "unknown_fields")
    poll_seconds = arguments.ParsedSetting("poll_timeout", arguments.positive_seconds)
    overlaps = arguments.ParsedSetting("allow_group_overlap", arguments.flag)

    def __post_init__(self) -> None:
        for one in fields(self):
            # Templates and files may yield a value of another type.
            object.__setattr__(self, one.name, arguments.as_text(one.name, str(one.type), getattr(self, one.name)))
        check_topic_or_pattern(self.topic)
        check_group(self.consumer_group)
        self._check_payload()
        _ = self.fan_out, self.replaces, self.coverage, self.limits, self.start, self.design, self.poll_seconds
        _ = self.processes, self.overlaps, self.maintain_mode, self.loss_policy, self.error_policy
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
                    f"{getattr(self, argument)!r} is not for {self.table!r}, a table that records choose: one commit "
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
        new_tables = choose(NewTables, "new_tables", self.new_tables)
        max_tables = arguments.count("max_tables", self.max_tables)
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
        return FanOut(self.topic, template, name, decoding, new_tables, max_tables or 100)

    @property
    def coverage(self) -> RunMode:
        """Mode of the run. The mode decides about the covered offsets."""
        mode = self.run_mode
        for argument, owner in _BELONGS_TO.items():
            if mode is not owner and is_given(getattr(self, argument)):
                raise InvalidArgument(argument, f'goes with mode="{owner}"; the mode is "{mode}".')
        if mode is not ModeName.RESUME and self.start.offset is not StartOffset.EARLIEST:
            raise InvalidArgument("start_offset", f'goes with mode="resume"; mode="{mode}" has its own begin.')
        if mode is ModeName.RANGES:
            if is_pattern(self.topic):
                raise InvalidArgument("ranges", "belong to one topic; the topic is a regex.", "Name the topic.")
            return parse_ranges(arguments.range_list(self.ranges))
        if mode is ModeName.INTERVAL:
            return self._by_interval()
        start = self.start.offset
        return ResumeMode(start_moves=start is StartOffset.LATEST, from_the_first=start is StartOffset.EARLIEST)

    @property
    def replaces(self) -> bool:
        """Whether landed offsets are read again and replaced."""
        replaces = arguments.flag("replace", self.replace)
        if replaces and self.template.by_record:
            raise InvalidArgument("replace", f"does not go with {self.table!r}, a table that records choose.")
        if replaces and self.run_mode is ModeName.RESUME:
            raise InvalidArgument("replace", 'goes with mode="interval" or "ranges", which set what to replace.')
        if replaces and is_given(self.max_records):
            raise InvalidArgument("max_records", "can't limit a replacement, which is one snapshot.", "Leave it out.")
        return replaces

    def _by_interval(self) -> IntervalMode:
        for argument in ("interval_start", "interval_end"):
            if not is_given(getattr(self, argument)):
                raise InvalidArgument(argument, 'is missing; mode="interval" needs it.')
        start, end = (arguments.milliseconds(name, getattr(self, name)) for name in ("interval_start", "interval_end"))
        if end <= start:
            raise InvalidArgument("interval_end", f"{self.interval_end} is not after {self.interval_start}.")
        return IntervalMode(start, end)

    @property
    def limits(self) -> RunLimits:
        """Limits of the run: for each commit, and for the end."""
        idle_timeout = seconds("idle_timeout", self.idle_timeout)
        if idle_timeout and self.run_mode is not ModeName.RESUME:
            raise InvalidArgument("idle_timeout", 'goes with mode="resume": the other modes have their own end.')
        if idle_timeout and is_pattern(self.topic):
            raise InvalidArgument("idle_timeout", "can't follow the topics of a regex, which are landed in turn.")
        return RunLimits(
            max_records=arguments.count("max_records", self.max_records),
            max_batch_bytes=size_in_bytes("max_batch_bytes", self.max_batch_bytes),
            checkpoint_interval=seconds("checkpoint_interval", self.checkpoint_interval),
            idle_timeout=idle_timeout,
            max_rejected=self._max_rejected(),
        )

    def _max_rejected(self) -> RejectLimit:
        if not is_given(self.max_rejected):
            return USUAL
        if self.error_policy is OnError.FAIL:
            raise InvalidArgument(
                "max_rejected", 'goes with on_error="reject" or "skip"; with "fail" the first bad record fails the run.'
            )
        return arguments.reject_limit("max_rejected", self.max_rejected)

    @property
    def auditor(self) -> RowChecker | None:
        """Auditor of the rows before the commit, or None without checks. Raises InvalidArgument."""
        return auditor_of({**vars(self), "table": self.template.text, "table_format": self.lake.format})

    @property
    def bytes_per_second(self) -> int | None:
        """Most bytes to read in a second; None without a limit."""
        if not is_given(self.max_bytes_per_second):
            return None
        return size_in_bytes("max_bytes_per_second", self.max_bytes_per_second)

    @property
    def processes(self) -> int | None:
        """Number of reading processes; None to choose a number by the processors."""
        found = arguments.count("parallelism", self.parallelism, "processes")
        if self.bytes_per_second is not None and (found or 1) > 1:
            problem = f"{found} processes do not share a limit of max_bytes_per_second."
            raise InvalidArgument("parallelism", problem, "Leave one of both out.")
        return found if self.bytes_per_second is None else 1

    @property
    def maintain_mode(self) -> MaintainMode | None:
        """Whether the run compacts the table; None if the table's property decides."""
        mode = choose(MaintainMode, "maintain", self.maintain) if is_given(self.maintain) else None
        wanted, argument = mode or self.properties.get(MAINTAIN), "maintain"
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
        rescues, payload = self.unknown_policy is UnknownFields.RESCUE, self._given_schema
        check_properties(self.properties)
        design = TableDesign(
            metadata=metadata_schema(self.metadata_columns),
            schema=with_rescued(payload) if rescues and payload is not None else payload,
            partition_by=self.partitioning,
            sort_order=arguments.items("sort_order", self.sort_order),
            properties=self.properties,
            evolution=choose(SchemaEvolution, "schema_evolution", self.schema_evolution),
            rescues=rescues,
            grows=self.unknown_policy is UnknownFields.EVOLVE,
            incoming=partial(self.payload.newest_columns, self.topic),
        )
        if (sql := self.statement) is None:
            return design
        blamed = "schema" if sql.takes_given_schema else "sql"
        return replace(design, schema=sql.schema, argument=blamed, notes=sql.properties(self.consumer_group))
