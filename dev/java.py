"""The JDK: found, and checked before anything is started with it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from dev.errors import JavaMissing

OLDEST = 17
# Spark 4 runs on no newer one, and Kafka does.
NEWEST_OF_SPARK = 21

_REMEDY = (
    f"install a JDK {OLDEST} to {NEWEST_OF_SPARK} (Debian and Ubuntu: apt install openjdk-17-jdk-headless; macOS: "
    "brew install openjdk@17), and put it on PATH or name its folder in JAVA_HOME"
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True)
class Jdk:
    """A JDK that is new enough."""

    home: Path
    version: int

    def tool(self, name: str) -> str:
        """Path of one of its programs."""
        program = self.home / "bin" / name
        if not program.exists():
            raise JavaMissing(f"The Java in {self.home} has no {name}: {_REMEDY}.")
        return str(program)

    @property
    def java(self) -> str:
        """Path of the `java` program."""
        return self.tool("java")


def parse_version(output: str) -> int | None:
    """Feature version out of what `java -version` prints: 17 of "17.0.15", 8 of "1.8.0_292"."""
    found = _VERSION.search(output)
    return int(found.group(1)) if found else None


def find_jdk(environment: dict[str, str] | None = None) -> Jdk:
    """Find the first JDK of JAVA_HOME and PATH that runs Spark, or else the first that is new enough for Kafka."""
    environment = dict(os.environ) if environment is None else environment
    versions = {program: version for program in _candidates(environment) if (version := _version_of(program))}
    # Sorting keeps the order of those that are equal.
    for program, version in sorted(versions.items(), key=lambda one: one[1] > NEWEST_OF_SPARK):
        if version >= OLDEST:
            return Jdk(program.resolve().parent.parent, version)
    too_old = [f"{program} is Java {version}" for program, version in versions.items()]
    found = f"Java {OLDEST} is needed, and {', '.join(too_old)}" if too_old else "No Java found"
    raise JavaMissing(f"{found}: {_REMEDY}.")


def _candidates(environment: dict[str, str]) -> list[Path]:
    found = []
    if home := environment.get("JAVA_HOME"):
        found.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        found.append(Path(on_path))
    return found


def _version_of(program: Path) -> int | None:
    try:
        # macOS has a /usr/bin/java that only says there is no Java: it fails, and counts as none.
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_version(answer.stderr + answer.stdout)
