"""The text form of ledgers and landings, in snapshot summaries and table properties.

Compact, since every snapshot and every metadata file carries it: ranges are written as gap and width
(`0:1500+480,20+5;7+1` is [1500,1980) and [2000,2005) of partition 0, and [7,8) of partition 1). Versioned: an older
reader refuses a newer text.
"""

from __future__ import annotations

import base64
import functools
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

from airflow_lakestream.core.bad_records import BadRecords
from airflow_lakestream.core.ledger import (
    Counts,
    FunctionRows,
    Landing,
    LandingEngine,
    Ledger,
    NotedLandings,
    PublicationMarker,
    StreamBatch,
    TopicEntry,
    TopicIdentity,
)
from airflow_lakestream.core.ranges import Interval, OffsetRange, RangeSet
from airflow_lakestream.core.source_types import SourceType, read_types
from airflow_lakestream.exceptions import LakestreamError, Terminal

VERSION = 1
# Keys of a snapshot's summary.
SUMMARY_VERSION = "lakestream.version"
SUMMARY_GROUP = "lakestream.group"
SUMMARY_LANDING_ID = "lakestream.landing-id"
SUMMARY_RUN_ID = "lakestream.run-id"
SUMMARY_TOPICS = "lakestream.topics"
SUMMARY_COUNTS = "lakestream.counts"
SUMMARY_NOTED = "lakestream.noted"
SUMMARY_ENGINE = "lakestream.engine"
SUMMARY_BAD = "lakestream.bad"
# The function that made the rows, and the number of rows, which keep no positions.
SUMMARY_TRANSFORM = "lakestream.transform"
SUMMARY_MADE = "lakestream.transform-rows"
# For people: the batch of a streaming query, with its end offsets. The ledger's own copy is in the topics.
SUMMARY_STREAM = "lakestream.stream"
# The tool and its position from which a landing without rows took over the earlier rows.
SUMMARY_ADOPTED = "lakestream.adopted-from"
# Columns with their first value, and columns that should have got a value.
SUMMARY_FILLED = "lakestream.filled-columns"
SUMMARY_SILENT = "lakestream.silent-columns"
# New and changed types of the source's columns.
SUMMARY_TYPES = "lakestream.source-types"
PROPERTY_PREFIX = "lakestream.ledger."
ANCHORS_PREFIX = "lakestream.anchors."
# Up to this length a text is not compressed, so that summaries of a few partitions stay readable.
PLAIN_CHARACTERS = 1000
# The noted ids that an anchor keeps. A table may have many anchors, and only a far rollback needs one.
NOTED_OF_ANCHOR = 16
PACKED = "zlib85:"


class UnreadableLedger(LakestreamError, Terminal):
    """Ledger text unreadable for this version, with the name of the snapshot or property."""

    def __init__(self, where: str, problem: str) -> None:
        self.where = where
        super().__init__(f"{where}: {problem}")


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A snapshot with a known ledger. `landing` is the change, or None for another group's landing."""

    snapshot_id: int
    landing: Landing | None


@dataclass(frozen=True, slots=True)
class LedgerProperty:
    """Value of the table property: the ledger at `base_id`, and the landings since, oldest first.

    `base_id` is None if the group's first landing was the table's first snapshot.
    """

    base_id: int | None
    base: Ledger
    journal: tuple[JournalEntry, ...]


def property_key(consumer_group: str) -> str:
    """Return the name of the table property with a group's ledger."""
    return PROPERTY_PREFIX + consumer_group


def anchors_key(consumer_group: str) -> str:
    """Return the name of the table property with a group's anchors."""
    return ANCHORS_PREFIX + consumer_group


def encode_summary(consumer_group: str, landing: Landing) -> dict[str, str]:
    """Return the snapshot summary keys of a landing; a fact without a value has no key."""
    return {
        SUMMARY_VERSION: str(VERSION),
        SUMMARY_GROUP: consumer_group,
        SUMMARY_LANDING_ID: landing.landing_id,
        SUMMARY_RUN_ID: landing.run_id,
        SUMMARY_TOPICS: _pack(_dump(_topics_to_json(landing.topics))),
        **_encode_counts(landing),
        **({SUMMARY_NOTED: "true"} if landing.noted else {}),
        **({SUMMARY_ENGINE: landing.engine.value} if landing.engine is not None else {}),
        **_encode_bad(landing),
        **_encode_made(landing.made),
        **({} if landing.adopted is None else {SUMMARY_ADOPTED: landing.adopted}),
        **_encode_stream(landing),
        **({SUMMARY_FILLED: _pack(_dump(sorted(landing.filled)))} if landing.filled else {}),
        **({SUMMARY_SILENT: _pack(_dump(dict(landing.silent)))} if landing.silent else {}),
        **({SUMMARY_TYPES: _types_to_text(landing.types)} if landing.types else {}),
    }


def decode_summary(summary: Mapping[str, str], consumer_group: str, where: str) -> Landing | None:
    """Return the landing of `consumer_group` in a snapshot's summary, or None.

    None if the summary has no landing, or a landing of another group. Raises UnreadableLedger if this version does
    not know the form of the landing.

    :param where: name of the snapshot, for the error.
    """
    if summary.get(SUMMARY_GROUP) != consumer_group:
        return None
    _check_version(summary.get(SUMMARY_VERSION), where)
    try:
        return Landing(
            landing_id=summary[SUMMARY_LANDING_ID],
            run_id=summary[SUMMARY_RUN_ID],
            topics=(topics := _topics_from_json(json.loads(_unpack(summary[SUMMARY_TOPICS])))),
            by_partition=_decode_counts(topics, summary.get(SUMMARY_COUNTS, "")),
            noted=SUMMARY_NOTED in summary,
            engine=_engine(summary.get(SUMMARY_ENGINE)),
            bad=BadRecords(int(summary[SUMMARY_BAD])) if SUMMARY_BAD in summary else None,
            made=FunctionRows(summary[SUMMARY_TRANSFORM], int(summary[SUMMARY_MADE]))
            if SUMMARY_MADE in summary
            else None,
            adopted=summary.get(SUMMARY_ADOPTED),
            filled=frozenset(json.loads(_unpack(summary.get(SUMMARY_FILLED, "[]")))),
            silent=dict(json.loads(_unpack(summary.get(SUMMARY_SILENT, "{}")))),
            types=_types_from_text(summary.get(SUMMARY_TYPES, "{}")),
        )
    except (KeyError, ValueError, TypeError) as e:
        raise UnreadableLedger(where, f"not a landing in the form of this version ({e!r}).") from e


def encode_property(value: LedgerProperty) -> str:
    """Return the text of the table property: the ledger at the base, and the journal."""
    journal = []
    for entry in value.journal:
        item: dict[str, Any] = {"snapshot": entry.snapshot_id}
        if entry.landing is not None:
            item |= {
                "id": entry.landing.landing_id,
                "run": entry.landing.run_id,
                "topics": _topics_to_json(entry.landing.topics),
                **({"noted": True} if entry.landing.noted else {}),
                **_columns_to_json(entry.landing),
            }
        journal.append(item)
    return _dump({"version": VERSION, "base": value.base_id, **_ledger_to_json(value.base), "journal": journal})


@functools.lru_cache(maxsize=16)
def decode_property(text: str, consumer_group: str) -> LedgerProperty:
    """Parse the table property. Raises UnreadableLedger.

    Cached: a commit reads the same text with every look at the table's head. The value is never changed.
    """
    where = f"table property {property_key(consumer_group)}"
    try:
        data = json.loads(text)
        _check_version(data["version"], where)
        return LedgerProperty(
            base_id=data["base"],
            base=_ledger_from_json(data, consumer_group),
            journal=tuple(_journal_entry(item) for item in data["journal"]),
        )
    except (KeyError, ValueError, TypeError) as e:
        raise UnreadableLedger(where, f"not a ledger in the form of this version ({e!r}).") from e


def encode_anchors(anchors: Mapping[int, Ledger]) -> str:
    """Return the text of the property with a group's anchors.

    To be short, an anchor leaves out the columns with values, and all noted landings except the newest.
    """
    items = []
    for snapshot, ledger in anchors.items():
        short = replace(ledger, noted=ledger.noted.newest(NOTED_OF_ANCHOR), filled=frozenset())
        items.append({"snapshot": snapshot, **_ledger_to_json(short)})
    return _dump({"version": VERSION, "anchors": items})


@functools.lru_cache(maxsize=16)
def decode_anchors(text: str, consumer_group: str) -> Mapping[int, Ledger]:
    """Parse the property of anchors into ledgers by snapshot. Raises UnreadableLedger."""
    where = f"table property {anchors_key(consumer_group)}"
    try:
        data = json.loads(text)
        _check_version(data["version"], where)
        items = data["anchors"]
        return {item["snapshot"]: _ledger_from_json(item, consumer_group) for item in items}
    except (KeyError, ValueError, TypeError) as e:
        raise UnreadableLedger(where, f"not a ledger in the form of this version ({e!r}).") from e


def encode_ranges(ranges: RangeSet, topic: str) -> str:
    """Return the text of a topic's ranges, `partition:gap+width,gap+width;...`. Raises ValueError for another topic."""
    texts = {}
    for name, partition in ranges.partitions:
        if name != topic:
            raise ValueError(f"ranges of {name!r} in the ledger entry of {topic!r}")
        texts[partition] = _encode_intervals(ranges.intervals(name, partition))
    return _by_partition_to_text(texts)


def decode_ranges(text: str, topic: str) -> RangeSet:
    """Parse the text of a topic's ranges. Raises ValueError."""
    ranges = []
    for partition, steps in _texts_by_partition(text):
        if not steps:
            raise ValueError(f"no ranges of partition {partition}")
        ranges += [OffsetRange(topic, partition, start, end) for start, end in _decode_intervals(steps)]
    return RangeSet(ranges)


def _encode_intervals(intervals: Iterable[Interval]) -> str:
    """Return sorted intervals as text: for each, the gap after the interval before, and the width."""
    position, steps = 0, []
    for start, end in intervals:
        steps.append(f"{start - position}+{end - start}")
        position = end
    return ",".join(steps)


def _decode_intervals(text: str) -> tuple[Interval, ...]:
    position, intervals = 0, []
    for step in filter(None, text.split(",")):
        gap, _, width = step.partition("+")
        start = position + int(gap)
        position = start + int(width)
        intervals.append((start, position))
    return tuple(intervals)


def _encode_counts(landing: Landing) -> dict[str, str]:
    """Return the key with the counts by partition; empty without counts, or if too long: readers then know the sum."""
    texts = []
    for identity in sorted(landing.topics):
        counts = landing.by_partition.get(identity, {})
        texts.append(_by_partition_to_text({p: ",".join(map(str, astuple(c))) for p, c in counts.items()}))
    text = "|".join(texts)
    return {SUMMARY_COUNTS: text} if any(texts) and len(text) <= PLAIN_CHARACTERS else {}


def _decode_counts(topics: Iterable[TopicIdentity], text: str) -> dict[TopicIdentity, Mapping[int, Counts]]:
    """Parse the counts by partition; topics are in sorted order, separated by "|". Raises ValueError."""
    if not text:
        return {}
    return {
        identity: {p: Counts(*map(int, numbers.split(","))) for p, numbers in _texts_by_partition(topic_text)}
        for identity, topic_text in zip(sorted(topics), text.split("|"), strict=True)
    }


def _encode_bad(landing: Landing) -> dict[str, str]:
    """Return the key with the number of bad records, or an empty dict if unknown or all were rejected."""
    if landing.bad is None or landing.bad.count == landing.counts.rejected:
        return {}
    return {SUMMARY_BAD: str(landing.bad.count)}


def _encode_made(made: FunctionRows | None) -> dict[str, str]:
    return {} if made is None else {SUMMARY_TRANSFORM: made.function, SUMMARY_MADE: str(made.rows)}


def _encode_stream(landing: Landing) -> dict[str, str]:
    """Return the key with a landing's batch of a streaming query, for people; empty without a batch."""
    for entry in landing.topics.values():
        if (streamed := entry.streamed) is not None:
            ends = {key[1]: entry.landed.intervals(*key)[-1][1] for key in entry.landed.partitions}
            stream = {"query": streamed.query_id, "batch": streamed.batch_id, "watermark": streamed.watermark}
            return {SUMMARY_STREAM: _pack(_dump({**stream, "ends": _by_partition_to_text(ends)}))}
    return {}


def _engine(name: str | None) -> LandingEngine | None:
    # Informational only: the ledger is not refused for an engine that only a newer version knows.
    return LandingEngine(name) if name in list(LandingEngine) else None


def _check_version(version: object, where: str) -> None:
    if not str(version).isdigit() or int(str(version)) > VERSION:
        raise UnreadableLedger(
            where,
            f"written in ledger format {version}, this version of airflow-lakestream reads up to {VERSION}. "
            "Upgrade airflow-lakestream on this worker.",
        )


def _journal_entry(item: dict[str, Any]) -> JournalEntry:
    if "id" not in item:
        return JournalEntry(item["snapshot"], None)
    topics, noted = _topics_from_json(item["topics"]), item.get("noted", False)
    landing = Landing(item["id"], item["run"], topics, noted=noted, **_columns_from_json(item))
    return JournalEntry(item["snapshot"], landing)


def _ledger_to_json(ledger: Ledger) -> dict[str, Any]:
    noted = {"noted": ledger.noted.ids, "all-noted": ledger.noted.complete} if ledger.noted != NotedLandings() else {}
    return {"ledger": _topics_to_json(ledger.topics), **noted, **_columns_to_json(ledger)}


def _ledger_from_json(data: Mapping[str, Any], consumer_group: str) -> Ledger:
    noted = NotedLandings(tuple(data.get("noted", ())), data.get("all-noted", True))
    return Ledger(consumer_group, _topics_from_json(data["ledger"]), noted, **_columns_from_json(data))


def _columns_to_json(source: Ledger | Landing) -> dict[str, str]:
    """Return the filled columns, and the types of the source's columns; empty ones have no key."""
    filled = {"filled": _pack(_dump(sorted(source.filled)))} if source.filled else {}
    return {**filled, **({"types": _types_to_text(source.types)} if source.types else {})}


def _columns_from_json(data: Mapping[str, Any]) -> dict[str, Any]:
    filled = frozenset(json.loads(_unpack(data.get("filled", "[]"))))
    return {"filled": filled, "types": _types_from_text(data.get("types", "{}"))}


def _types_to_text(types: Mapping[str, SourceType]) -> str:
    return _pack(_dump({path: source_type.to_list() for path, source_type in sorted(types.items())}))


def _types_from_text(text: str) -> dict[str, SourceType]:
    return read_types(json.loads(_unpack(text)))


def _topics_to_json(topics: Mapping[TopicIdentity, TopicEntry]) -> list[dict[str, Any]]:
    return [_entry_to_json(identity, topics[identity]) for identity in sorted(topics)]


def _entry_to_json(identity: TopicIdentity, entry: TopicEntry) -> dict[str, Any]:
    data: dict[str, Any] = {
        "topic": identity.topic,
        "id": identity.topic_id,
        "cluster": identity.cluster_id,
        "landed": encode_ranges(entry.landed, identity.topic),
        "lost": encode_ranges(entry.lost, identity.topic),
        "counts": list(astuple(entry.counts)),
        "origin": _by_partition_to_text(entry.origin),
        "epochs": _by_partition_to_text(entry.epochs),
        "covered": _encode_intervals(entry.covered),
        "replaced": encode_ranges(entry.replaced, identity.topic),
        "removed": list(astuple(entry.removed)) if entry.removed != Counts() else None,
        "forgotten": encode_ranges(entry.forgotten, identity.topic),
        "streamed": None if entry.streamed is None else list(astuple(entry.streamed)),
        "adopted": encode_ranges(entry.adopted, identity.topic),
        "published": {
            branch: [marker.snapshot_id, marker.sequence, _by_partition_to_text(marker.ends)]
            for branch, marker in sorted(entry.published.items())
        },
        "unproven": encode_ranges(entry.unproven, identity.topic),
    }
    return {key: value for key, value in data.items() if value or key in ("topic", "id", "cluster")}


def _topics_from_json(items: list[dict[str, Any]]) -> dict[TopicIdentity, TopicEntry]:
    topics = {}
    for item in items:
        identity = TopicIdentity(item["topic"], item["id"], item["cluster"])
        topics[identity] = TopicEntry(
            landed=decode_ranges(item.get("landed", ""), identity.topic),
            lost=decode_ranges(item.get("lost", ""), identity.topic),
            counts=Counts(*item.get("counts", ())),
            origin=_by_partition_from_text(item.get("origin", "")),
            epochs=_by_partition_from_text(item.get("epochs", "")),
            covered=_decode_intervals(item.get("covered", "")),
            replaced=decode_ranges(item.get("replaced", ""), identity.topic),
            removed=Counts(*item.get("removed", ())),
            forgotten=decode_ranges(item.get("forgotten", ""), identity.topic),
            streamed=StreamBatch(*item["streamed"]) if "streamed" in item else None,
            adopted=decode_ranges(item.get("adopted", ""), identity.topic),
            published={
                branch: PublicationMarker(snapshot_id, sequence, _by_partition_from_text(ends))
                for branch, (snapshot_id, sequence, ends) in item.get("published", {}).items()
            },
            unproven=decode_ranges(item.get("unproven", ""), identity.topic),
        )
    return topics


def _by_partition_to_text(values: Mapping[int, object]) -> str:
    """Return the values by partition as text.

    `3:a;b;7:c` has the values of the partitions 3, 4 and 7: a part without a number belongs to the next partition.
    """
    parts, expected = [], None
    for partition in sorted(values):
        parts.append(f"{values[partition]}" if partition == expected else f"{partition}:{values[partition]}")
        expected = partition + 1
    return ";".join(parts)


def _texts_by_partition(text: str) -> Iterator[tuple[int, str]]:
    """Yield each partition with its value from a text of `_by_partition_to_text`. Raises ValueError."""
    partition: int | None = None
    for part in filter(None, text.split(";")):
        number, colon, value = part.rpartition(":")
        if not colon and partition is None:
            raise ValueError(f"no partition in {part!r}")
        partition = int(number) if colon else (partition or 0) + 1
        yield partition, value


def _by_partition_from_text(text: str) -> dict[int, int]:
    return {partition: int(value) for partition, value in _texts_by_partition(text)}


def _pack(text: str) -> str:
    """Compress a long text: every metadata file repeats the summaries of all kept snapshots."""
    if len(text) <= PLAIN_CHARACTERS:
        return text
    return PACKED + base64.b85encode(zlib.compress(text.encode(), 9)).decode()


def _unpack(text: str) -> str:
    if not text.startswith(PACKED):
        return text
    try:
        return zlib.decompress(base64.b85decode(text.removeprefix(PACKED))).decode()
    except zlib.error as e:
        raise ValueError(f"damaged: {e}") from e


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
