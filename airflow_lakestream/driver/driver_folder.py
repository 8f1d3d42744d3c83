"""The driver's folder, `<checkpoint_location>.lakestream/`: JSON files, each written as a whole.

The folder is next to the checkpoint: the engine owns the checkpoint, and the lease survives a deleted checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_lakestream.driver.lease_record import fingerprint_of
from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.stores.folders import open_folder

_SUFFIX = ".lakestream"
# A random value per file: `create` recognizes its own file by it, even if another process wrote the same content.
_NONCE = "nonce"


class StoreOverwrites(LakestreamError, Terminal):
    """Error of a store without conditional writes: several drivers could hold the lease."""

    def __init__(self, location: str) -> None:
        super().__init__(
            f"checkpoint {location}: its store has created a file that was there, so that two drivers could each hold "
            "the lease. Nothing was started. Take a store with conditional writes: a disk, S3, Google Cloud Storage, "
            "Azure, HDFS, or one that is as strict."
        )


class DriverFolder:
    """The folder of a checkpoint's driver.

    :param checkpoint_location: a path, or a URI in the engine's form.
    :param properties: properties of the checkpoint's object store, see `open_folder`.
    """

    def __init__(self, checkpoint_location: str, properties: Mapping[str, str] | None = None) -> None:
        self._location = checkpoint_location
        self._store = open_folder(checkpoint_location.rstrip("/") + _SUFFIX, properties)

    def names(self) -> list[str]:
        """Return the names of the files, sorted; an empty list if the folder is missing."""
        return self._store.names()

    def read(self, name: str) -> dict[str, Any] | None:
        """Return a file's content; None if missing or damaged."""
        content = self._store.read(name)
        try:
            value = json.loads(content or b"")
        except (ValueError, RecursionError):
            return None
        return {key: item for key, item in value.items() if key != _NONCE} if isinstance(value, dict) else None

    def modified(self, name: str) -> float | None:
        """Return the time of a file's last write, in seconds since 1970; None if unknown."""
        return self._store.modified(name)

    def write(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a file, replacing any earlier file."""
        self._store.write(name, _encoded(value))

    def create(self, name: str, value: Mapping[str, Any]) -> bool:
        """Create a file; return False if another process was first. Raises StoreOverwrites.

        The store must refuse to create an existing file. To prove this, the file is created again, and the store has to
        refuse. If the store does not refuse, the file is deleted and StoreOverwrites is raised.
        """
        if not self._create(name, value):
            return False
        # A store without conditional writes would answer each process that it was first. Only two further successes
        # prove this: a single success may mean that another process has deleted the file meanwhile.
        if self._create(name, value) and self._create(name, value):
            self.remove(name)
            raise StoreOverwrites(self._location)
        return True

    def _create(self, name: str, value: Mapping[str, Any]) -> bool:
        return self._store.create(name, _encoded({**value, _NONCE: uuid.uuid4().hex}))

    def remove(self, name: str) -> None:
        """Delete a file, if present."""
        self._store.remove(name)


def _encoded(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode()


CONFIG_FILE = "app.json"
# Number of a stream's driver folders that are kept for their logs.
_KEPT_FOLDERS = 10


@dataclass(frozen=True)
class DriverConfig:
    """A driver's complete configuration, secrets included, with fingerprint and inputs, which have no secrets."""

    content: Mapping[str, Any]
    fingerprint: str
    inputs: Mapping[str, str]

    def write(self, folder: Path) -> Path:
        """Write the configuration into a file readable only by its owner; return the file's path."""
        file = folder / CONFIG_FILE
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            json.dump(self.content, opened)
        return file


def new_folder(root: Path, stream_id: str, secrets: Iterable[str] = (CONFIG_FILE,)) -> Path:
    """Create the folder of a stream's driver, open only to its owner; clean up the folders of earlier drivers.

    The last ten folders stay for their logs, without the files that may hold secrets. Older folders are deleted.

    :param root: the folder of all streams.
    :param secrets: the names of files that may hold secrets.
    """
    stream = root / fingerprint_of({"location": stream_id})
    earlier = sorted(path for path in stream.glob("*") if path.is_dir())
    for path in earlier:
        delete_secrets(path, secrets)
    for path in earlier[: -_KEPT_FOLDERS + 1]:
        shutil.rmtree(path, ignore_errors=True)
    folder = stream / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:6]}"
    folder.mkdir(mode=0o700, parents=True)
    return folder


def delete_secrets(folder: Path, secrets: Iterable[str]) -> None:
    """Delete the files with possible secrets from a driver's folder, if present."""
    for name in secrets:
        (folder / name).unlink(missing_ok=True)
