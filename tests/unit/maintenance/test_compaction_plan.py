"""The plan of a compaction: which deletes apply is the specification's rule, and the work converges and stays small."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestEntryStatus
from pyiceberg.typedef import Record

from airflow_lakestream.iceberg.upkeep.compaction_plan import (
    CompactionPlan,
    CompactionRule,
    DeleteIndex,
    FileGroup,
    plan,
)

DATA, POSITIONS, EQUALITIES = (
    DataFileContent.DATA,
    DataFileContent.POSITION_DELETES,
    DataFileContent.EQUALITY_DELETES,
)
PATH = 2147483546
RULE = CompactionRule(target_bytes=1000, part_bytes=3000)
# Spec 0 has no partitions; spec 1 has one field.
PARTITIONS = ((0, Record()), (1, Record("a")), (1, Record(None)), (1, Record(float("nan"))))
NAMES = itertools.count()


def entry(
    content: DataFileContent,
    sequence: int,
    *,
    size: int = 10,
    rows: int = 10,
    partition: tuple[int, Record] = PARTITIONS[0],
    paths: tuple[str, str] | None = None,
    ids: Sequence[int] | None = None,
) -> ManifestEntry:
    low, high = ({PATH: one.encode()} for one in paths) if paths else (None, None)
    file = DataFile.from_args(
        content=content,
        file_path=f"f{next(NAMES):09d}",
        file_format=FileFormat.PARQUET,
        # NaN equals no other NaN, and is one partition.
        partition=Record(*partition[1]._data),
        record_count=rows,
        file_size_in_bytes=size,
        lower_bounds=low,
        upper_bounds=high,
        equality_ids=ids,
    )
    file.spec_id = partition[0]
    return ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, sequence_number=sequence, data_file=file)


def planned(
    data: Sequence[ManifestEntry], deletes: Sequence[ManifestEntry] = (), rule: CompactionRule = RULE
) -> CompactionPlan:
    return plan(data, DeleteIndex(deletes, {0}), 99, rule, {1})


data_files = st.lists(
    st.builds(
        entry,
        st.just(DATA),
        st.integers(0, 4),
        size=st.sampled_from([1, 10, 100, 400, 749, 750, 1000, 5000]),
        partition=st.sampled_from(PARTITIONS),
    ),
    max_size=30,
)


@st.composite
def heads(draw: st.DrawFn) -> tuple[list[ManifestEntry], list[ManifestEntry]]:
    """Return data files, and deletes of one file, of a range of paths, of a partition, and by equality."""
    data = draw(data_files)
    names = sorted(one.data_file.file_path for one in data) or ["f"]
    deletes = []
    for _ in range(draw(st.integers(0, 6))):
        content, sequence = draw(st.sampled_from([POSITIONS, POSITIONS, EQUALITIES])), draw(st.integers(0, 5))
        partition = draw(st.sampled_from(PARTITIONS))
        if content is EQUALITIES:
            deletes.append(entry(content, sequence, partition=partition, ids=[draw(st.sampled_from([1, 1, 2]))]))
            continue
        target = draw(st.sampled_from(data)).data_file if data and draw(st.booleans()) else None
        if target is not None:
            partition, paths = (target.spec_id, target.partition), (target.file_path, target.file_path)
            deletes.append(entry(content, sequence, rows=draw(st.integers(1, 10)), partition=partition, paths=paths))
            continue
        ends = sorted(draw(st.tuples(st.sampled_from(names), st.sampled_from(names))))
        deletes.append(entry(content, sequence, partition=partition, paths=draw(st.sampled_from([None, tuple(ends)]))))
    return data, deletes


def applies(delete: ManifestEntry, data: ManifestEntry) -> bool:
    """Return whether a delete file may apply, in the words of the specification.

    A delete file of one path applies by the path alone, as in Iceberg's Java and PyIceberg.
    """
    file, other = delete.data_file, data.data_file
    same = file.spec_id == other.spec_id and str(file.partition) == str(other.partition)
    later = (delete.sequence_number or 0) - (data.sequence_number or 0)
    if file.content is EQUALITIES:
        return later > 0 and (same or file.spec_id == 0)
    low, high = (file.lower_bounds or {}).get(PATH), (file.upper_bounds or {}).get(PATH)
    within = low is None or high is None or low <= other.file_path.encode() <= high
    return later >= 0 and (same or (low is not None and low == high)) and within


@given(heads())
def test_deletes_apply_by_the_specification(head: tuple[list[ManifestEntry], list[ManifestEntry]]) -> None:
    data, deletes = head
    index = DeleteIndex(deletes, {0})
    used = set()
    for one in data:
        live = index.live(one.data_file, one.sequence_number or 0)
        wanted = {delete.data_file.file_path for delete in deletes if applies(delete, one)}
        assert {file.file_path for file in (*live.positions, *live.equalities)} == wanted
        used |= wanted
    assert {file.file_path for file in index.dangling} == {one.data_file.file_path for one in deletes} - used


@given(heads())
def test_groups_are_of_one_partition_fill_a_file_and_leave_no_needed_rewrite_out(
    head: tuple[list[ManifestEntry], list[ManifestEntry]],
) -> None:
    data, deletes = head
    found = planned(data, deletes)
    chosen = Counter(live.file.file_path for group in found.groups for live in group.files)
    assert not chosen or set(chosen.values()) == {1}
    for group in found.groups:
        assert {(live.file.spec_id, str(live.file.partition)) for live in group.files} == {
            (group.spec_id, str(group.partition))
        }
        assert len(group.files) == 1 or sum(live.live_bytes for live in group.files) <= RULE.target_bytes
        assert len(group.files) > 1 or group.files[0].must_go(RULE)
    index = DeleteIndex(deletes, {0})
    for one in data:
        live = index.live(one.data_file, one.sequence_number or 0)
        by_dropped = any(delete.equality_ids == [2] for delete in live.equalities)
        if live.must_go(RULE) or by_dropped:
            assert (live.file.file_path in chosen) != by_dropped
        elif live.live_bytes >= RULE.small_share * RULE.target_bytes:
            assert live.file.file_path not in chosen


def compacted(data: list[ManifestEntry], groups: Sequence[FileGroup]) -> list[ManifestEntry]:
    gone = {live.file.file_path for group in groups for live in group.files}
    new = []
    for group in groups:
        size = sum(live.live_bytes for live in group.files)
        partition = (group.spec_id, group.partition)
        new += [entry(DATA, 99, size=size // group.outputs, partition=partition) for _ in range(group.outputs)]
    return [*(one for one in data if one.data_file.file_path not in gone), *new]


@given(heads())
def test_repeated_compaction_comes_to_an_end(head: tuple[list[ManifestEntry], list[ManifestEntry]]) -> None:
    data, deletes = head
    data = compacted(data, planned(data, deletes).groups)
    for _ in range(8):
        if not (groups := planned(data).groups):
            return
        before, data = len(data), compacted(data, groups)
        assert len(data) < before
    raise AssertionError("there is always more to do")


def test_a_year_of_small_files_is_rewritten_a_few_times_and_never_many() -> None:
    """A file each minute, compaction each hour, a partition each day: a file of a day is 1,440 times a minute's."""
    rule = CompactionRule(target_bytes=1500)
    landed = rewritten = most = 0
    data: list[ManifestEntry] = []
    for hour in range(24 * 30):
        partition = (1, Record(hour // 24))
        new = [entry(DATA, hour, size=1, partition=partition) for _ in range(60)]
        landed, data = landed + 60, [*data, *new]
        groups = planned(data, (), rule).groups
        rewritten += sum(group.bytes for group in groups)
        data = compacted(data, groups)
        most = max(most, max(Counter(str(one.data_file.partition) for one in data).values()))
    assert most <= 4
    assert rewritten <= 5 * landed


def test_a_file_with_equality_deletes_is_rewritten_alone_and_one_of_the_right_size_is_not() -> None:
    large, deleted = entry(DATA, 1, size=900), entry(DATA, 1, size=900, partition=PARTITIONS[1])
    found = planned([large, deleted], [entry(EQUALITIES, 2, partition=PARTITIONS[1], ids=[1])])
    assert [[live.file for live in group.files] for group in found.groups] == [[deleted.data_file]]
    assert found.out == 1
    assert found.files == 2
    assert str(found) == "1 of 2 data files, of 900 bytes, become 1; delete files of theirs: 1"
