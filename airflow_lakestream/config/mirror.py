"""Configuration of a mirror: arguments of a landing, and the mirror's own arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any

from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.events.decoder import EventPayload
from airflow_lakestream.cdc.events.documents import DocumentPayload
from airflow_lakestream.cdc.events.names import ColumnNames
from airflow_lakestream.cdc.events.records import RecordPayload
from airflow_lakestream.cdc.events.sequence import check_sequence
from airflow_lakestream.cdc.events.statement import RecordStatement
from airflow_lakestream.cdc.rows import RowStrategy
from airflow_lakestream.config import arguments
from airflow_lakestream.config.checks import check_mirror, checks_of_mirror
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.config.setting import RecordEnvelope, RecordMerge, SettingTaker
from airflow_lakestream.config.settings import SettingField, mirror_taker, refusal_of, written
from airflow_lakestream.config.sql import SqlStatement
from airflow_lakestream.core.checks import LandingChecks
from airflow_lakestream.core.policies import (
    UNAVAILABLE,
    DocumentEnvelope,
    KeyFormat,
    MaintainMode,
    MergeMode,
    OnError,
    OutOfRange,
    SchemaEvolution,
    Tombstones,
    UnknownFields,
    ValueEnvelope,
    ValueFormat,
    choose,
    is_given,
)
from airflow_lakestream.core.routing import check_mirror_name
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.metadata import metadata_schema
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.table_properties import MAINTAIN
from airflow_lakestream.lakes import LakeCapability
from airflow_lakestream.tables.design import TableDesign


@dataclass(frozen=True, kw_only=True)
class MirrorConfig(ExtractConfig):
    """Arguments of `ExtractConfig` fit for a mirror, and the mirror's own arguments.

    With `envelope=None` the mirror is one of plain records: the newest record of each key is a row. `config.settings`
    documents each argument.
    """

    envelope: str | None = ValueEnvelope.DEBEZIUM
    tombstones: str | None = None
    on_error: SettingField[OnError] = SettingField(OnError.FAIL)
    metadata_columns: Sequence[str] = ("partition", "offset")
    checks: SettingField[LandingChecks | None] = SettingField(None, checks_of_mirror)
    key: SettingField[tuple[str, ...] | None] = SettingField(None)
    soft_delete: SettingField[bool] = SettingField(False)
    out_of_range: SettingField[OutOfRange] = SettingField(OutOfRange.REJECT)
    rename_columns: Mapping[str, str] | str | None = None
    source_tables: SettingField[str | None] = SettingField(None)
    merge_mode: SettingField[MergeMode] = SettingField(MergeMode.AUTO)
    sequence_by: SettingField[tuple[str, ...] | None] = SettingField(None)
    delete_when: SettingField[str | None] = SettingField(None)
    insert_only: SettingField[bool] = SettingField(False)
    within: SettingField[timedelta | None] = SettingField(None)
    merge: SettingField[RecordMerge] = SettingField(RecordMerge.REPLACE)
    history: SettingField[bool] = SettingField(False)
    history_columns: SettingField[tuple[str, ...] | None] = SettingField(None)

    def __post_init__(self) -> None:
        self._check_taken()
        check_mirror({one.name: written(self, one.name) for one in fields(self)}, of_records=self.is_of_records)
        if self.is_of_records:
            self._check_records()
        elif (
            self.out_of_range is not OutOfRange.REJECT
            and ValueEnvelope.CONNECT not in super().payload.format_row.envelopes
        ):
            problem = f'{self.out_of_range!r} goes with format="json", not with {self.format!r}.'
            raise InvalidArgument(
                "out_of_range", problem, 'Leave it out, or make the column a string with schema="...".'
            )
        object.__setattr__(self, "metadata_columns", self._metadata)
        super().__post_init__()
        check_mirror_name(self.template)
        if self.merge_mode is MergeMode.MERGE_ON_READ:
            self.lake.require(LakeCapability.MERGE_ON_READ, "merge_mode", self.table)
        self.names.check_argument()

    def _check_taken(self) -> None:
        """Refuse arguments that are not for a mirror of this kind of records. Raises InvalidArgument."""
        taker = mirror_taker(self.envelope)
        if not self.is_of_records and choose(RecordEnvelope, "envelope", self.envelope) is RecordEnvelope.CONNECT:
            problem = f"{self.envelope!r} is not for a mirror: it follows Debezium's events, or plain records."
            raise InvalidArgument("envelope", problem, 'Set "debezium", or None.')
        for one in fields(self):
            given: Any = getattr(self, one.name)
            # A copy of a configuration gets the columns that the original has set itself.
            is_ours = one.name == "metadata_columns" and tuple(given) == self._metadata
            is_usual = one.name == "tombstones" and taker is SettingTaker.MIRROR and given == Tombstones.SKIP
            is_set = given != one.default and (is_given(given) or one.default is not None)
            if is_set and not is_ours and not is_usual and (refused := refusal_of(taker, one.name)):
                raise refused

    def _check_records(self) -> None:
        """Refuse arguments that plain records contradict. Raises InvalidArgument."""
        statement = self.statement
        if self.format == ValueFormat.RAW and statement is None:
            raise InvalidArgument("format", "'raw' has no fields for the columns of a key.", "Name another format.")
        if self.format == ValueFormat.CSV and not is_given(self.schema):
            problem = "is missing: fields of CSV have no names."
            raise InvalidArgument("schema", problem, 'Name the columns in order: "id bigint, name string".')
        for path in self._nested.values():
            if not all(path):
                raise InvalidArgument("key", f"{'.'.join(path)!r} is no path of a nested field.", 'Write "user.id".')
        if twice := [name for name in self._key if self._key.count(name) > 1]:
            raise InvalidArgument("key", f"the column {twice[0]} is there twice.", "Name each column once.")
        for name in () if statement is None else statement.schema.column_names:
            if (reason := self.names.problem(name)) is not None:
                raise InvalidArgument("sql", f"it makes a column {name!r}: {reason}.", "Give it another name: AS.")
        by = self.sequence_by or ()
        check_sequence(by)
        if self.within is not None and len(by) > 1:
            problem = f"{', '.join(by)}: within goes by one column, the time of a record."
            raise InvalidArgument("sequence_by", problem, "Name that column alone.")
        if both := sorted({*by} & {*self._key}):
            problem = f"{both[0]} is part of the key, and so the same in all records of a row."
            raise InvalidArgument("sequence_by", problem, "Name a column that rises with each change of a row.")

    @property
    def maintain_mode(self) -> MaintainMode | None:
        """None: a mirror's runs compact nothing. Raises InvalidArgument for a property that asks for it."""
        if self.table_properties.get(MAINTAIN) == MaintainMode.AUTO:
            problem = f"{MAINTAIN} is not for a mirror: a merge changes files all over the table."
            raise InvalidArgument("table_properties", problem, "Use LakestreamMaintainOperator.")
        return None

    @property
    def is_of_records(self) -> bool:
        """Whether the mirror is one of plain records, not of a database's events."""
        return mirror_taker(self.envelope) is SettingTaker.UPSERT

    @property
    def is_flattened(self) -> bool:
        """Whether plain records are Debezium's events, flattened by `ExtractNewRecordState`."""
        return self.envelope == RecordEnvelope.FLATTENED

    @property
    def program(self) -> DocumentEnvelope | None:
        """The program whose documents are the events, or None for Debezium's events and for plain records."""
        return DocumentEnvelope(str(self.envelope)) if self.envelope in [*DocumentEnvelope] else None

    @property
    def value_envelope(self) -> str | None:
        """The envelope of values; of flattened events, Connect's JSON may be around the row."""
        if self.is_flattened:
            return ValueEnvelope.CONNECT if self.format == ValueFormat.JSON else None
        return ValueEnvelope.DEBEZIUM if self.program is not None else super().value_envelope

    @property
    def event_placeholder(self) -> str:
        """The placeholder in whole events; a plain record with one is bad."""
        return UNAVAILABLE if self.is_of_records else super().event_placeholder

    @property
    def statement(self) -> SqlStatement | None:
        """SQL statement for plain records, or None. Kafka keys are decoded without it."""
        names = metadata_schema(self.metadata_columns)
        return SqlStatement.parse({**vars(self), "key_format": None}, self._given_schema, names)

    @property
    def tombstone_policy(self) -> Tombstones:
        """Outcome of records without a value."""
        if not is_given(self.tombstones):
            deletes = self.is_of_records and not self.insert_only
            return Tombstones.DELETE if deletes else Tombstones.SKIP
        found = choose(Tombstones, "tombstones", self.tombstones)
        if found is Tombstones.KEEP:
            problem = "'keep' makes a row of NULLs, and a row of a table by key has a key."
            raise InvalidArgument("tombstones", problem, 'Use "delete", "skip" or "reject".')
        return found

    @property
    def _key(self) -> tuple[str, ...]:
        """The columns of the key; empty if not given."""
        given = self.key or ()
        return tuple(one.replace(".", "_") for one in given) if self.is_of_records else given

    @property
    def _nested(self) -> Mapping[str, tuple[str, ...]]:
        """The paths of the columns of the key that are nested fields of plain records."""
        given = (self.key or ()) if self.is_of_records else ()
        return {one.replace(".", "_"): tuple(one.split(".")) for one in given if "." in one}

    @property
    def _strategy(self) -> RowStrategy:
        return RowStrategy.of(soft_delete=self.soft_delete, history=self.history, by_columns=bool(self.history_columns))

    @property
    def _metadata(self) -> tuple[str, ...]:
        names_key = self.key is not None or self.program is not None
        return ("partition", "offset") if names_key else ("partition", "offset", "key")

    @property
    def payload(self) -> EventPayload | RecordPayload:
        """Formats of change events, or of plain records."""
        formats = super().payload
        if formats.times:
            whose = (
                "a table by key takes times as they are" if self.is_of_records else "a mirror has the database's types"
            )
            problem = f"column {formats.times[0][0][0]!r}: {whose}, and can't convert them."
            raise InvalidArgument("schema", problem, f"Leave '{formats.times[0][1]}' out.")
        common: dict[str, Any] = {
            "format": formats.format,
            "registry": formats.registry,
            "writer_schemas": formats.writer_schemas,
            "timestamps_finer": formats.timestamps_finer,
            "names": self.names,
            "key": self._key,
        }
        if self.is_of_records:
            return self._of_records(formats, common)
        common |= {"envelope": formats.envelope, "out_of_range": self.out_of_range}
        common |= {"unavailable_placeholder": formats.unavailable_placeholder, "stops": self.on_error is OnError.FAIL}
        return EventPayload(**common) if self.program is None else DocumentPayload(**common, program=self.program)

    def _of_records(self, formats: PayloadFormats, common: Mapping[str, Any]) -> RecordPayload:
        """Return the payload settings of a mirror of plain records, which are rows and not change events."""
        statement = self.statement
        keys_from_registry = formats.registry is not None and formats.format_row.kind is not None
        keeps_unknown = formats.format_row.keeps_unknown and self.value_envelope is None
        return RecordPayload(
            **common,
            nested=self._nested,
            unknown_fields=UnknownFields.EVOLVE if keeps_unknown and statement is None else UnknownFields.IGNORE,
            envelope=self.value_envelope,
            is_flattened=self.is_flattened,
            placeholder=self.unavailable_placeholder,
            csv_delimiter=formats.csv_delimiter,
            renamed=formats.renamed,
            refused_characters=formats.refused_characters,
            taken_columns=formats.taken_columns,
            given_columns=formats.given_columns,
            format_of_keys=formats.key_format or (formats.format if keys_from_registry else KeyFormat.JSON),
            sequence_by=self.sequence_by or (),
            statement=None if statement is None else RecordStatement(statement.transform, self._metadata),
            delete_when=self.delete_when or "",
            # A history's versions begin and end at the record's times; flattened events have a time of their own.
            needs_timestamp=self.within is not None or (self._strategy.keeps_versions and not self.is_flattened),
            keeps_absent=self.merge is RecordMerge.GIVEN,
        )

    @property
    def names(self) -> ColumnNames:
        """Names of the mirror's columns."""
        return ColumnNames(
            self.table,
            arguments.names("rename_columns", self.rename_columns),
            with_key=self.key is None and self.program is None,
            rows=self._strategy,
            lake=self.lake,
            of_records=self.is_of_records,
            nested=tuple(name.lower() for name in self._nested),
        )

    @property
    def mirror(self) -> MirrorDesign:
        """Design of the mirror, for creating the mirror or for checking an existing mirror."""
        table, statement = super().design, self.statement
        if statement is not None and not statement.takes_given_schema:
            # Rows have the statement's columns: another statement may add some.
            table = replace(table, schema=None, argument="schema")
        return MirrorDesign(
            table,
            key=self._key or None,
            rows=self._strategy,
            out_of_range=self.out_of_range,
            renamed=self.names.renamed,
            source_tables=self.source_tables,
            merge_mode=self.merge_mode,
            is_key_given=self.key is not None,
            auditor=self.auditor,
            sequence_by=(self.sequence_by or ()) if self.is_of_records else None,
            insert_only=self.insert_only,
            within=None if self.within is None else self.within // timedelta(microseconds=1),
            keeps_absent=self.merge is RecordMerge.GIVEN,
            is_flattened=self.is_flattened,
            history_columns=self.history_columns or (),
            program=self.program,
        )

    @property
    def design(self) -> TableDesign:
        """Design for files of events, with all columns of the events; the table's own is `table_design`."""
        return TableDesign(metadata=super().design.metadata, evolution=SchemaEvolution.WIDEN, grows=True)

    @property
    def table_design(self) -> TableDesign:
        """The mirror's own design."""
        return super().design
