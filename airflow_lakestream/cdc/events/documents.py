"""Maxwell's and Canal's JSON documents as change events: each document becomes Debezium's events of its rows."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from airflow_lakestream.cdc.columns import COMMIT, MILLIS, POSITION, READ, TRANSACTION
from airflow_lakestream.cdc.events.decoder import EventPayload
from airflow_lakestream.cdc.events.log_state import SERIAL
from airflow_lakestream.cdc.events.provenance import nested
from airflow_lakestream.cdc.stops import forms_mixed
from airflow_lakestream.core.policies import DocumentEnvelope
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.connect.debezium import IMAGES
from airflow_lakestream.decode.connect.debezium_own import RecordForm, form_of
from airflow_lakestream.decode.json.document import Json, JsonNumber, describe, parse_document, parse_object, to_text
from airflow_lakestream.decode.values.outcome import BadRow, DecoderResult, Indices, Misfit, all_but, good_mask, pick
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.row_buffer import one_array

Row = Mapping[str, Json]
Convert = Callable[[Json], Json]


_COMMON = ("database", "table", "type")
DOCUMENTS = {DocumentEnvelope.MAXWELL: RecordForm.MAXWELL, DocumentEnvelope.CANAL: RecordForm.CANAL}


@dataclass(frozen=True)
class DocumentChanges:
    """Changes of rows in a document, in order: operations of Debezium, each with the row after it, or the deleted row.

    An update, with the operation `u`, also has the changed columns' values before it.

    :param source: the origin and the log position, as Debezium's source.
    :param key: the columns of the database's key, or None if the document does not name them.
    """

    changes: Sequence[tuple[str, Row, Row]]
    source: Row
    key: Sequence[str] | None


# In place of a row's number in its transaction: the last row, if the document has no number.
_LAST_ROW = 2**40
_POSITION = re.compile(r"(?P<file>.+\.\d{1,9}):(?P<byte>\d{1,10})", re.DOTALL)
_MAXWELL_OPS = {"insert": "c", "update": "u", "delete": "d", "bootstrap-insert": READ}
_MAXWELL_SKIPPED = re.compile(r"(table|database)-(create|alter|drop)|bootstrap-(start|complete)|heartbeat")
_CANAL_OPS = {"INSERT": "c", "UPDATE": "u", "DELETE": "d"}
_CANAL_SKIPPED = {"CREATE", "ALTER", "ERASE", "RENAME", "CINDEX", "DINDEX"}
_CANAL_SKIPPED |= {"GTID", "XACOMMIT", "XAROLLBACK", "MHEARTBEAT"}
_TRUNCATE = "TRUNCATE"
# Digits of a time in seconds.
_SECONDS = 11


def _of_maxwell(document: Row, key: bytes | None) -> DocumentChanges | None:
    """Return the changes of a document of Maxwell, or None for changes of tables and limits of a bootstrap.

    Raises Misfit for a document that is not as Maxwell documents it.

    :param key: the record's key, which may name the columns of the database's key.
    """
    database, table, kind = (_text(document, name) for name in _COMMON)
    if _MAXWELL_SKIPPED.fullmatch(kind):
        return None
    if kind not in _MAXWELL_OPS:
        raise Misfit(f"type: {kind!r} is no type of Maxwell's documents")
    row, old = _row(document.get("data"), "data"), _row(document.get("old") or {}, "old", may_be_empty=True)
    source: dict[str, Json] = {"db": database, "table": table, "ts_ms": 1000 * _integer(document, "ts", _SECONDS)}
    if kind != "bootstrap-insert" and document.get("position") is not None:
        found = _POSITION.fullmatch(_text(document, "position"))
        if found is None:
            raise Misfit(f"position: {document['position']!r} is not file:byte of a binary log")
        last = _LAST_ROW if document.get("commit") is True else 0
        number = last if document.get("xoffset") is None else _integer(document, "xoffset")
        source |= {"file": found["file"], "pos": int(found["byte"]), "row": number}
        if document.get("gtid") is not None:
            source["gtid"] = _text(document, "gtid")
        if document.get("server_id") is not None:
            source["server_id"] = _integer(document, "server_id")
    names = document.get("primary_key_columns")
    columns = _names(names, "primary_key_columns") if names else _in_key(key, row)
    return DocumentChanges([(_MAXWELL_OPS[kind], row, old)], source, columns)


def _in_key(key: bytes | None, row: Row) -> Sequence[str] | None:
    """Return the columns of the database's key in Maxwell's key of a record, or None for another key.

    Maxwell writes them in lower case, in an object as `pk.id`, or in the last item of an array.
    """
    try:
        found = None if key is None else parse_document(key)
    except Misfit:
        return None
    if isinstance(found, list) and len(found) == 3 and isinstance(found[2], list):
        names = [name for one in found[2] if isinstance(one, dict) for name in one]
    elif isinstance(found, dict):
        names = [name.removeprefix("pk.") for name in found if name.startswith("pk.")]
    else:
        return None
    own = {name.lower(): name for name in row}
    return [own[name] for name in names] if names and own.keys() >= {*names} else None


def _of_canal(document: Row, key: bytes | None) -> DocumentChanges | None:
    """Return the changes of a flat message of Canal, or None for changes of tables; `key` is not used.

    Raises Misfit for a message that is not as Canal documents it.
    """
    database, table, kind = (_text(document, name) for name in _COMMON)
    if not isinstance(document.get("isDdl"), bool):
        raise Misfit(f"isDdl: it is {describe(document.get('isDdl'))}, not a boolean")
    if kind != _TRUNCATE and (document["isDdl"] or kind in _CANAL_SKIPPED):
        return None
    source = {"db": database, "table": table, "ts_ms": _integer(document, "es", _SECONDS + 3)}
    if kind == _TRUNCATE:
        return DocumentChanges([("t", {}, {})], source, None)
    if kind not in _CANAL_OPS:
        raise Misfit(f"type: {kind!r} has no rows; let MySQL write them, by binlog_format=ROW")
    data, olds = document.get("data"), document.get("old")
    if not isinstance(data, list) or not data:
        raise Misfit(f"data: it is {describe(data)}, not an array of rows; let MySQL write them, by binlog_format=ROW")
    olds = [None] * len(data) if kind != "UPDATE" or olds is None else olds
    if not isinstance(olds, list) or len(olds) != len(data):
        raise Misfit(f"old: it is {describe(olds)}, not an array with an item for each row of data")
    changes = []
    for number, (one, old) in enumerate(zip(data, olds, strict=True)):
        row, before = _row(one, f"data[{number}]"), _row(old or {}, f"old[{number}]", may_be_empty=True)
        if lacking := sorted(before.keys() - row.keys()):
            raise Misfit(f"old[{number}]: it has the column {lacking[0]}, and data lacks it")
        changes.append((_CANAL_OPS[kind], row, before))
    names = document.get("pkNames")
    return DocumentChanges(changes, source, _names(names, "pkNames") if names else None)


def _text(document: Row, name: str) -> str:
    found = document.get(name)
    if not isinstance(found, str) or isinstance(found, JsonNumber):
        raise Misfit(f"{name}: it is {describe(found)}, not a string")
    return found


def _integer(document: Row, name: str, digits: int = 18) -> int:
    found = document.get(name)
    if not (isinstance(found, JsonNumber) and found.is_integer_literal and len(found) <= digits):
        raise Misfit(f"{name}: it is {describe(found)}, not an integer")
    return int(found)


def _names(found: Json, name: str) -> Sequence[str]:
    if not isinstance(found, list) or not all(type(one) is str for one in found):
        raise Misfit(f"{name}: it is {describe(found)}, not an array of column names")
    return found


def _row(found: Json, name: str, *, may_be_empty: bool = False) -> Row:
    if not isinstance(found, dict) or not (found or may_be_empty):
        raise Misfit(f"{name}: it is {describe(found)}, not an object with the columns of a row")
    return found


@dataclass(frozen=True)
class DocumentRules:
    """Rules for documents of one program.

    :param read: returns a document's changes, given the document and the record's key; None for a skipped document.
    :param of_key: the remedy for documents that do not name the columns of the key.
    :param of_order: the remedy for a key whose documents have no order.
    :param of_table: the remedy for documents of another table.
    :param bytes_as_text: whether bytes are characters of ISO 8859-1, not base64.
    """

    read: Callable[[Row, bytes | None], DocumentChanges | None]
    of_key: str
    of_order: str
    of_table: str
    bytes_as_text: bool = False


RULES: Mapping[DocumentEnvelope, DocumentRules] = {
    DocumentEnvelope.MAXWELL: DocumentRules(
        _of_maxwell,
        of_key="let Maxwell write primary_key_columns (output_primary_key_columns=true), or give key",
        of_order="Let Maxwell write positions (output_binlog_position=true, output_xoffset=true) into a new topic, and "
        "make a new table; or let Maxwell write each key to one partition.",
        of_table="Let Maxwell write each table to a topic of its own (kafka_topic=%{database}.%{table}), and give each "
        "its own mirror.",
    ),
    DocumentEnvelope.CANAL: DocumentRules(
        _of_canal,
        of_key="its table has no primary key: give key, columns that identify a row",
        of_order="Let Canal write each table to one partition of a new topic (canal.mq.partition, without "
        "canal.mq.partitionHash of the primary key), and make a new table.",
        of_table="Let Canal write each table to a topic of its own (canal.mq.dynamicTopic=.*\\\\..*), and give each "
        "its own mirror.",
        bytes_as_text=True,
    ),
}


@dataclass(frozen=True)
class DocumentEvents:
    """Events of a batch's documents, as records in Debezium's JSON.

    :param batch: the events, with the offsets of their documents.
    :param of: for each event the position of its document in the batch; rising.
    :param bad: the documents that are not as documented, and `filtered` the positions of the skipped ones.
    """

    batch: RawBatch
    of: Indices
    bad: Sequence[BadRow]
    filtered: Sequence[int]


@dataclass(frozen=True)
class DocumentPayload(EventPayload):
    """Payloads of Maxwell's or Canal's documents, decoded into a mirror's columns.

    :param program: the program that writes the documents.
    """

    program: DocumentEnvelope = DocumentEnvelope.MAXWELL

    @cached_property
    def events(self) -> EventPayload:
        """Payloads of the events that documents become."""
        # Documents show each change of a key, so events need no row before an update.
        own = {one.name: getattr(self, one.name) for one in fields(EventPayload)}
        return EventPayload(**own | {"key": (), "stops": False})

    @property
    def further_settings(self) -> tuple[str, ...]:
        """Settings with an effect on the rows that differ from the defaults, as text."""
        return tuple(
            f"envelope={self.program}" if one.startswith("envelope=") else one for one in super().further_settings
        )

    @property
    def record_form(self) -> RecordForm:
        """The form of records."""
        return DOCUMENTS[self.program]

    def defines_columns(self, first: RawBatch) -> bool:
        """Return whether first records may have a row, unlike skipped documents and truncations."""
        found = self.events_of(first)
        return self.events.defines_columns(found.batch) if len(found.of) else bool(found.bad)

    def keeps_for_later(self, first: RawBatch) -> bool:
        """Return whether first records without a row are to wait: a later row may be older than a truncation."""
        return self.events.keeps_for_later(self.events_of(first).batch)

    def value_columns(self, first: RawBatch) -> pa.Schema:
        """Return the columns of events for the columns of the documents' rows. Raises InvalidArgument without a row."""
        found = self.events_of(first)
        if not len(found.of):
            bad = found.bad[0]
            where = f"{first.topic}[{first.partition}] offset {first.offsets[bad.index]}"
            raise InvalidArgument(
                "envelope", f"{where} is not {self.record_form}: {bad.reason}.", "Correct envelope, or topic."
            )
        return self.events.value_columns(found.batch)

    def decoder(self, schema: pa.Schema) -> Any:
        """Return the decoder of documents for the columns of a row; `schema` may also have the columns of an event."""
        return DocumentDecoder(self, schema)

    def events_of(self, batch: RawBatch, converts: Mapping[str, Convert] | None = None) -> DocumentEvents:
        """Return the events of a batch's documents. Raises MirrorStopped for a record of another form.

        :param converts: the conversions of values that columns need, by column.
        """
        keys = [None] * len(batch) if batch.keys is None else batch.keys.to_pylist()
        bad, filtered, of = list[BadRow](), list[int](), list[int]()
        values, named = list[bytes](), list[bytes | None]()
        for place, value in enumerate(batch.values.to_pylist()):
            try:
                found = None if value is None else self._read(batch, place, value, keys[place])
                changes = [] if found is None else self._folded(found)
            except Misfit as misfit:
                bad.append(BadRow(place, misfit.reason))
                continue
            if found is None:
                filtered.append(place)
                continue
            source = to_text(found.source)
            for op, row in changes:
                image, other = _as_text(row, converts or {}) if op != "t" else "null", "null"
                before, after = (image, other) if op == "d" else (other, image)
                text = f'{{"before":{before},"after":{after},"source":{source},"op":"{op}"}}'
                values.append(text.encode())
                named.append(None if op == "t" else _as_key(found.key))
                of.append(place)
        places = np.array(of, np.int64)
        columns = pa.array(values, pa.binary()), pa.array(named, pa.binary())
        events = replace(pick(batch, places), values=columns[0], keys=columns[1])
        return DocumentEvents(events, places, bad, filtered)

    def _read(self, batch: RawBatch, place: int, value: bytes, key: bytes | None) -> DocumentChanges | None:
        document = parse_object(value)
        form = form_of(document)
        # An object with some of the members is a document with a fault.
        is_like = form is RecordForm.PLAIN and sum(one in document for one in (*_COMMON, "data")) >= 2
        if form is not self.record_form and not is_like:
            where = f"{batch.topic}[{batch.partition}] offset {batch.offsets[place]}"
            raise forms_mixed(self.names.table, where, form, self.record_form)
        return RULES[self.program].read(document, key)

    def _folded(self, found: DocumentChanges) -> Sequence[tuple[str, Row]]:
        """Return the last change of each key in a document; an update of the key is a deletion and a new row.

        Raises Misfit if the key is unknown, or if a row lacks a column of it.
        """
        if found.changes[0][0] == "t":
            return [("t", {})]
        own = tuple(self.naming.source(name) for name in self.key) or tuple(found.key or ())
        if not own:
            raise Misfit(f"it names no columns of a key: {RULES[self.program].of_key}")
        last = dict[tuple[str, ...], tuple[str, Row]]()
        for op, row, old in found.changes:
            if lacking := [name for name in own if row.get(name) is None]:
                raise Misfit(f"data.{lacking[0]}: null or missing, and the mirror's key needs a value")
            if op == "u" and any(name in old and old[name] != row[name] for name in own):
                before = {**row, **old}
                last[tuple(to_text(before[name]) for name in own)] = "d", before
            # A document has the whole row: whether it was there is of no matter.
            last[tuple(to_text(row[name]) for name in own)] = "c" if op == "u" else op, row
        return [*last.values()]


def _as_text(row: Row, converts: Mapping[str, Convert]) -> str:
    if converts:
        row = {name: converts[name](one) if name in converts else one for name, one in row.items()}
    return to_text(row)


def _as_key(names: Sequence[str] | None) -> bytes:
    """Return a key in Debezium's JSON with these columns, of which only the names are read."""
    # Text is a key whose columns are unknown.
    return b"?" if names is None else to_text(dict.fromkeys(names)).encode()


_NUMBER = re.compile(r"(-?)0*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)", re.ASCII)
_BOOLEANS = {"0": False, "1": True}


def _as_number(value: Json) -> Json:
    found = _NUMBER.fullmatch(value) if type(value) is str else None
    return value if found is None else JsonNumber(f"{found[1]}{found[2]}")


def _as_boolean(value: Json) -> Json:
    return _BOOLEANS.get(value, value) if isinstance(value, str) else value


def _as_time(value: Json) -> Json:
    return f"{value[:10]}T{value[11:]}" if type(value) is str and value[10:11] == " " else value


def _as_base64(value: Json) -> Json:
    try:
        return b64encode(value.encode("latin-1")).decode() if type(value) is str else value
    except UnicodeEncodeError:
        return value


def _conversion(kind: pa.DataType, *, bytes_as_text: bool) -> Convert | None:
    """Return the conversion of MySQL's texts into JSON of a type, or None if the type's decoder reads them."""
    if t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind):
        return _as_number
    if t.is_boolean(kind):
        return _as_boolean
    if t.is_timestamp(kind):
        return _as_time
    is_bytes = t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind)
    return _as_base64 if bytes_as_text and is_bytes else None


@dataclass
class DocumentDecoder:
    """Decoder of documents into change events, a row for each document: further changes are in the column `REST`.

    Each thread and process decodes with its own columns.
    """

    payload: DocumentPayload
    columns: pa.Schema
    _converts: dict[str, Convert] = field(init=False)
    _events: Any = field(init=False)

    def __post_init__(self) -> None:
        rules, naming = RULES[self.payload.program], self.payload.naming
        found = {one.name: _conversion(one.type, bytes_as_text=rules.bytes_as_text) for one in self.columns}
        self._converts = {naming.source(name): one for name, one in found.items() if one is not None}
        self._events = self.payload.events.decoder(self.columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.payload, self.columns)

    @property
    def schema(self) -> pa.Schema:
        """The columns before the next batch."""
        return self.columns

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch. A document with a bad row is bad as a whole.

        Raises MirrorStopped for a record of another form, and the errors of decoding events.
        """
        found = self.payload.events_of(batch, self._converts)
        decoded = self._events.decode(found.batch)
        bad = {one.index: one for one in found.bad}
        for one in decoded.bad:
            place = int(found.of[one.index])
            bad.setdefault(place, BadRow(place, _in_document(one.reason)))
        of = found.of[all_but(len(found.of), [one.index for one in decoded.bad])]
        good = good_mask(len(batch), bad)[of]
        rows, of = (decoded.rows, of) if good.all() else (decoded.rows.filter(pa.array(good)), of[good])
        return DecoderResult(nested(_placed(rows), of), [bad[place] for place in sorted(bad)], found.filtered)


def _in_document(reason: str) -> str:
    """Return the reason of a bad event with the names of a document's members."""
    return next((f"data{reason[len(one) :]}" for one in IMAGES if reason.startswith(f"{one}.")), reason)


def _placed(rows: pa.Table) -> pa.Table:
    """Return events of a log without concurrent transactions; an event without a position in the log is at 0."""
    there = one_array(rows[MILLIS]).is_valid()
    for name in (COMMIT, POSITION):
        place = pc.if_else(there, one_array(rows[name]), pa.scalar(0, pa.int64()))
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), place)
    serial = pa.repeat(pa.scalar(SERIAL, pa.int64()), len(rows))
    return rows.set_column(rows.column_names.index(TRANSACTION), rows.schema.field(TRANSACTION), serial)
