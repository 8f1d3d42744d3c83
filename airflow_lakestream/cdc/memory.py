"""What a mirror remembers of rows that it has no longer: entries of a table beside it, `<table>__deleted`.

Without it a late event, older than the deletion of its row, would bring the row back. Each entry is a fact of the
source's history and true whatever becomes of the landing that wrote it, so it is written before the mirror's commit,
and written twice does no harm. A truncation is an entry without a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import COMMIT, POSITION, VERSION, version_schema
from airflow_lakestream.cdc.newest import Mask, Version, is_later, versions
from airflow_lakestream.cdc.places import places
from airflow_lakestream.core.names import DELETED

SUFFIX = DELETED
# The deleted row itself, as Arrow's IPC stream: only of the last event of a partition, where the event that follows
# may be the same row under another key, which leaves out what it has in common with this one.
ROW = "_row"
# Table property: the mirror's own id. Entries of another one that had its name are none of its own.
MIRROR_ID = "lakestream.mirror-uuid"
# More files than that are written anew as one.
MOST_FILES = 32


class Entries(Protocol):
    """Keeps the entries of one mirror: rows of its key's columns, `VERSION` and `ROW`."""

    def read(self) -> pa.Table | None:
        """Return all of them; None without any."""

    def add(self, entries: pa.Table) -> None:
        """Write some down, in a commit of their own. Raises what a commit raises."""


@dataclass(frozen=True)
class Memory:
    """What was remembered at one moment; `key` are the columns of the mirror's key."""

    key: tuple[str, ...]
    entries: pa.Table | None

    @cached_property
    def truncated(self) -> Version | None:
        """The last truncation that is known."""
        if self.entries is None:
            return None
        return max(versions(self.entries.filter(self.entries[self.key[0]].is_null())), default=None)

    def is_dead(self, rows: pa.Table) -> Mask:
        """Tell for each row whether its key was deleted later than its version."""
        dead = np.zeros(len(rows), np.bool_)
        if self.entries is None or not len(rows):
            return dead
        entries = self.entries.filter(self.entries[self.key[0]].is_valid())
        if not len(entries):
            return dead
        last = _last(entries, self.key)
        at = places(rows, last, self.key)
        known = np.flatnonzero(at >= 0)
        dead[known] = is_later(last.take(pa.array(at[known])), rows.take(pa.array(known)))
        return dead

    def moved(self, place: tuple[int, int]) -> pa.Table | None:
        """Return the row that was deleted at a place of the source; None where it was not kept."""
        kept = self._kept
        if kept is None:
            return None
        found = kept.filter(pc.and_(pc.equal(kept[COMMIT], place[0]), pc.equal(kept[POSITION], place[1])))
        return pa.ipc.open_stream(found[ROW][0].as_py()).read_all() if len(found) else None

    @cached_property
    def _kept(self) -> pa.Table | None:
        return None if self.entries is None else self.entries.filter(self.entries[ROW].is_valid())


def entry_schema(key: pa.Schema) -> pa.Schema:
    """Return the columns of entries, for these of a key."""
    return pa.schema([*(field.with_nullable(True) for field in key), *version_schema(), pa.field(ROW, pa.binary())])


def condensed(entries: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the entries that say all that these do, once the rows kept for the next event have had it."""
    of_keys = entries.filter(entries[key[0]].is_valid())
    others = entries.filter(entries[key[0]].is_null())
    kept = pa.concat_tables([_last(of_keys, key), others])
    return kept.set_column(kept.column_names.index(ROW), ROW, pa.nulls(len(kept), pa.binary()))


def _last(entries: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the entry of the greatest version of each key."""
    ordered = entries.take(pc.sort_indices(entries, sort_keys=[(name, "ascending") for name in VERSION]))
    numbered = ordered.select(list(key)).append_column("", pa.array(np.arange(len(ordered))))
    last = numbered.group_by(list(key)).aggregate([("", "max")])["_max"]
    return ordered.take(last)
