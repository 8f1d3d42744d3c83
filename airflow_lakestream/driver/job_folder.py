"""The folder of a driver launched by a worker: the configuration, readable only by its owner, and the log."""

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

CONFIG_FILE = "app.json"
# Folders of earlier drivers, kept for their logs.
_KEPT_FOLDERS = 10


@dataclass(frozen=True)
class DriverConfig:
    """A driver's complete configuration; `content` holds secrets, `inputs` and `fingerprint` do not."""

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
