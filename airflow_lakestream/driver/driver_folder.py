"""The folder beside a checkpoint, `<checkpoint_location>.lakestream/`: JSON files, each written as a whole.

Beside it, not in it: Spark owns the checkpoint, and who deletes the checkpoint keeps the lease.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from airflow_lakestream.stores.folders import open_folder

_SUFFIX = ".lakestream"
# Tells what this process has created from what another one has, were it the same.
_NONCE = "nonce"


class DriverFolder:
    """The folder of one checkpoint.

    :param checkpoint_location: a path, or a URI as Spark takes it.
    :param properties: what opens its object store, see `open_folder`.
    """

    def __init__(self, checkpoint_location: str, properties: Mapping[str, str] | None = None) -> None:
        self._store = open_folder(checkpoint_location.rstrip("/") + _SUFFIX, properties)

    def names(self) -> list[str]:
        """Return the names of the files, sorted; none where the folder is missing."""
        return self._store.names()

    def read(self, name: str) -> dict[str, Any] | None:
        """Return what a file holds; None where it is missing, or damaged."""
        content = self._store.read(name)
        try:
            value = json.loads(content or b"")
        except (ValueError, RecursionError):
            return None
        return {key: item for key, item in value.items() if key != _NONCE} if isinstance(value, dict) else None

    def modified(self, name: str) -> float | None:
        """Return when a file was last written, in seconds since 1970; None where that can't be told."""
        return self._store.modified(name)

    def write(self, name: str, value: Mapping[str, Any]) -> None:
        """Put a file in the place of what is there."""
        self._store.write(name, _encoded(value))

    def create(self, name: str, value: Mapping[str, Any]) -> bool:
        """Make a file; False where somebody else has made it."""
        return self._store.create(name, _encoded({**value, _NONCE: uuid.uuid4().hex}))

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        self._store.remove(name)


def _encoded(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode()
