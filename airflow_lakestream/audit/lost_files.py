"""Finds files that are missing or have another size than the metadata says: one request for each, none is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from airflow_lakestream.audit.statistics import FileFacts, TableFiles
from airflow_lakestream.core.ranges import RangeSet

# Parallel requests to a store: ten thousand files take seconds, and stores bear it.
AT_ONCE = 32

SizeOf = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class LostFile:
    """A live file that is gone (`found` is None), or has another size, in bytes, than the metadata says.

    `ranges` are the records that it surely held, empty if unknown; `nulls` is how many of its rows have no offset, None
    if unknown. `is_data` is False for a delete file.
    """

    path: str
    rows: int
    size: int
    found: int | None
    ranges: RangeSet = RangeSet()
    nulls: int | None = None
    is_data: bool = True

    @property
    def text(self) -> str:
        """The finding as text."""
        what = "data file" if self.is_data else "delete file"
        state = "is gone" if self.found is None else f"has {self.found} bytes instead of {self.size}"
        if not self.is_data:
            return f"{what} {self.path} {state}: which rows it deletes can't be told"
        held = str(self.ranges) if self.ranges else "its statistics do not say for certain which of them"
        return f"{what} {self.path} {state}, with {self.rows} rows: {held}"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; ranges as [topic, partition, from, until]."""
        return {
            "path": self.path,
            "rows": self.rows,
            "bytes": self.size,
            "bytes_found": self.found,
            "ranges": [[r.topic, r.partition, r.from_offset, r.until_offset] for r in self.ranges],
        }


def take_out_lost(files: TableFiles, size_of: SizeOf, topic_of: Callable[[FileFacts], str | None]) -> list[LostFile]:
    """Look at each file, and remove the lost ones from `files`; return them.

    :param size_of: returns a file's size in bytes. Raises FileNotFoundError if it is gone.
    :param topic_of: returns the one topic whose rows a file holds; None if there may be several.

    Raises what `size_of` raises.
    """
    sizes = _sizes([*files.data, *files.deletes], size_of)
    lost = [
        LostFile(
            path=file.path,
            rows=file.rows,
            size=file.size,
            found=sizes[file.path],
            ranges=RangeSet() if files.deletes else _held(file, topic_of(file)),
            nulls=file.nulls,
            is_data=file in files.data,
        )
        for file in {file.path: file for file in (*files.data, *files.deletes)}.values()
        if sizes[file.path] != file.size
    ]
    gone = {one.path for one in lost}
    files.data = [file for file in files.data if file.path not in gone]
    return lost


def _sizes(files: Iterable[FileFacts], size_of: SizeOf) -> dict[str, int | None]:
    def look(path: str) -> int | None:
        try:
            return size_of(path)
        except FileNotFoundError:
            return None

    paths = list({file.path: None for file in files})
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="lakestream-look") as pool:
        return dict(zip(paths, pool.map(look, paths), strict=True))


def _held(file: FileFacts, topic: str | None) -> RangeSet:
    if topic is None or file.bounds is None or not file.is_dense or not file.has_positions:
        return RangeSet()
    (partition, _), (low, high) = file.bounds
    return RangeSet.of(topic, partition, low, high + 1)
