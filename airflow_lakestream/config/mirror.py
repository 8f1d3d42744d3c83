"""Configuration of a mirror: arguments of a landing, and the mirror's own arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.events.decoder import EventPayload
from airflow_lakestream.cdc.events.names import ColumnNames
from airflow_lakestream.config import arguments
from airflow_lakestream.config.checks import checks_of_mirror
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.formats import ValueEnvelope
from airflow_lakestream.core.mirrors import FIXED, NotForMirror, check_mirror_name
from airflow_lakestream.core.policies import (
    MergeMode,
    ModeName,
    OnError,
    OutOfRange,
    SchemaEvolution,
    TableFormat,
    Tombstones,
    choose,
    is_given,
)
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.design import TableDesign


@dataclass(frozen=True, kw_only=True)
class MirrorConfig(ExtractConfig):
    """Arguments of `ExtractConfig` fit for a mirror, and the mirror's own arguments.

    :param key: the columns of the primary key; None takes them from the records' keys, if these are JSON.
    :param soft_delete: whether deleted rows stay, with `_is_deleted` true.
    :param out_of_range: the policy for a value that its column's type can't hold, such as a timestamp of the year
        12000: "reject" makes the record bad, "clamp" takes the nearest value, "null" takes NULL.
    :param rename_columns: the mirror's names of columns, by the names in the database.
    :param source_tables: a regular expression of the source's tables, `database.schema.table` each, if rows of
        several tables are landed in one mirror, such as partitions; None takes the rows of one table only.
    :param merge_mode: how changed rows come into the table: "copy-on-write" rewrites the files that have them,
        "merge-on-read" deletes the old rows in place and writes the new ones into other files, and "auto" decides it
        for each file by how many of its rows have changed.
    """

    envelope: str | None = ValueEnvelope.DEBEZIUM
    tombstones: str = Tombstones.SKIP
    on_error: str = OnError.FAIL
    metadata_columns: Sequence[str] = ("partition", "offset")
    key: Sequence[str] | str | None = None
    soft_delete: bool | str = False
    out_of_range: str = OutOfRange.REJECT
    rename_columns: Mapping[str, str] | str | None = None
    source_tables: str | None = None
    merge_mode: str = MergeMode.AUTO

    def __post_init__(self) -> None:
        for one in fields(ExtractConfig):
            default = type(self).__dataclass_fields__[one.name].default
            given = getattr(self, one.name)
            # A copy of a configuration gets the columns that the original has set itself.
            is_ours = one.name == "metadata_columns" and tuple(given) == self._metadata
            if one.name in FIXED and given != default and not is_ours:
                raise NotForMirror(one.name, FIXED[one.name])
        if self.mode != ModeName.RESUME:
            raise InvalidArgument("mode", f"a mirror is landed in order, not by {self.mode}.", "Leave it out.")
        if (
            choose(OutOfRange, "out_of_range", self.out_of_range) is not OutOfRange.REJECT
            and ValueEnvelope.CONNECT not in super().payload.row.envelopes
        ):
            problem = f'{self.out_of_range!r} goes with format="json", not with {self.format!r}.'
            raise InvalidArgument(
                "out_of_range", problem, 'Leave it out, or make the column a string with schema="...".'
            )
        checks_of_mirror("checks", self.checks)
        object.__setattr__(self, "metadata_columns", self._metadata)
        super().__post_init__()
        check_mirror_name(self.template)
        if self.mirror.merge_mode is MergeMode.MERGE_ON_READ and self.lake.format is TableFormat.DELTA:
            problem = "a mirror in a Delta table is merged by copy-on-write: deletion vectors are not written."
            raise InvalidArgument("merge_mode", problem, "Leave it out.")
        self.names.check_argument()

    @property
    def _metadata(self) -> tuple[str, ...]:
        return ("partition", "offset") if is_given(self.key) else ("partition", "offset", "key")

    @property
    def payload(self) -> EventPayload:
        """Formats of change events."""
        held = super().payload
        if held.times:
            problem = f"column {held.times[0][0][0]!r}: a mirror has the database's types, and can't convert times."
            raise InvalidArgument("schema", problem, f"Leave '{held.times[0][1]}' out.")
        return EventPayload(
            format=held.format,
            envelope=held.envelope,
            registry=held.registry,
            writer_schemas=held.writer_schemas,
            out_of_range=self.out_of_range,
            timestamps_finer=held.timestamps_finer,
            unavailable_placeholder=held.unavailable_placeholder,
            names=self.names,
            key=arguments.items("key", self.key) or (),
            stops=choose(OnError, "on_error", self.on_error) is OnError.FAIL,
        )

    @property
    def names(self) -> ColumnNames:
        """Names of the mirror's columns."""
        return ColumnNames(
            self.table,
            arguments.names("rename_columns", self.rename_columns),
            with_key=not is_given(self.key),
            soft_delete=arguments.flag("soft_delete", self.soft_delete),
            lake=self.lake,
        )

    @property
    def mirror(self) -> MirrorDesign:
        """Design of the mirror, for creating the mirror or for checking an existing mirror."""
        return MirrorDesign(
            super().design,
            key=arguments.items("key", self.key) or None,
            soft_delete=arguments.flag("soft_delete", self.soft_delete),
            out_of_range=choose(OutOfRange, "out_of_range", self.out_of_range),
            renamed=self.names.renamed,
            source_tables=arguments.regex("source_tables", self.source_tables),
            merge_mode=choose(MergeMode, "merge_mode", self.merge_mode),
            is_key_given=is_given(self.key),
            auditor=self.auditor,
        )

    @property
    def design(self) -> TableDesign:
        """Design for files of events, with all columns of the events; the table's own is `table_design`."""
        return TableDesign(metadata=super().design.metadata, evolution=SchemaEvolution.WIDEN, grows=True)

    @property
    def table_design(self) -> TableDesign:
        """The mirror's own design."""
        return super().design
