"""A program of the user's own, in a jar beside the driver."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Transient

# It stands in the head of a form.
_NAME = re.compile(r"[\w.+ -]+\.jar")


class JarReplaced(LakestreamError, Transient):
    """The file is another one than when the task began."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} was replaced while its job was to be started. The next try takes the new one.")


def check_jar(path: str) -> None:
    """Refuse what is no name of a jar. Raises InvalidArgument."""
    if not _NAME.fullmatch(Path(path).name):
        remedy = "Write the path of a .jar file on the workers; its name has letters, digits and . _ - + alone."
        raise InvalidArgument("jar", f"{path!r} is no name of a jar.", remedy)


def read_jar(path: str) -> bytes:
    """Return what is in it. Raises InvalidArgument."""
    check_jar(path)
    try:
        return Path(path).read_bytes()
    except OSError as e:
        remedy = "Put it where each worker has it under this path."
        raise InvalidArgument("jar", f"{path} can't be read: {e.strerror}.", remedy) from e


def digest_of(content: bytes) -> str:
    """Return what is equal for equal content alone."""
    return hashlib.sha256(content).hexdigest()
