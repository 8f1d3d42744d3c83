"""The Java for Spark, found in the same order as Spark finds Java: JAVA_HOME, then PATH."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from airflow_lakestream.exceptions import LakestreamError, Terminal

# Older versions can't load Spark 4's classes. Newer versions have no security manager, which Spark's Hadoop requires.
_OLDEST, _NEWEST = 17, 21


class JavaUnfit(LakestreamError, Terminal):
    """Error of a missing Java, or of a Java unfit for Spark."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"{problem}. Spark 4 needs a JDK {_OLDEST} or {_NEWEST}: install one, and set JAVA_HOME or PATH."
        )


def java_path(environment: Mapping[str, str] = os.environ) -> str:
    """Return the path of the program `java`: of JAVA_HOME if set, else the first on PATH. Raises JavaUnfit."""
    home = environment.get("JAVA_HOME")
    path = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment.get("PATH", ""))
    if path is None:
        raise JavaUnfit("there is no java on PATH, and JAVA_HOME is not set")
    return path


def check_java(environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Return path and version of Spark's `java`. Raises JavaUnfit."""
    java = java_path(environment)
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603  # as Spark runs it
    except (OSError, subprocess.TimeoutExpired) as e:
        raise JavaUnfit(f"Spark needs Java, and {java} can't be run ({e})") from e
    version_line = re.search(r'version "(?:1\.)?(\d+)[^"]*"', done.stderr + done.stdout)
    if done.returncode or version_line is None:
        raise JavaUnfit(f"{java} -version fails")
    version = int(version_line[1])
    if not _OLDEST <= version <= _NEWEST:
        raise JavaUnfit(f"{java} is version {version}, on which Spark does not run")
    return java, version
