"""Alignment of a query's checkpoint with the table before the query continues.

The table decides. A checkpoint that is ahead of the table (the table was rolled back) is taken back to the table's
batch, if Spark still has the files of that batch: Spark keeps the files of the last 100. Everything else is refused:
a checkpoint that is gone, another checkpoint, or a checkpoint behind the table lacks the state of the table's rows.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator

from airflow_lakestream.core.landing.modes import WAYS_OUT, LandedBesideStream, StreamReplaced
from airflow_lakestream.core.ledger import StreamBatch, TopicEntry
from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.spark.checkpoint import QueryCheckpoint
from airflow_lakestream.stores.folders import FolderStore

log = logging.getLogger(__name__)

# The files of a state store's versions: whole versions, and changes since the version before.
_VERSION = re.compile(r"(\d+)(?:_[\w-]+)?\.(snapshot|zip|delta|changelog)")
_WHOLE = ("snapshot", "zip")
# Folders of a state store that have no versions.
_SHARED = ("SSTs", "logs")


class CheckpointLost(LakestreamError, Terminal):
    """Error of a table with batches of a query whose checkpoint is gone."""

    def __init__(self, table: str, location: str, last: StreamBatch) -> None:
        super().__init__(
            f"{table} holds {last}, and there is no checkpoint at {location}: the state of that query is gone with it. "
            f"Nothing was landed: windows that were open would be landed wrong, or twice. {WAYS_OUT}"
        )


class RolledBackTooFar(LakestreamError, Terminal):
    """Error of a table rolled back further than the checkpoint can be taken back."""

    def __init__(self, table: str, location: str, last: StreamBatch | None, missing: str) -> None:
        held = "no batch" if last is None else str(last)
        super().__init__(
            f"{table} was rolled back: it holds {held}. The checkpoint {location} can't be taken back so far: "
            f"{missing} (Spark keeps the files of the last 100 batches: spark.sql.streaming.minBatchesToRetain). "
            f"Nothing was changed. Roll the table forward to a later batch; or: {WAYS_OUT}"
        )


def align(
    checkpoint: QueryCheckpoint | None, entry: TopicEntry, table: str, consumer_group: str, location: str
) -> bool:
    """Take the checkpoint back to the table's batch; return whether the checkpoint was changed.

    A checkpoint that is not ahead of the table stays as it is.

    :param checkpoint: the query's checkpoint; None before the query's first start.
    :param entry: the ledger entry of the topic, with the last batch of a query in the table.

    Raises CheckpointLost, StreamReplaced, RolledBackTooFar, and LandedBesideStream if the ledger has other landings.
    """
    last = entry.streamed
    if last is None and entry.held:
        problem = "its ledger has landings of another kind, whose records the stream's state would lack."
        raise LandedBesideStream(table, consumer_group, problem)
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
    # Plans without commits remain if a driver was killed while it took the checkpoint back.
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


def _check_files(checkpoint: QueryCheckpoint, table: str, last: StreamBatch | None) -> None:
    """Raise RolledBackTooFar if a file is missing that the query needs to continue after a batch.

    These files are plan and commit of the batch and the state after the batch, or the first plan without a batch.

    :param last: the batch in the table; None for a table without a batch.
    """
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


def _take_back(checkpoint: QueryCheckpoint, batch: int) -> None:
    """Delete the files after a batch; if the driver is killed meanwhile, the next start repeats the deletion.

    State goes, too: Spark would take an old version of the state for a new version of the same number. It goes first,
    while plans and commits show that the checkpoint is ahead. Spark carries out again a plan without a commit.
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


def _remove(store: FolderStore, folder: str, name: str) -> None:
    # Hadoop's local file system keeps a checksum next to each file; a leftover checksum would stay for ever.
    store.remove(f"{folder}/.{name}.crc")
    store.remove(f"{folder}/{name}")


# A file's name, version and kind.
_Versions = list[tuple[str, int, str]]


def _states(store: FolderStore) -> Iterator[tuple[str, _Versions]]:
    """Yield each state store's folder, state/<operator>/<partition>[/<store>], and the versions in the folder."""
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
    matches = ((name, _VERSION.fullmatch(name)) for name in names)
    return [(name, int(match[1]), match[2]) for name, match in matches if match]


def _has(versions: _Versions, version: int) -> bool:
    """Return whether a version of a store can be loaded: from the last whole version, with all changes since.

    Without a whole version, the changes since the start are needed. A store without versions can be loaded.
    """
    if not versions:
        return True
    last_full = max((number for _, number, kind in versions if kind in _WHOLE and number <= version), default=0)
    changes = {number for _, number, kind in versions if kind not in _WHOLE}
    return all(number in changes for number in range(last_full + 1, version + 1))
