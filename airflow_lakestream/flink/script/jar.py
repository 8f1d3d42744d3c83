"""The user's own program, in a jar on the driver's machine."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Transient

# The name becomes part of a form's header.
_NAME = re.compile(r"[\w.+ -]+\.jar")


class JarReplaced(LakestreamError, Transient):
    """Error of a jar replaced since the task began."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} was replaced while its job was to be started. The next try takes the new one.")


def check_jar(path: str) -> None:
    """Refuse a path without the name of a jar. Raises InvalidArgument."""
    if not _NAME.fullmatch(Path(path).name):
        remedy = "Write the path of a .jar file on the workers; its name has only letters, digits, spaces and . _ - +"
        raise InvalidArgument("jar", f"{path!r} is not the name of a jar.", remedy)


def read_jar(path: str) -> bytes:
    """Return the content of a jar. Raises InvalidArgument."""
    check_jar(path)
    try:
        return Path(path).read_bytes()
    except OSError as e:
        remedy = "Put it where each worker has it under this path."
        raise InvalidArgument("jar", f"{path} can't be read: {e.strerror}.", remedy) from e


def digest_of(content: bytes) -> str:
    """Return the digest of a content."""
    return hashlib.sha256(content).hexdigest()
