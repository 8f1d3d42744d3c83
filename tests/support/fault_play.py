"""Plays sequences of the fault harness: the catalog and the folder they share, and what makes them quick."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pyiceberg.table
from pyiceberg.avro import file as avro
from pyiceberg.avro.file import AvroFileHeader
from pyiceberg.table.metadata import TableMetadataV2

from airflow_lakestream.core.landing import job
from airflow_lakestream.iceberg.commit import attempt, committing
from airflow_lakestream.iceberg.upkeep import ledger_edit
from tests.support.fault_catalog import HarnessCatalog
from tests.support.fault_topics import ModelKafka
from tests.support.fault_world import World

NAMESPACE = "lake"
IN_MEMORY = Path("/dev/shm")


class Playground:
    """A catalog and a warehouse in which one sequence after the other is played."""

    def __init__(self, folder: Path, kafka: ModelKafka | None = None) -> None:
        self._folder = folder
        self._kafka = kafka or ModelKafka()
        (folder / "warehouse").mkdir()
        self._catalog = HarnessCatalog(folder)

    def play(self, random: Random) -> list[str]:
        """Play one sequence, and return its story. Raises Violation."""
        try:
            world = World(random, self._catalog, self._kafka, NAMESPACE)
            world.play()
            return world.story
        finally:
            self._catalog.forget(NAMESPACE)
            shutil.rmtree(self._folder / "warehouse" / NAMESPACE, ignore_errors=True)


@contextmanager
def playground(kafka: ModelKafka | None = None) -> Iterator[Playground]:
    """Give a playground in memory, if this machine has a file system there; runs do not pause and do not log in it."""
    root = IN_MEMORY if IN_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=root, prefix="lakestream-faults-") as folder, _quick():
        yield Playground(Path(folder), kafka)


@contextmanager
def _quick() -> Iterator[None]:
    """Let the sink try again at once, and spare PyIceberg most of what it derives and copies again and again."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    copy = TableMetadataV2.model_copy
    schemas = _remembered(lambda text: get_schema(_header(text)))
    get_schema = AvroFileHeader.get_schema
    try:
        with (
            mock.patch.object(committing, "RETRY_PAUSE", 0.0),
            mock.patch.object(ledger_edit, "RETRY_PAUSE", 0.0),
            mock.patch.object(job, "GIVE_WAY", 0.0),
            mock.patch.object(AvroFileHeader, "get_schema", lambda header: schemas(header.meta["avro.schema"])),
            mock.patch.object(avro, "resolve_reader", _remembered(avro.resolve_reader)),
            mock.patch.object(avro, "construct_reader", _remembered(avro.construct_reader)),
            # Looks at staged metadata, and commits, without a deep copy each: nothing changes a table's metadata.
            mock.patch.object(pyiceberg.table, "update_table_metadata", attempt._apply),
            mock.patch.object(
                TableMetadataV2, "model_copy", lambda self, *, update=None, **_: copy(self, update=update)
            ),
        ):
            yield
    finally:
        logging.disable(before)


def _remembered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes the same only once: half of a sequence's time is readers of manifests."""
    known: dict[Any, tuple[Any, Any]] = {}

    def remembering(*of: Any) -> Any:
        key = tuple(map(_identity, of))
        if key not in known:
            # With what the key is made of, lest an id comes to stand for another object.
            known[key] = function(*of), of
        return known[key][0]

    return remembering


def _identity(part: Any) -> Any:
    if isinstance(part, dict):
        return tuple((name, id(value)) for name, value in part.items())
    return part if isinstance(part, str) else id(part)


def _header(schema: str) -> AvroFileHeader:
    return AvroFileHeader(b"", {"avro.schema": schema}, b"")
