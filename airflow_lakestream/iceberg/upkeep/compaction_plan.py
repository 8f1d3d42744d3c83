"""Plan of a compaction by manifests alone: data files with the deletes on them, groups of files, and the gain.

Groups are of one partition and one partition spec. A group whose files fill a new file is rewritten for good; another
one only if no file is larger than twice the rest. So each byte is rewritten a few times, however often a plan is made.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TypeVar

from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry
from pyiceberg.typedef import Record

from airflow_lakestream.core.printable import counted

# The field id of `file_path` in position delete files, reserved by Iceberg's specification.
_PATH_ID = 2147483546
# The id of a partition spec, and the text of the partition's values; see `partition_of`.
Partition = tuple[int, str]
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class CompactionRule:
    """Rule of a compaction: the files to rewrite, and the sizes of files and commits.

    :param target_bytes: size of a new file.
    :param small_share: a file below this share of `target_bytes` is small.
    :param least_files: fewer files are not rewritten together, unless they fill a new file.
    :param most_deletes: a file with this many position delete files is rewritten. A file with equality deletes always
        is, since PyIceberg reads no table that has these.
    :param most_deleted: a file that has lost this share of its rows is rewritten.
    :param most_share: a file is rewritten only together with others that have 1/most_share of its bytes, unless they
        fill a new file. A lower share rewrites each byte less often, and leaves more files.
    :param part_bytes: bytes that one commit rewrites.
    :param most_bytes: bytes that a plan rewrites; None for all that is worth it.
    """

    target_bytes: int
    small_share: float = 0.75
    least_files: int = 5
    most_deletes: int = 5
    most_deleted: float = 0.1
    most_share: float = 2.0
    part_bytes: int = 2 * 2**30
    most_bytes: int | None = None


@dataclass(frozen=True)
class LiveFile:
    """Data file of a head, with the delete files that apply to the file."""

    file: DataFile
    sequence: int
    positions: tuple[DataFile, ...] = ()
    equalities: tuple[DataFile, ...] = ()

    @property
    def key(self) -> tuple[str, frozenset[str]]:
        """The file and its position deletes: the same rows, as long as no newer equality delete applies."""
        return self.file.file_path, frozenset(delete.file_path for delete in self.positions)

    @property
    def deleted_share(self) -> float:
        """Share of rows deleted by delete files of this data file alone; an upper bound, at most 1."""
        deleted = sum(delete.record_count for delete in self.positions if _only_path(delete) is not None)
        return min(1.0, deleted / max(1, self.file.record_count))

    @property
    def live_bytes(self) -> int:
        """Estimated bytes of the live rows."""
        return round(self.file.file_size_in_bytes * (1 - self.deleted_share))

    def must_go(self, rule: CompactionRule) -> bool:
        """Return whether deletes make the file slow to read."""
        return (
            bool(self.equalities)
            or len(self.positions) >= rule.most_deletes
            or (bool(self.positions) and self.deleted_share >= rule.most_deleted)
        )


@dataclass(frozen=True)
class FileGroup:
    """Files of a partition to rewrite together into `outputs` new files."""

    spec_id: int
    partition: Record
    files: tuple[LiveFile, ...]
    outputs: int

    @property
    def bytes(self) -> int:
        """Bytes of the data files."""
        return sum(live.file.file_size_in_bytes for live in self.files)

    @property
    def rows(self) -> int:
        """Rows of the data files, deleted rows included."""
        return sum(live.file.record_count for live in self.files)

    @property
    def gain(self) -> int:
        """Files that a read no longer opens."""
        deletes = {delete.file_path for live in self.files for delete in (*live.positions, *live.equalities)}
        return len(self.files) - self.outputs + len(deletes)


@dataclass(frozen=True)
class CompactionPlan:
    """Groups to rewrite, the largest gain per byte first, and delete files that apply to no data file.

    :param sequence: sequence number of the head, which new files get as their data sequence number: newer equality
        deletes apply to them.
    :param files: data files of the head.
    :param unread: data files left alone: files or deletes of another format than Parquet, or equality deletes by a
        dropped column.
    """

    sequence: int
    files: int
    groups: tuple[FileGroup, ...] = ()
    dangling: tuple[DataFile, ...] = ()
    unread: int = 0

    @property
    def largest(self) -> int:
        """Bytes of the largest group."""
        return max((group.bytes for group in self.groups), default=0)

    @property
    def bytes(self) -> int:
        """Bytes to rewrite."""
        return sum(group.bytes for group in self.groups)

    @property
    def out(self) -> int:
        """Data files to rewrite."""
        return sum(len(group.files) for group in self.groups)

    @property
    def new(self) -> int:
        """New data files."""
        return sum(group.outputs for group in self.groups)

    def __str__(self) -> str:
        files = counted(self.files, "data file")
        text = f"{self.out:,} of {files}, of {counted(self.bytes, 'byte')}, become {self.new:,}"
        text = text if self.groups else f"Nothing to compact in {files}"
        deletes = {delete.file_path for g in self.groups for f in g.files for delete in (*f.positions, *f.equalities)}
        text += f"; delete files of theirs: {len(deletes):,}" if deletes else ""
        text += f"; delete files of no data file: {len(self.dangling):,}" if self.dangling else ""
        return text + (f"; {self.unread:,} that can't be read here stay" if self.unread else "")


@dataclass
class _BySequence:
    """Delete files by rising sequence number."""

    entries: list[ManifestEntry] = field(default_factory=list)
    _numbers: list[int] | None = None

    def since(self, sequence: int, *, itself: bool) -> Sequence[ManifestEntry]:
        """Return the deletes above a sequence number, with the number `itself` if asked for."""
        if self._numbers is None:
            self.entries.sort(key=_sequence)
            self._numbers = [_sequence(entry) for entry in self.entries]
        first = bisect_left(self._numbers, sequence) if itself else bisect_right(self._numbers, sequence)
        return self.entries[first:]


_NONE = _BySequence()


class DeleteIndex:
    """Delete files of a head, by the data files that they apply to.

    :param unpartitioned: ids of specs without partitions: their equality deletes apply to files of all specs.
    """

    def __init__(self, deletes: Iterable[ManifestEntry], unpartitioned: Collection[int]) -> None:
        # Position deletes of a single data file, by its path, and of a partition.
        self._paths = defaultdict[str, _BySequence](_BySequence)
        self._positions = defaultdict[Partition, _BySequence](_BySequence)
        # Equality deletes of a partition, and of all data files.
        self._equalities, self._everywhere = defaultdict[Partition, _BySequence](_BySequence), _BySequence()
        # Delete files that `live` has not returned yet, by path.
        self._unused = dict[str, DataFile]()
        for entry in deletes:
            file = entry.data_file
            self._unused[file.file_path] = file
            if file.content == DataFileContent.EQUALITY_DELETES:
                all_specs = file.spec_id in unpartitioned
                (self._everywhere if all_specs else self._equalities[partition_of(file)]).entries.append(entry)
            elif (path := _only_path(file)) is not None:
                self._paths[path].entries.append(entry)
            else:
                self._positions[partition_of(file)].entries.append(entry)

    def live(self, file: DataFile, sequence: int, *, is_new: bool = False) -> LiveFile:
        """Return a data file with the deletes of its rows; these delete files are no longer unused.

        :param is_new: whether the file is not committed yet: no position delete can be of the file.
        """
        key = partition_of(file)
        positions: list[DataFile] = []
        if not is_new:
            of_file, of_partition = self._paths.get(file.file_path, _NONE), self._positions.get(key, _NONE)
            positions = [entry.data_file for entry in of_file.since(sequence, itself=True)]
            shared = (entry.data_file for entry in of_partition.since(sequence, itself=True))
            positions += [delete for delete in shared if _may_delete_in(delete, file)]
        equalities = [
            entry.data_file
            for deletes in (self._equalities.get(key, _NONE), self._everywhere)
            for entry in deletes.since(sequence, itself=False)
        ]
        for delete in (*positions, *equalities):
            self._unused.pop(delete.file_path, None)
        return LiveFile(file, sequence, tuple(positions), tuple(equalities))

    @property
    def dangling(self) -> tuple[DataFile, ...]:
        """Delete files that applied to none of the data files given to `live`."""
        return tuple(self._unused.values())


def plan(
    data: Iterable[ManifestEntry], index: DeleteIndex, sequence: int, rule: CompactionRule, columns: Collection[int]
) -> CompactionPlan:
    """Return the plan of a head.

    :param data: entries of the data files.
    :param sequence: sequence number of the head.
    :param columns: ids of the table's columns, by which equality deletes can be read.
    """
    candidates = defaultdict[Partition, list[LiveFile]](list)
    count = unread = 0
    for entry in data:
        count += 1
        live = index.live(entry.data_file, _sequence(entry))
        if not _can_read(live, columns):
            unread += 1
        elif live.must_go(rule) or live.live_bytes < rule.small_share * rule.target_bytes:
            candidates[partition_of(entry.data_file)].append(live)
    groups = [group for files in candidates.values() for group in _groups(files, rule)]
    groups.sort(key=lambda group: group.gain / max(1, group.bytes), reverse=True)
    return CompactionPlan(sequence, count, tuple(_within(groups, rule.most_bytes)), index.dangling, unread)


def _within(groups: Iterable[FileGroup], most_bytes: int | None) -> Iterator[FileGroup]:
    """Yield the groups of `most_bytes` together, in order; a group that does not fit any more is left out."""
    for group in groups:
        if most_bytes is None or group.bytes <= most_bytes:
            most_bytes = None if most_bytes is None else most_bytes - group.bytes
            yield group


def _can_read(live: LiveFile, columns: Collection[int]) -> bool:
    """Return whether all files are Parquet, and no equality delete is by a dropped column."""
    formats = {file.file_format for file in (live.file, *live.positions, *live.equalities)}
    ids = {field_id for delete in live.equalities for field_id in delete.equality_ids or ()}
    return formats == {FileFormat.PARQUET} and ids <= {*columns}


def _groups(files: Sequence[LiveFile], rule: CompactionRule) -> Iterator[FileGroup]:
    """Yield the groups of a partition's candidates, oldest files first."""
    for bin_files in bins(sorted(files, key=attrgetter("sequence")), rule.target_bytes, attrgetter("live_bytes")):
        if chosen := _worth(bin_files, rule):
            outputs = max(1, round(sum(live.live_bytes for live in chosen) / rule.target_bytes))
            yield FileGroup(chosen[0].file.spec_id, chosen[0].file.partition, tuple(chosen), outputs)


def bins(items: Iterable[Item], target: int, size_of: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yield items in their order, as many together as stay within a size; a larger item is alone."""
    bin_items, size = list[Item](), 0
    for item in items:
        if bin_items and size + size_of(item) > target:
            yield bin_items
            bin_items, size = [], 0
        bin_items.append(item)
        size += size_of(item)
    if bin_items:
        yield bin_items


def _worth(files: list[LiveFile], rule: CompactionRule) -> list[LiveFile]:
    """Return the files of a bin to rewrite; empty if a rewrite would gain too little."""
    if len(files) > 1 and sum(live.live_bytes for live in files) >= rule.small_share * rule.target_bytes:
        return files
    # The largest file is left out until it is no longer too large for the rest, or too few files are left.
    total, chosen = sum(live.live_bytes for live in files), list(files)
    for largest in sorted(files, key=attrgetter("live_bytes"), reverse=True):
        if largest.must_go(rule):
            continue
        if len(chosen) >= rule.least_files and largest.live_bytes <= rule.most_share * (total - largest.live_bytes):
            return chosen
        total -= largest.live_bytes
        chosen = [live for live in chosen if live is not largest]
    return chosen


def partition_of(file: DataFile) -> Partition:
    """Return the partition of a file, equal for NaN, too."""
    return file.spec_id, repr(file.partition)


def _sequence(entry: ManifestEntry) -> int:
    return entry.sequence_number or 0


def _only_path(file: DataFile) -> str | None:
    """Return the path of the only data file that a position delete file is for, or None if there are several."""
    low, high = (file.lower_bounds or {}).get(_PATH_ID), (file.upper_bounds or {}).get(_PATH_ID)
    return low.decode(errors="replace") if low is not None and low == high else None


def _may_delete_in(deletes: DataFile, file: DataFile) -> bool:
    """Return by the bounds of paths whether position deletes may be of a data file."""
    path = file.file_path.encode()
    low, high = (deletes.lower_bounds or {}).get(_PATH_ID), (deletes.upper_bounds or {}).get(_PATH_ID)
    return (low is None or low <= path) and (high is None or path <= high)
