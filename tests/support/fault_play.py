"""Plays sequences of the fault harness: the catalog and the folder they share, and what makes them quick."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pyiceberg.avro.file
from pyiceberg.avro.file import AvroFileHeader

from airflow_lakestream.iceberg import sink
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
    """Let the sink try again at once, and PyIceberg not derive the same readers of manifests again and again."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    remembered = _Remembered()
    try:
        with (
            mock.patch.object(sink, "RETRY_PAUSE", 0.0),
            mock.patch.object(AvroFileHeader, "get_schema", lambda header: remembered.schema(header)),
            mock.patch.object(pyiceberg.avro.file, "resolve_reader", remembered.reader),
        ):
            yield
    finally:
        logging.disable(before)


class _Remembered:
    """What PyIceberg derives from the schema in an Avro file's header: half of a sequence's time, if done each time."""

    def __init__(self) -> None:
        self._get_schema = AvroFileHeader.get_schema
        self._resolve_reader = pyiceberg.avro.file.resolve_reader
        self._schemas: dict[str, Any] = {}
        # With what their keys are made of, lest an id comes to stand for another object.
        self._readers: dict[Any, tuple[Any, Any]] = {}

    def schema(self, header: AvroFileHeader) -> Any:
        text = header.meta["avro.schema"]
        if text not in self._schemas:
            self._schemas[text] = self._get_schema(header)
        return self._schemas[text]

    def reader(self, *of: Any) -> Any:
        key = tuple(tuple((k, id(v)) for k, v in part.items()) if isinstance(part, dict) else id(part) for part in of)
        if key not in self._readers:
            self._readers[key] = self._resolve_reader(*of), of
        return self._readers[key][0]
