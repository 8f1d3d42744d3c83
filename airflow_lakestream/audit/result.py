"""The result of an audit: for XCom, for `--json`, and as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from airflow_lakestream.audit.compare import ImpossibleRows, PartitionAudit
from airflow_lakestream.audit.keyed import WrongRow
from airflow_lakestream.audit.statistics import LostFile
from airflow_lakestream.core.ranges import RangeSet, shown
from airflow_lakestream.iceberg.upkeep.narrow_bounds import WrongBounds

# The number of ranges in a line of text; `--json` has all ranges.
_SHOWN = 10

# Texts about the extent of an audit by offset, by whether the audit is full.
SEES = {
    True: "full: every row's topic, partition and offset against every record that Kafka still shows.",
    False: (
        "quick: file statistics against the ledger; no row's position was read and Kafka was not asked. Seen: how many "
        "rows are missing or too many, files there twice, files outside all landed ranges, files that are gone or have "
        "another size than in the metadata, bounds that leave values out. Not seen: which offsets "
        "are missing, as many rows missing as doubled, and which rejected records count. --full shows these."
    ),
}

# Texts about the extent of an audit of a table by key, by whether the audit is full.
SEES_BY_KEY = {
    True: "full: every row against the topic, folded by key from the records that Kafka still shows.",
    False: "quick: files that are gone or have another size than in the metadata; no row was read. --full reads rows.",
}


class AuditVerdict(StrEnum):
    """Verdict of an audit; its `exit_code` is the exit code of the command line."""

    CLEAN = "clean"
    DAMAGE = "damage"
    COULD_NOT_LOOK = "could not look"

    @property
    def exit_code(self) -> int:
        """0 for clean, 1 for damage, 2 for could not look."""
        return list(AuditVerdict).index(self)


@dataclass(frozen=True, slots=True)
class CountComparison:
    """A count by the ledgers (written rows, minus rows deleted on purpose), and the count in the table.

    `what` names the counted part. `topic` is None for a count of the whole table, and for a unit other than rows.
    """

    what: str
    expected: int
    found: int
    topic: str | None = None
    unit: str = "rows"

    @property
    def problem(self) -> str:
        """The difference in words, or empty if the counts are equal."""
        if self.expected == self.found:
            return ""
        missing = self.expected - self.found
        difference = f"{missing} missing" if missing > 0 else f"{-missing} too many"
        return f"{self.what}: the ledger counts {self.expected} {self.unit}, found were {self.found}: {difference}."


def rejected_count(what: str, expected: int, found: int) -> CountComparison:
    """Return the comparison of the records in the reject table.

    :param what: the counted part: a topic, or all topics and groups.
    """
    return CountComparison(f"{what}, reject table", expected, found, None, "rejected records")


@dataclass(frozen=True, slots=True)
class UnplacedCounts:
    """Numbers of skipped and filtered records of a topic, by the ledger, which has no offsets for them."""

    topic: str
    skipped: int
    filtered: int

    @property
    def text(self) -> str:
        """The finding as text."""
        parts = [f"{n} {what}" for n, what in ((self.skipped, "skipped"), (self.filtered, "filtered")) if n]
        return f"{self.topic}: {' and '.join(parts)} records, by the ledger; their offsets are not kept"


@dataclass(frozen=True, slots=True)
class RepairResult:
    """Result of a repair, before the audit that reports it. `snapshot_id` is None if no snapshot was added.

    `landed` are ranges of missing rows that were landed again, `undoubled` ranges with one row per record now,
    `adopted` ranges of rows that no ledger knew, whose records are landed now; `lost` are ranges that got a receipt.
    `corrected` are offsets of a table by key whose rows were others.
    `left` describes the damage that was not repaired, with reasons. `removed` describes the rows without a record and
    the lost files that were taken out; `mended` the files with wrong bounds, which are rewritten in a snapshot of their
    own.
    """

    snapshot_id: int | None = None
    rows_out: int = 0
    rows_in: int = 0
    rejected: int = 0
    landed: RangeSet = RangeSet()
    undoubled: RangeSet = RangeSet()
    adopted: RangeSet = RangeSet()
    corrected: RangeSet = RangeSet()
    lost: RangeSet = RangeSet()
    left: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()

    @property
    def ranges(self) -> dict[str, RangeSet]:
        """The ranges by kind of repair."""
        names = ("landed", "undoubled", "adopted", "corrected", "lost")
        return {name: getattr(self, name) for name in names}

    def to_dict(self, most_ranges: int | None = None) -> dict[str, Any]:
        """Return JSON-ready values; ranges as [topic, partition, from, until].

        :param most_ranges: most ranges of each kind; None for all.
        """
        return {
            "snapshot_id": None if self.snapshot_id is None else str(self.snapshot_id),
            "rows_out": self.rows_out,
            "rows_in": self.rows_in,
            "rejected": self.rejected,
            **{name: _quadruples(ranges)[:most_ranges] for name, ranges in self.ranges.items()},
            "removed": list(self.removed),
            "mended": list(self.mended),
            "left": list(self.left),
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text."""
        if self.snapshot_id is None:
            if not self.mended:
                yield "repair: nothing was done, no snapshot was added"
        else:
            rejected = f", {self.rejected} records rejected" if self.rejected else ""
            yield f"repaired in snapshot {self.snapshot_id}: {self.rows_out} rows out, {self.rows_in} rows in{rejected}"
        for name, ranges in self.ranges.items():
            if ranges:
                yield f"  {_DONE[name]}: {shown([str(r) for r in ranges], _SHOWN)}"
        yield from (f"  removed: {line}" for line in self.removed)
        yield from (f"  mended: {line}" for line in self.mended)
        yield from (f"  left: {line}" for line in self.left)


_DONE = {
    "landed": "missing, landed again",
    "undoubled": "doubled, now once",
    "adopted": "in no ledger, now landed",
    "corrected": "different, now as in Kafka",
    "lost": "lost, by receipt",
}


@dataclass
class AuditResult:
    """Verdict on a table and a consumer group, with reasons.

    `counts` are compared with the ledger; `by_count` are numbers of records whose offsets no ledger has. `lost_files`
    are data files that are gone or cut; `wrong_bounds` are files with values that filters skip, of the table and of its
    reject table; `impossible` are rows whose position no record can have. `findings` are damages that no range of one
    partition can express. `blind` lists the parts that could not be read although they were needed. `made` describes
    rows and offsets that no audit can verify: made by functions that keep no positions, or adopted. `notes` are for the
    reader. Damage counts even if `blind` is not empty. `source` is the table of the database that a mirror was compared
    with; None for a comparison with Kafka.
    """

    table: str
    consumer_group: str
    snapshot_id: int | None
    is_full: bool
    partitions: list[PartitionAudit] = field(default_factory=list)
    counts: list[CountComparison] = field(default_factory=list)
    by_count: list[UnplacedCounts] = field(default_factory=list)
    lost_files: list[LostFile] = field(default_factory=list)
    wrong_bounds: list[WrongBounds] = field(default_factory=list)
    wrong_bounds_of_rejects: list[WrongBounds] = field(default_factory=list)
    impossible: list[ImpossibleRows] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    blind: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    by_key: bool = False
    source: str | None = None
    wrong: list[WrongRow] = field(default_factory=list)
    repaired: RepairResult | None = None

    @property
    def verdict(self) -> AuditVerdict:
        """Clean, damage, or could not look."""
        if self.damages:
            return AuditVerdict.DAMAGE
        return AuditVerdict.COULD_NOT_LOOK if self.blind else AuditVerdict.CLEAN

    @property
    def damages(self) -> list[str]:
        """All damage as sentences, the worst first."""
        lost = [file.text for file in self.lost_files]
        of_partitions = [line for audit in self.partitions for line in _damages(audit)]
        counts = filter(None, (count.problem for count in self.counts))
        return [*lost, *of_partitions, *counts, *self.findings, *self.narrow]

    @property
    def narrow(self) -> list[str]:
        """The files with wrong bounds as sentences, of the table and of its reject table."""
        rejects = (f"reject table: {file.text}" for file in self.wrong_bounds_of_rejects)
        return [*(file.text for file in self.wrong_bounds), *rejects]

    def take_lost(self, lost: Iterable[LostFile], of_rejects: Iterable[LostFile]) -> bool:
        """Add lost files to the result; return whether the rows can still be audited.

        They can't, and the result becomes blind, if delete files or files of the reject table are lost: then it is
        unknown which rows exist, and which records are rejected.

        :param lost: lost files of the table.
        :param of_rejects: lost files of the reject table.
        """
        rejects = list(of_rejects)
        deletes = [file for file in lost if not file.is_data]
        self.lost_files += [file for file in lost if file.is_data]
        self.findings += [*(file.text for file in deletes), *(f"reject table: {file.text}" for file in rejects)]
        if deletes or rejects:
            self.blind.append(
                "which rows exist, and which records are rejected, is unknown without "
                f"{[*deletes, *rejects][0].path}. Put the file back (from a backup, or a version that the store kept)."
            )
        return not (deletes or rejects)

    def note_rows_before(self, topic: str, audits: Iterable[PartitionAudit]) -> None:
        """Add a note with the number of another tool's rows below the group's beginning, if there are any."""
        if rows := sum(audit.rows_before for audit in audits):
            self.notes.append(f"{rows} rows of {topic} are below where the group began: another tool's, not judged.")

    def to_dict(self, most_ranges: int | None = None) -> dict[str, Any]:
        """Return JSON-ready values; ranges as [from, until], doubled ranges as [from, until, times], ids as text.

        :param most_ranges: most ranges of each kind and partition; the number of further ranges is given. None for all.
        """
        return {
            "verdict": self.verdict.value,
            "table": self.table,
            "consumer_group": self.consumer_group,
            # As text: browsers would round 64-bit numbers.
            "snapshot_id": None if self.snapshot_id is None else str(self.snapshot_id),
            "mode": "database" if self.source else "full" if self.is_full else "quick",
            "partitions": [
                _partition_to_dict(audit, most_ranges, self.is_full, self.by_key) for audit in self.partitions
            ],
            **({"wrong_rows": [finding.to_dict() for finding in self.wrong[:most_ranges]]} if self.by_key else {}),
            "counts": [{"of": count.what, "expected": count.expected, "found": count.found} for count in self.counts],
            "not_verifiable_by_count": [
                {"topic": count.topic, "skipped": count.skipped, "filtered": count.filtered} for count in self.by_count
            ],
            "not_verifiable_made": self.made,
            "lost_files": [finding.to_dict() for finding in self.lost_files],
            "wrong_bounds": self.narrow,
            "findings": self.findings,
            "could_not_look": self.blind,
            "notes": self.notes,
            **({} if self.repaired is None else {"repaired": self.repaired.to_dict(most_ranges)}),
        }

    def render(self) -> str:
        """Return the result as text for people."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.table}, consumer group {self.consumer_group}: {self.verdict.value.upper()}"
        if self.source:
            yield f"  database: every current row against {self.source}, by the columns of both."
        else:
            yield f"  {(SEES_BY_KEY if self.by_key else SEES)[self.is_full]}"
        yield f"  snapshot {self.snapshot_id or '(none)'}"
        if self.repaired is not None:
            yield from (f"  {line}" for line in self.repaired.lines())
        for audit in self.partitions:
            yield f"  {audit.topic}[{audit.partition}]: {_summary(audit, self.is_full)}"
            yield from (f"    {line}" for line in _damages(audit, with_place=False))
            wrong = [finding.text for finding in self.wrong if finding.partition == audit.partition]
            yield from (f"    {line}" for line in wrong[:_SHOWN])
            yield from (f"    {line}" for line in _unverified_lines(audit, self.is_full))
        for title, lines in (
            ("damage", [finding.text for finding in self.lost_files]),
            ("damage", [*filter(None, (count.problem for count in self.counts)), *self.findings, *self.narrow]),
            ("could not look", self.blind),
            ("not verifiable", [*(finding.text for finding in self.by_count), *self.made]),
            ("note", self.notes),
        ):
            yield from (f"  {title}: {line}" for line in lines)


def _summary(audit: PartitionAudit, is_full: bool) -> str:
    """Return a partition's state in words; with numbers only for a full audit, since a quick one counts by topic."""
    state = "damage" if audit.is_damaged else "ok"
    if not is_full:
        return state
    rejected = f", {audit.rejected} rejected" if audit.rejected else ""
    unseen = f", {audit.rows_unseen} not compared" if audit.rows_unseen else ""
    return f"{state}, {audit.rows} rows{unseen}{rejected}, {audit.readable} records in Kafka"


def _damages(audit: PartitionAudit, *, with_place: bool = True) -> list[str]:
    """Return the damage of a partition as sentences, which name topic and partition if `with_place`."""
    place = f"{audit.topic}[{audit.partition}] " if with_place else ""
    lines = []
    if audit.missing:
        lines.append(f"{place}missing: {_text(audit.missing)} ({audit.rows_missing} rows)")
    if audit.different:
        lines.append(f"{place}different: {_text(audit.different)}")
    if audit.doubled:
        texts = [f"[{doubled.from_offset},{doubled.until_offset}) x{doubled.times}" for doubled in audit.doubled]
        lines.append(f"{place}doubled: {shown(texts, _SHOWN)}")
    if audit.both:
        lines.append(f"{place}a row, and rejected as well: {_text(audit.both)}")
    if audit.rejected_twice:
        lines.append(f"{place}rejected more than once: {_text(audit.rejected_twice)}")
    if audit.unexpected:
        lines.append(f"{place}unexpected: {_text(audit.unexpected)}")
    if audit.impossible:
        lines.append(
            f"{place}unexpected: {audit.impossible.offsets} ({audit.impossible.rows} rows), which no record has"
        )
    return lines


def _unverified_lines(audit: PartitionAudit, is_full: bool) -> list[str]:
    """Return lines about ranges without a verdict: receipts, and for a full audit offsets that it could not verify."""
    named = [("lost to retention, by receipt", audit.lost), ("deleted on purpose, by receipt", audit.forgotten)]
    if is_full:
        named.append(
            (
                "not verifiable: no longer in Kafka, adopted, or without a row (perhaps skipped or filtered)",
                audit.not_verifiable,
            )
        )
    return [f"{name}: {_text(ranges)}" for name, ranges in named if ranges]


def _text(ranges: RangeSet) -> str:
    return shown([f"[{r.from_offset},{r.until_offset})" for r in ranges], _SHOWN)


def _partition_to_dict(audit: PartitionAudit, most_ranges: int | None, is_full: bool, by_key: bool) -> dict[str, Any]:
    ranges: dict[str, list[list[int]]] = {
        "doubled": [[doubled.from_offset, doubled.until_offset, doubled.times] for doubled in audit.doubled],
        "unexpected": [*_pairs(audit.unexpected), *_impossible_pairs(audit)],
        "lost": _pairs(audit.lost),
        "forgotten": _pairs(audit.forgotten),
    }
    if is_full:
        ranges |= {
            "missing": _pairs(audit.missing),
            "both": _pairs(audit.both),
            "rejected_twice": _pairs(audit.rejected_twice),
            "not_verifiable": _pairs(audit.not_verifiable),
        }
    if by_key:
        ranges["different"] = _pairs(audit.different)
    left_out = {
        name: len(pairs) - most_ranges
        for name, pairs in ranges.items()
        if most_ranges is not None and len(pairs) > most_ranges
    }
    return {
        "topic": audit.topic,
        "partition": audit.partition,
        **(_numbers(audit) if is_full else {}),
        **({"rows_unseen": audit.rows_unseen} if by_key and is_full else {}),
        **{name: pairs[:most_ranges] for name, pairs in ranges.items()},
        **({"ranges_left_out": left_out} if left_out else {}),
    }


def _numbers(audit: PartitionAudit) -> dict[str, int]:
    names = ("rows", "rejected", "readable", "rows_missing", "rows_too_many", "rows_before")
    return {name: getattr(audit, name) for name in names}


def _impossible_pairs(audit: PartitionAudit) -> list[list[int]]:
    rows = audit.impossible
    return [] if rows is None or rows.low is None or rows.high is None else [[rows.low, rows.high + 1]]


def _pairs(ranges: Iterable[Any]) -> list[list[int]]:
    return [[r.from_offset, r.until_offset] for r in ranges]


def _quadruples(ranges: RangeSet) -> list[list[Any]]:
    return [[r.topic, r.partition, r.from_offset, r.until_offset] for r in ranges]
