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
    """Look for a Java version fit for Spark.

    :param needed: a lack of Java is a problem; otherwise only a note.
    """
    try:
        java, version = find_java()
    except JavaUnfit as e:
        # Without Spark, Java is not needed.
        yield DoctorFinding(JAVA, PartHealth.WRONG if needed else PartHealth.NOTE, str(e))
    else:
        yield DoctorFinding(JAVA, PartHealth.OK, f"{java} is version {version}.")


def check_packages(needed: Collection[str]) -> Iterator[DoctorFinding]:
    """Compare the installed packages with the requirements of the package and of each extra.

    :param needed: the extras whose lack is a problem; a lack of other extras is only a note.
    """
    by_extra: dict[str, list[Requirement]] = {}
    for text in metadata.requires(_DISTRIBUTION) or ():
        requirement = Requirement(text)
        if requirement.name != _DISTRIBUTION:
            by_extra.setdefault(_extra_of(text), []).append(requirement)
    # The extra `all` combines the other extras.
    by_extra.pop("all", None)
    problems = [problem for one in by_extra.pop("", []) if (problem := _problem(one)) is not None]
    version = metadata.version(_DISTRIBUTION)
    if problems:
        yield DoctorFinding(
            PACKAGES, PartHealth.WRONG, f"{'; '.join(problems)}. {_DISTRIBUTION} {version} needs: {install_command()}"
        )
    else:
        yield DoctorFinding(PACKAGES, PartHealth.OK, f"{_DISTRIBUTION} {version}, and what it needs.")
    for extra, requirements in sorted(by_extra.items()):
        problems = [problem for one in requirements if (problem := _problem(one)) is not None]
        if extra == _SPARK:
            # Of two versions in one folder each is another one than the pin: the cause goes first.
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
