"""The machine itself: Java, and what is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from airflow_lakestream.onramp.doctor.finding import Finding, Health

JAVA, PACKAGES = "java", "packages"
_OLDEST = 17
_DISTRIBUTION = "airflow-lakestream"


def check_java(*, needed: bool) -> Iterator[Finding]:
    """Look for a Java that Spark runs on, where Spark itself looks: JAVA_HOME, then PATH."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    why = "Spark 4 needs a JDK 17 or 21: install one, and set JAVA_HOME or PATH."
    # Without Spark, Java is of no use.
    bad = Health.WRONG if needed else Health.NOTE
    if found is None:
        yield Finding(JAVA, bad, f"there is none on PATH, and JAVA_HOME is not set. {why}")
        return
    try:
        done = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603  # as Spark runs it
    except (OSError, subprocess.TimeoutExpired) as e:
        yield Finding(JAVA, bad, f"{found} can't be run: {e}. {why}")
        return
    said = re.search(r'version "(?:1\.)?(\d+)[^"]*"', done.stderr + done.stdout)
    if done.returncode or said is None:
        yield Finding(JAVA, bad, f"{found} -version fails. {why}")
    elif int(said[1]) < _OLDEST:
        yield Finding(JAVA, bad, f"{found} is version {said[1]}. {why}")
    else:
        yield Finding(JAVA, Health.OK, f"{found} is version {said[1]}.")


def check_packages(needed: Collection[str]) -> Iterator[Finding]:
    """Compare what is installed with what the package and its extras ask for.

    :param needed: the extras that have to be there.
    """
    by_extra: dict[str, list[Requirement]] = {}
    for text in metadata.requires(_DISTRIBUTION) or ():
        requirement = Requirement(text)
        if requirement.name != _DISTRIBUTION:
            by_extra.setdefault(_extra_of(text), []).append(requirement)
    # The others together.
    by_extra.pop("all", None)
    problems = [problem for one in by_extra.pop("", []) if (problem := _problem(one)) is not None]
    version = metadata.version(_DISTRIBUTION)
    if problems:
        yield Finding(PACKAGES, Health.WRONG, f"{'; '.join(problems)}. pip install {_DISTRIBUTION}=={version}")
    else:
        yield Finding(PACKAGES, Health.OK, f"{_DISTRIBUTION} {version}, and what it needs.")
    for extra, requirements in sorted(by_extra.items()):
        problems = [problem for one in requirements if (problem := _problem(one)) is not None]
        if not problems:
            yield Finding(PACKAGES, Health.OK, f"extra {extra}: installed.")
            continue
        health = Health.WRONG if extra in needed else Health.NOTE
        remedy = f"To use it: pip install '{_DISTRIBUTION}[{extra}]'"
        yield Finding(PACKAGES, health, f"extra {extra}: {'; '.join(problems)}. {remedy}")


def _extra_of(requirement: str) -> str:
    found = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", requirement)
    return found[1] if found else ""


def _problem(requirement: Requirement) -> str | None:
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return f"{requirement.name} is not installed"
    if not requirement.specifier.contains(version, prereleases=True):
        return f"{requirement.name} is {version}, and has to be {requirement.specifier}"
    return None
