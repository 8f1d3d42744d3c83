"""The Java that Spark runs on, found where Spark itself looks: JAVA_HOME, then PATH."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from airflow_lakestream.exceptions import LakestreamError, Terminal

# Older ones can't load Spark 4's classes. Newer ones have no security manager, which its Hadoop still asks for.
_OLDEST, _NEWEST = 17, 21


class JavaUnfit(LakestreamError, Terminal):
    """There is no Java that Spark runs on."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"{problem}. Spark 4 needs a JDK {_OLDEST} or {_NEWEST}: install one, and set JAVA_HOME or PATH."
        )


def java_path(environment: Mapping[str, str] = os.environ) -> str:
    """Return the program `java`. Raises JavaUnfit where there is none."""
    home = environment.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment.get("PATH", ""))
    if found is None:
        raise JavaUnfit("there is no java on PATH, and JAVA_HOME is not set")
    return found


def check_java(environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Return the program `java` that Spark would start, and its version. Raises JavaUnfit."""
    java = java_path(environment)
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603  # as Spark runs it
    except (OSError, subprocess.TimeoutExpired) as e:
        raise JavaUnfit(f"Spark needs Java, and {java} can't be run ({e})") from e
    said = re.search(r'version "(?:1\.)?(\d+)[^"]*"', done.stderr + done.stdout)
    if done.returncode or said is None:
        raise JavaUnfit(f"{java} -version fails")
    version = int(said[1])
    if not _OLDEST <= version <= _NEWEST:
        raise JavaUnfit(f"{java} is version {version}, on which Spark does not run")
    return java, version
