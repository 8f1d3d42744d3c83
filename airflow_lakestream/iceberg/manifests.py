"""Entries of manifests, cached within the process: a manifest never changes.

A commit that removes files needs the manifests of its base several times, and the next commit needs most of them
again. Reading a manifest takes milliseconds however small it is: PyIceberg parses its schema each time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table import ManifestGroupPlanner
from pyiceberg.utils.concurrent import ExecutorFactory

# Total size of the cached manifests, of some ten thousand files. A batch needs the entries of all files anyway.
MOST_BYTES = 4 * 2**20


class _EntryCache:
    """Cache of the live entries of the manifests used last, by path."""

    def __init__(self, most_bytes: int) -> None:
        self._most, self._bytes = most_bytes, 0
        # The size in bytes, and the live entries, of each manifest by path.
        self._entries = OrderedDict[str, tuple[int, Sequence[ManifestEntry]]]()
        self._lock = threading.Lock()

    def get(self, path: str) -> Sequence[ManifestEntry] | None:
        """Return the entries of a manifest, or None if not cached."""
        with self._lock:
            if path not in self._entries:
                return None
            self._entries.move_to_end(path)
            return self._entries[path][1]

    def put(self, path: str, size: int, entries: Sequence[ManifestEntry]) -> None:
        """Cache entries, and evict the entries unused for the longest time."""
        with self._lock:
            if path not in self._entries:
                self._entries[path] = size, entries
                self._bytes += size
            while self._bytes > self._most:
                self._bytes -= self._entries.popitem(last=False)[1][0]


_kept = _EntryCache(MOST_BYTES)


def live_entries_of(io: FileIO, manifest: ManifestFile) -> Sequence[ManifestEntry]:
    """Return the entries of a manifest's live files. Callers share the entries, and must not change an entry."""
    entries = _kept.get(manifest.manifest_path)
    if entries is None:
        entries = manifest.fetch_manifest_entry(io)
        _kept.put(manifest.manifest_path, manifest.manifest_length, entries)
    return entries


def live_entries(io: FileIO, manifests: Iterable[ManifestFile]) -> Iterator[Sequence[ManifestEntry]]:
    """Yield the live entries of each manifest, read by PyIceberg's limited thread pool; not for tasks of this pool."""
    return ExecutorFactory.get_or_create().map(partial(live_entries_of, io), manifests)


class WholeTablePlanner(ManifestGroupPlanner):
    """PyIceberg's planner of the scan of a whole table, with cached manifests."""

    def plan_manifest_entries(self, manifests: Iterable[ManifestFile]) -> Iterator[list[ManifestEntry]]:
        """Yield for each manifest the entries of live files with rows."""
        for entries in live_entries(self.io, manifests):
            yield [entry for entry in entries if entry.data_file.record_count]
