"""Whole rows from raw records: the payload's columns or a statement's, the metadata columns, and the route's columns.

Each step may find records that can't become a row without loss; the policy for bad records is applied here.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from airflow_lakestream.core.bad_records import BadRecords
from airflow_lakestream.core.column_use import ColumnUse
from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.names import RecordPart
from airflow_lakestream.core.policies import OnError, Tombstones, ValueEnvelope
from airflow_lakestream.core.ports import RecordDecoder, Trial
from airflow_lakestream.core.records import DecodedBatch, RawBatch
from airflow_lakestream.decode.column_watch import ColumnWatch, filled_columns, log_guessed_columns
from airflow_lakestream.decode.connect.debezium_own import own_record
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.header_ids import bad_rows
from airflow_lakestream.decode.metadata import (
    PART_FIELDS,
    RecordRouter,
    bad_timestamps,
    metadata_columns,
    metadata_schema,
    route_columns,
)
from airflow_lakestream.decode.rejected import REJECTED_PARTS, CauseFinder, StageFailure, rejected_rows
from airflow_lakestream.decode.values.outcome import BadRow, Indices, all_but, pick
from airflow_lakestream.decode.writer_schemas import SourceTypes
from airflow_lakestream.exceptions import BadRecord
from airflow_lakestream.tables.schema.value_ranges import out_of_range


class StatementResult(Protocol):
    """Result of a statement for a batch; each record is in exactly one of `kept`, `filtered` and `bad`."""

    @property
    def rows(self) -> pa.Table:
        """The rows."""

    @property
    def kept(self) -> Indices:
        """Positions of the source records of the rows."""

    @property
    def filtered(self) -> Indices:
        """Positions of the records left out by the statement."""

    @property
    def bad(self) -> Sequence[Any]:
        """Failures of the statement: `index`, the position of a record in the batch, and `reason`."""


class RowStatement(Protocol):
    """Statement with at most a row for each record; called by several threads at once."""

    @property
    def schema(self) -> pa.Schema:
        """Output columns."""

    @property
    def input_schema(self) -> pa.Schema | None:
        """Input columns, metadata columns included, or None for raw records."""

    @property
    def parts(self) -> frozenset[RecordPart]:
        """The parts of raw records that the statement reads."""

    def apply(self, batch: RawBatch | pa.Table) -> StatementResult:
        """Return the result for each record."""


@dataclass(frozen=True)
class SqlStep:
    """Step that runs a statement, and rejects NULL in required columns.

    :param names: the statement's columns that land; its other columns are metadata columns, which all rows get.
    :param required: columns among `names` that may not be NULL.
    """

    statement: RowStatement
    names: tuple[str, ...]
    required: tuple[str, ...] = ()

    @property
    def reads_raw_records(self) -> bool:
        """Whether the input is raw records, not decoded columns."""
        return self.statement.input_schema is None

    def apply(self, records: RawBatch | pa.Table) -> tuple[pa.Table, Indices, Indices, list[BadRow]]:
        """Return the rows, the positions of the rows' records, of the filtered records, and the bad records.

        A record with NULL in a required column is bad.

        :param records: raw records, or a table of the statement's input.
        """
        result = self.statement.apply(records)
        rows, kept = result.rows.select(self.names), result.kept
        bad = [BadRow(failure.index, failure.reason) for failure in result.bad]
        nulls: dict[int, str] = {}
        for name in self.required:
            for row in np.flatnonzero(rows[name].is_null()) if rows[name].null_count else ():
                nulls.setdefault(int(row), f"column {name}: NULL, and the column is required")
        if nulls:
            good = all_but(len(kept), list(nulls))
            bad += [BadRow(int(kept[row]), reason) for row, reason in nulls.items()]
            rows, kept = rows.take(pa.array(good)), kept[good]
        return rows, kept, result.filtered, sorted(bad, key=lambda bad_row: bad_row.index)


log = logging.getLogger(__name__)

# The policies by which tombstones have no row; by all others, the payload's decoder makes their rows.
_WITHOUT_ROW = (Tombstones.SKIP, Tombstones.REJECT)


@dataclass(frozen=True)
class RowDecoderFactory:
    """Factory of row decoders for a payload; the columns come from a schema, the registry or the first batch.

    With a statement, the schema describes the statement's output; the statement knows its input.

    :param columns: the columns of the rows, if the rows do not go into the table unchanged (a mirror); by default the
        table's schema.
    """

    payload: PayloadFormats
    metadata: tuple[str, ...]
    router: RecordRouter | None = None
    on_error: OnError = OnError.REJECT
    tombstones: Tombstones = Tombstones.KEEP
    sql: RowStatement | None = None
    trial: Trial | None = None
    columns: pa.Schema | None = None

    def __call__(self, schema: pa.Schema | None, first: RawBatch | None) -> RecordDecoder | None:
        """Return a decoder, or None if neither a schema nor `first` defines columns; see `core.ports.DecoderFactory`.

        Raises InvalidArgument for a schema that does not fit the metadata columns, the route, or the format.
        """
        schema = schema if self.columns is None else self.columns
        if schema is None:
            if first is None or not self.payload.defines_columns(first):
                return None
            schema = self.payload.columns(first)
            log_guessed_columns(self.payload, first, schema)
        # Raises InvalidArgument for a column with the name of a metadata column.
        metadata_schema(self.metadata, schema)
        if self.router is not None:
            self.router.check(schema)
        payload, step = (self.payload.decoder(schema), None) if self.sql is None else self._with_sql(self.sql, schema)
        fields = self.payload.fields(schema) if self.sql is None else self.sql.input_schema
        causes = CauseFinder(self.payload, fields)
        return RowDecoder(
            *(payload, self.metadata, causes, self.router, self.on_error, self.tombstones, step, self.trial),
            passes_own=self.payload.envelope == ValueEnvelope.DEBEZIUM,
            named=() if payload is None else self.payload.named_sides,
            remedy=self.payload.remedy,
            watch=ColumnWatch(self.payload, None if payload is None or self.payload.gets_columns else payload.schema),
            sources=SourceTypes(self.payload),
        )

    def keeps_for_later(self, first: RawBatch) -> bool:
        """Return whether first records without columns are decoded later; see `core.ports.DecoderFactory`."""
        return self.payload.keeps_for_later(first)

    def with_trial(self, trial: Trial) -> RowDecoderFactory:
        """Return a factory whose decoders also check rows by `trial`; see `core.ports.DecoderFactory`."""
        return replace(self, trial=trial)

    def foreseen(self, topic: str) -> tuple[RecordDecoder, pa.Table] | None:
        """Return a decoder, and a table without rows, of columns that are known without records.

        None if the columns depend on records, or if there is a route or a statement. See
        `core.landing.job.NewTableColumns`.
        """
        columns = None if self.router is not None or self.sql is not None else self.payload.foreseen_columns(topic)
        return None if columns is None else self.without_records(columns, topic)

    def without_records(self, columns: pa.Schema, topic: str) -> tuple[RecordDecoder, pa.Table]:
        """Return a decoder of these columns of the payload, and a table of all columns without rows."""
        decoder = self(columns, None)
        assert decoder is not None, "a schema has a decoder"
        return decoder, decoder.decode(_no_records(topic)).rows

    @property
    def parts(self) -> frozenset[RecordPart]:
        """The parts of records that must be read."""
        readers = [reader.parts for reader in (self.payload, self.router, self.sql) if reader is not None]
        # A rejected record is kept whole, for a replay after the topic has lost the record.
        kept = REJECTED_PARTS if self.on_error is OnError.REJECT else frozenset[RecordPart]()
        return RecordPart.of(self.metadata).union(kept, *readers)

    def _with_sql(self, sql: RowStatement, table: pa.Schema) -> tuple[Any, SqlStep]:
        """Return the decoder of the statement's input, or None for raw records, and the statement's step."""
        metadata_names = metadata_schema(self.metadata).names
        names = tuple(name for name in sql.schema.names if name not in metadata_names)
        required = tuple(field.name for field in table if field.name in names and not field.nullable)
        step = SqlStep(sql, names, required)
        if sql.input_schema is None:
            return None, step
        return self.payload.decoder(pa.schema([f for f in sql.input_schema if f.name not in metadata_names])), step


@dataclass(frozen=True)
class RowDecoder:
    """Decoder of rows: the payload's or the statement's columns, then metadata columns, then the route's columns.

    :param payload: the payload's decoder; None for a statement that reads raw records.
    :param passes_own: whether Debezium's own records, which are not events of a table, are skipped.
    :param named: the sides ("key", "value") with schemas named by records: a header may mark them as bare.
    :param remedy: returns the remedy for a bad record that ends the run, given the reason.
    """

    payload: Any
    metadata: tuple[str, ...]
    causes: CauseFinder
    router: RecordRouter | None = None
    on_error: OnError = OnError.FAIL
    tombstones: Tombstones = Tombstones.KEEP
    sql: SqlStep | None = None
    trial: Trial | None = None
    passes_own: bool = False
    named: tuple[str, ...] = ()
    watch: ColumnWatch | None = None
    sources: SourceTypes | None = None
    remedy: Callable[[str], str] = str

    def decode(self, batch: RawBatch) -> DecodedBatch:
        """Return the rows and the outcome of each record; see `core.ports.RecordDecoder`.

        Raises BadRecord if there is a bad record and the policy is to fail.
        """
        state = _BatchState(batch)
        self._leave_out_unfit_records(state)
        # The metadata columns are made first, and lose the same records as the rows in each step.
        names, use = metadata_schema(self.metadata), ColumnUse()
        metadata = pa.Table.from_arrays(metadata_columns(state.records, self.metadata), schema=names)
        if self.sql is not None and self.sql.reads_raw_records:
            rows, metadata = self._transformed(state, self.sql, state.records, metadata)
        else:
            decoded = self.payload.decode(state.records)
            rows = decoded.rows
            places = all_but(len(state.records), [*(row.index for row in decoded.bad), *decoded.filtered])
            if self.watch is not None:
                use = self.watch.of(state.records, rows, places)
            if self.sources is not None:
                use = replace(use, types=self.sources.of(state.records, rows, places))
            if decoded.bad or decoded.filtered:
                own = self._own_records(state.records, decoded.bad) if self.passes_own else {}
                bad = [row for row in decoded.bad if row.index not in own]
                filtered = np.array(decoded.filtered, np.int64)
                metadata = _taken(metadata, state.leave_out(bad, "decode", filtered, skipped=list(own)))
            if self.sql is not None:
                rows, metadata = self._transformed(state, self.sql, _joined(rows, metadata), metadata)
        if self.sql is not None:
            # The columns that the statement reads are not columns of the table.
            use = replace(use, columns=frozenset()) + filled_columns(rows)
        rows = _joined(rows, metadata)
        rows = _without(state, rows, out_of_range(rows), "decode" if self.sql is None else "sql")
        if self.router is not None:
            rows = self._routed(state, rows, self.router)
        if self.trial is not None:
            rows = _without(state, rows, self.trial(rows), "write")
        return replace(self._outcome(state, rows), use=use)

    def _own_records(self, batch: RawBatch, bad: Sequence[BadRow]) -> dict[int, str]:
        """Return descriptions of Debezium's own records among the bad records, by position, and log their number."""
        descriptions = {row.index: own_record(batch.values[row.index].as_py() or b"") for row in bad}
        own = {index: description for index, description in descriptions.items() if description is not None}
        if own:
            kinds = " and ".join(sorted(set(own.values())))
            place = f"{batch.topic}[{batch.partition}] from offset {batch.offsets[min(own)]} on"
            log.info("%s: %s records are Debezium's own (%s), no table's events: skipped", place, len(own), kinds)
        return own

    def _transformed(
        self, state: _BatchState, sql: SqlStep, records: RawBatch | pa.Table, metadata: pa.Table
    ) -> tuple[pa.Table, pa.Table]:
        """Return the statement's rows and their metadata columns; leave out records without a row."""
        rows, kept, filtered, bad = sql.apply(records)
        if len(kept) < len(state):
            state.leave_out(bad, "sql", filtered)
            metadata = _taken(metadata, kept)
        return rows, metadata

    def _routed(self, state: _BatchState, rows: pa.Table, router: RecordRouter) -> pa.Table:
        """Return the rows with the route's columns; leave out records without a possible route."""
        routes, without_route = router.routes(state.records, rows)
        if without_route:
            kept = pa.array(state.leave_out(without_route, "route"))
            rows, routes = rows.take(kept), routes.take(kept)
        for name, column in route_columns(state.records, routes):
            rows = rows.append_column(name, column)
        return rows

    def _leave_out_unfit_records(self, state: _BatchState) -> None:
        """Leave out tombstones by the policy, timestamps out of range, and bare keys and values (`header_ids`)."""
        if self.tombstones in _WITHOUT_ROW and state.records.values.null_count:
            nulls = np.flatnonzero(state.records.values.is_null().to_numpy(zero_copy_only=False)).tolist()
            if self.tombstones is Tombstones.REJECT:
                state.leave_out([BadRow(index, "the value is null (a tombstone)") for index in nulls], "record")
            else:
                state.skip(nulls)
        if "timestamp" in self.metadata:
            state.leave_out(bad_timestamps(state.records), "record")
        if self.named and (bare := list(bad_rows(state.records, self.named, self.causes.payload.format))):
            state.leave_out(bare, "decode")

    def _outcome(self, state: _BatchState, rows: pa.Table) -> DecodedBatch:
        """Return the result with the counts of all records; bad records that are not kept count as skipped.

        Raises BadRecord for the first bad record if the policy is to fail.
        """
        batch, bad = state.batch, sorted(state.bad, key=lambda failure: failure.row.index)
        # Should never happen, but with a row fewer or more each later row would land under a wrong offset.
        without_row = len(bad) + state.skipped + state.filtered
        if len(rows) != len(state) or len(rows) + without_row != len(batch):
            raise AssertionError(
                f"{batch.topic}[{batch.partition}]: {len(batch)} records from offset {batch.offsets[0]} on became "
                f"{len(rows)} rows, {len(bad)} bad, {state.skipped} skipped and {state.filtered} filtered ones"
            )
        if bad:
            first = bad[0].row
            if self.on_error is OnError.FAIL:
                offset = batch.offsets[first.index]
                raise BadRecord(batch.topic, batch.partition, offset, first.reason, self.remedy(first.reason))
            place = f"{batch.topic}[{batch.partition}] offset {batch.offsets[first.index]}"
            log.warning("%s of %s records are bad, the first: %s: %s", len(bad), len(batch), place, first.reason)
        rejects = self.on_error is OnError.REJECT
        counts = Counts(
            read=len(batch),
            written=len(rows),
            rejected=len(bad) if rejects else 0,
            skipped=state.skipped + (0 if rejects else len(bad)),
            filtered=state.filtered,
        )
        rejected = rejected_rows(batch, bad) if bad and rejects else None
        summary = self.causes.of(batch, bad) if bad else BadRecords()
        return DecodedBatch(rows, counts, rejected, state.rowless(), summary)


def _no_records(topic: str) -> RawBatch:
    parts = {part: pa.nulls(0, field.type) for part, field in PART_FIELDS.items()}
    return RawBatch(topic, 0, range(0), array("q"), pa.array([], pa.binary()), **parts)


class _BatchState:
    """State of a batch between the steps: the good records, and the outcome of all records that were left out."""

    def __init__(self, batch: RawBatch) -> None:
        self.batch = batch
        self.bad: list[StageFailure] = []
        self.skipped = self.filtered = 0
        # Positions of the good records in the whole batch; None while all records are good.
        self._places: Indices | None = None
        self._records: RawBatch | None = batch

    @property
    def records(self) -> RawBatch:
        """The good records; built at the first use, since this takes time."""
        if self._records is None:
            assert self._places is not None, "records were left out"
            self._records = pick(self.batch, self._places)
        return self._records

    def leave_out(
        self, bad: Sequence[BadRow], stage: str, filtered: Indices | None = None, skipped: Sequence[int] = ()
    ) -> Indices:
        """Leave out bad, filtered and skipped records; return the positions of the kept records.

        All positions count the records that were good before.
        """
        places, indices = self._good(), np.array([row.index for row in bad], np.int64)
        self.bad += [StageFailure(BadRow(int(places[row.index]), row.reason, row.schema_id), stage) for row in bad]
        if filtered is not None:
            self.filtered += len(filtered)
            indices = np.concatenate([indices, filtered])
        self.skipped += len(skipped)
        indices = np.concatenate([indices, np.array(skipped, np.int64)])
        return self._keep(indices)

    def skip(self, indices: Sequence[int]) -> None:
        """Leave out records that are only counted, by their positions among the good records."""
        self.skipped += len(indices)
        self._keep(indices)

    def rowless(self) -> pa.Array | None:
        """Return the offsets of all records that were left out, or None if all records are good."""
        if self._places is None:
            return None
        places = all_but(len(self.batch), self._places)
        return pa.array([self.batch.offsets[place] for place in places.tolist()], pa.int64())

    def __len__(self) -> int:
        return len(self.batch) if self._places is None else len(self._places)

    def _good(self) -> Indices:
        return np.arange(len(self.batch), dtype=np.int64) if self._places is None else self._places

    def _keep(self, left_out: Sequence[int] | Indices) -> Indices:
        kept = all_but(len(self), left_out)
        if len(left_out):
            self._places, self._records = self._good()[kept], None
        return kept


def _without(state: _BatchState, rows: pa.Table, reasons: Mapping[int, str], stage: str) -> pa.Table:
    """Return the rows without the bad rows in `reasons`, and leave out their records."""
    if not reasons:
        return rows
    return rows.take(pa.array(state.leave_out([BadRow(index, reasons[index]) for index in sorted(reasons)], stage)))


def _taken(rows: pa.Table, indices: Indices) -> pa.Table:
    # Arrow can't take rows of a table without columns.
    return rows.take(pa.array(indices)) if rows.num_columns else rows


def _joined(rows: pa.Table, metadata: pa.Table) -> pa.Table:
    for name in metadata.schema.names:
        rows = rows.append_column(metadata.schema.field(name), metadata[name])
    return rows
