"""Checks of the machine: Java, and installed packages."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from importlib import metadata

from packaging.requirements import Requirement

from airflow_lakestream.exceptions import MissingExtra, install_command
from airflow_lakestream.onramp.doctor.finding import DoctorFinding, PartHealth
from airflow_lakestream.spark.packages import JavaUnfit, SparkMixed, check_spark, check_submitter
from airflow_lakestream.spark.packages import check_java as find_java

JAVA, PACKAGES = "java", "packages"
_DISTRIBUTION = "airflow-lakestream"
_SPARK = "spark"


def check_java(*, needed: bool) -> Iterator[DoctorFinding]:
    """Look for a Java version that Spark can use.

    :param needed: whether missing Java is a problem; False: missing Java is only a note.
    """
    try:
        java, version = find_java()
    except JavaUnfit as e:
        yield DoctorFinding(JAVA, PartHealth.WRONG if needed else PartHealth.NOTE, str(e))
    else:
        yield DoctorFinding(JAVA, PartHealth.OK, f"{java} is version {version}.")


def check_packages(needed: Collection[str]) -> Iterator[DoctorFinding]:
    """Compare the installed packages with the requirements of the package and of each extra.

    :param needed: the extras that must be installed; any other missing extra is only a note.
    """
    by_extra: dict[str, list[Requirement]] = {}
    for text in metadata.requires(_DISTRIBUTION) or ():
        requirement = Requirement(text)
        if requirement.name != _DISTRIBUTION:
            by_extra.setdefault(_extra_of(text), []).append(requirement)
    # The extra `all` combines the other extras.
    by_extra.pop("all", None)
    problems = [problem for requirement in by_extra.pop("", []) if (problem := _problem(requirement)) is not None]
    version = metadata.version(_DISTRIBUTION)
    if problems:
        yield DoctorFinding(
            PACKAGES, PartHealth.WRONG, f"{'; '.join(problems)}. {_DISTRIBUTION} {version} needs: {install_command()}"
        )
    else:
        yield DoctorFinding(PACKAGES, PartHealth.OK, f"{_DISTRIBUTION} {version}, and what it needs.")
    for extra, requirements in sorted(by_extra.items()):
        problems = [problem for requirement in requirements if (problem := _problem(requirement)) is not None]
        if extra == _SPARK:
            # A folder with two versions of Spark is the cause of any other problem: only the cause is reported.
            with suppress(MissingExtra):
                try:
                    check_spark()
                    check_submitter()
                except SparkMixed as e:
                    problems = [str(e)]
        if not problems:
            yield DoctorFinding(PACKAGES, PartHealth.OK, f"extra {extra}: installed.")
            continue
        health = PartHealth.WRONG if extra in needed else PartHealth.NOTE
        remedy = f"To use it: {install_command(extra)}"
        yield DoctorFinding(PACKAGES, health, f"extra {extra}: {'; '.join(problems)}. {remedy}")


def _extra_of(requirement: str) -> str:
    match = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", requirement)
    return match[1] if match else ""


def _problem(requirement: Requirement) -> str | None:
    """Return why an installed package does not meet a requirement, or None."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return f"{requirement.name} is not installed"
    if not requirement.specifier.contains(version, prereleases=True):
        return f"{requirement.name} is {version}, and has to be {requirement.specifier}"
    return None
