"""Before a query goes on: its checkpoint and its table stand at the same batch, or the checkpoint is taken back to it.

The table decides. A checkpoint that is ahead of it (the table was rolled back) is taken back to the table's batch, if
Spark still has the files of that batch: it keeps those of the last 100. All else is refused: a checkpoint that is gone,
another one, or one that is behind the table, has not the state that the table's rows were made with.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator

from airflow_lakestream.core.landing.streamed import WAYS_OUT, LandedBesideStream, StreamReplaced
from airflow_lakestream.core.ledger import Streamed, TopicEntry
from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.spark.checkpoint import Checkpoint
from airflow_lakestream.stores.folders import Store

log = logging.getLogger(__name__)

# The files of a state store's versions: whole ones, and changes since the version before.
_VERSION = re.compile(r"(\d+)(?:_[\w-]+)?\.(snapshot|zip|delta|changelog)")
_WHOLE = ("snapshot", "zip")
# Folders of a state store that have no versions.
_SHARED = ("SSTs", "logs")


class CheckpointLost(LakestreamError, Terminal):
    """The table has batches of a query whose checkpoint is not there."""

    def __init__(self, table: str, location: str, last: Streamed) -> None:
        super().__init__(
            f"{table} holds {last}, and there is no checkpoint at {location}: the state of that query is gone with it. "
            f"Nothing was landed: windows that were open would be landed wrong, or twice. {WAYS_OUT}"
        )


class RolledBackTooFar(LakestreamError, Terminal):
    """The table was rolled back to a batch that the checkpoint can't be taken back to."""

    def __init__(self, table: str, location: str, last: Streamed | None, missing: str) -> None:
        held = "no batch" if last is None else str(last)
        super().__init__(
            f"{table} was rolled back: it holds {held}. The checkpoint {location} can't be taken back so far: "
            f"{missing} (Spark keeps the files of the last 100 batches: spark.sql.streaming.minBatchesToRetain). "
            f"Nothing was changed. Roll the table forward to a later batch; or: {WAYS_OUT}"
        )


def align(checkpoint: Checkpoint | None, entry: TopicEntry, table: str, consumer_group: str, location: str) -> bool:
    """Take the checkpoint back to the batch that the table holds; return whether it was ahead.

    :param entry: the books of the topic.

    Raises CheckpointLost, StreamReplaced, RolledBackTooFar, LandedBesideStream.
    """
    last = entry.streamed
    if last is None and entry.held:
        what = "its ledger has landings of another kind, whose records the stream's state would lack."
        raise LandedBesideStream(table, consumer_group, what)
    if checkpoint is None:
        if last is not None:
            raise CheckpointLost(table, location, last)
        return False
    if last is not None and last.query_id != checkpoint.query_id:
        raise StreamReplaced(table, f"and the checkpoint {location} is of query {checkpoint.query_id}.", last)
    held = -1 if last is None else last.batch_id
    planned = checkpoint.planned[-1] if checkpoint.planned else -1
    if last is not None and held > planned:
        raise StreamReplaced(
            table, f"and the checkpoint {location} has no batch after {planned}: it is an old copy.", last
        )
    committed = checkpoint.committed[-1] if checkpoint.committed else -1
    # Plans without commits are left where a driver was killed while it took the checkpoint back.
    if committed <= held and planned <= held + 1:
        return False
    _check_files(checkpoint, table, last)
    log.warning(
        "%s was rolled back: it holds %s. The checkpoint is taken back to it, from batch %s.",
        table,
        last or "no batch",
        planned,
    )
    _take_back(checkpoint, held)
    return True


def _check_files(checkpoint: Checkpoint, table: str, last: Streamed | None) -> None:
    """Raise RolledBackTooFar if a file is missing that the query needs to go on after a batch."""
    batch = -1 if last is None else last.batch_id
    if batch < 0:
        missing = "" if 0 in checkpoint.planned and checkpoint.start is not None else "its first batch"
    elif batch not in checkpoint.planned or batch not in checkpoint.committed:
        missing = f"batch {batch}"
    else:
        stores = ((place, versions) for place, versions in _states(checkpoint.store))
        missing = next((f"the state {place}" for place, versions in stores if not _has(versions, batch + 1)), "")
    if missing:
        raise RolledBackTooFar(table, checkpoint.location, last, f"{missing} is not there any more")


def _take_back(checkpoint: Checkpoint, batch: int) -> None:
    """Delete what came after a batch; killed in the middle of it, the next start does it again.

    State goes, too: Spark would take a whole version of before for one that it makes anew. It goes first, while plans
    and commits show that the checkpoint is ahead. A plan without its commit is one that Spark carries out again.
    """
    store = checkpoint.store
    for place, versions in _states(store):
        for name, version, _ in versions:
            if version > batch + 1:
                _remove(store, place, name)
    for log_of, batches in (("commits", checkpoint.committed), ("offsets", checkpoint.planned)):
        for one in reversed(batches):
            if one > batch:
                _remove(store, log_of, str(one))


def _remove(store: Store, folder: str, name: str) -> None:
    # Hadoop's local file system keeps a checksum beside each file; left over, nobody would look for it again.
    store.remove(f"{folder}/.{name}.crc")
    store.remove(f"{folder}/{name}")


# A file's name, version and kind.
_Versions = list[tuple[str, int, str]]


def _states(store: Store) -> Iterator[tuple[str, _Versions]]:
    """Yield each state store's folder, state/<operator>/<partition>[/<store>], and the versions in it."""
    for operator in filter(str.isdigit, store.names("state")):
        for partition in filter(str.isdigit, store.names(f"state/{operator}")):
            place = f"state/{operator}/{partition}"
            names = store.names(place)
            yield place, _versions(names)
            for name in names:
                # A join has several stores for each partition.
                if "." not in name and name not in _SHARED:
                    yield f"{place}/{name}", _versions(store.names(f"{place}/{name}"))


def _versions(names: Iterable[str]) -> _Versions:
    found = ((name, _VERSION.fullmatch(name)) for name in names)
    return [(name, int(match[1]), match[2]) for name, match in found if match]


def _has(versions: _Versions, version: int) -> bool:
    """Tell whether a version can be loaded: from a whole one before it, or from nothing, and all changes since."""
    if not versions:
        return True
    whole = max((number for _, number, kind in versions if kind in _WHOLE and number <= version), default=0)
    changes = {number for _, number, kind in versions if kind not in _WHOLE}
    return all(number in changes for number in range(whole + 1, version + 1))
