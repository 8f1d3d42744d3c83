"""The Java and the jars for the installed Spark: Java is found as Spark does, jars are resolved once and kept.

Resolved by pyspark's Ivy, with Ivy's own settings: Maven need not be installed, and a repository that is
configured for Ivy or Spark is used.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, MissingExtra, Terminal, Transient
from airflow_lakestream.run.storage import FULL_DISK

log = logging.getLogger(__name__)


# Older Javas can't load Spark 4's classes. Newer Javas have no security manager, which Spark's Hadoop requires.
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
    """Return path and version (such as 17) of Spark's `java`. Raises JavaUnfit."""
    java = java_path(environment)
    try:
        result = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603  # as Spark runs it
    except (OSError, subprocess.TimeoutExpired) as e:
        raise JavaUnfit(f"Spark needs Java, and {java} can't be run ({e})") from e
    version_line = re.search(r'version "(?:1\.)?(\d+)[^"]*"', result.stderr + result.stdout)
    if result.returncode or version_line is None:
        raise JavaUnfit(f"{java} -version fails")
    version = int(version_line[1])
    if not _OLDEST <= version <= _NEWEST:
        raise JavaUnfit(f"{java} is version {version}, on which Spark does not run")
    return java, version


# Environment variable with the jars' folder, for machines where the default (~/.cache) is not writable.
CACHE_VARIABLE = "AIRFLOW_LAKESTREAM_JARS"
# The version of Spark in the extra `spark`: the tests run on this version.
PROVEN = "4.0.0"
_SCALA = "2.13"
# Schemes of files on this machine.
_LOCAL = ("", "file", "local")
_COORDINATES = re.compile(r"([\w.-]+):([\w.-]+):([\w.-]+)")
# Ivy's messages for a repository that does not answer. Ivy then also reports that the package was not found.
_NO_ANSWER = re.compile(
    r"server access error|\bjava(x)?\.net\.|UnknownHost|Connection (refused|reset|timed out)", re.IGNORECASE
)
_JAR_VERSION = re.compile(r"-\d[\w.+-]*\.jar$")


class PackagesUnavailable(LakestreamError, Transient):
    """Error of a failed download of jars."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"the jars for Spark could not be fetched: {problem}. Check the network (a proxy goes into "
            "JAVA_TOOL_OPTIONS), or give existing jars by spark.jars."
        )


class PackagesMissing(LakestreamError, Terminal):
    """Error of a package missing in all repositories in this version."""

    def __init__(self, message: str, spark: str) -> None:
        super().__init__(
            f"the jars for Spark could not be fetched: {message}. The repositories answer, and do not have it. The "
            f"installed pyspark is {spark}; {PROVEN} has been tried: install that, or give existing jars by spark.jars."
        )


class SparkMixed(LakestreamError, Terminal):
    """Error of two versions of Spark where a driver needs one."""


class NoRoomForJars(LakestreamError, Transient):
    """Error of a full disk for the fetched jars."""

    def __init__(self, folder: Path, message: str) -> None:
        super().__init__(
            f"the jars for Spark could not be fetched to {folder}: a disk is full ({message}). Free space there and in "
            f"Ivy's own folder (~/.ivy2), or let {CACHE_VARIABLE} name another folder."
        )


def kafka_packages(spark_version: str | None = None) -> tuple[str, ...]:
    """Return the Maven coordinates of Spark's Kafka source, for the installed Spark or another version."""
    return (f"org.apache.spark:spark-sql-kafka-0-10_{_SCALA}:{spark_version or installed_spark()}",)


def installed_spark() -> str:
    """Return the version of the installed pyspark. Raises MissingExtra without pyspark."""
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        raise MissingExtra("spark", "pyspark") from None


def check_spark() -> str:
    """Return the version of the installed Spark. Raises MissingExtra, and SparkMixed if pyspark-client differs."""
    spark = installed_spark()
    with suppress(importlib.metadata.PackageNotFoundError):
        if (client := importlib.metadata.version("pyspark-client")) != spark:
            raise SparkMixed(
                f"pyspark is {spark}, and pyspark-client {client}: both are installed into one folder, which now has "
                "files of either. Install one version of the two: pip install --force-reinstall --no-deps "
                f"pyspark=={PROVEN} pyspark-client=={PROVEN}"
            )
    return spark


def check_submitter(binary: str = "spark-submit", environment: Mapping[str, str] = os.environ) -> None:
    """Refuse a `spark-submit` of another Spark, by the minor version, than the installed pyspark. Raises SparkMixed.

    As in Spark's own scripts, SPARK_HOME decides, or else the folder of the program. A folder without Spark's jars,
    such as that of pyspark's script, is not checked.
    """
    home, source = environment.get("SPARK_HOME"), "SPARK_HOME"
    if not home:
        program = shutil.which(binary, path=environment.get("PATH", ""))
        if program is None:
            return
        home, source = str(Path(program).resolve().parents[1]), f"by {program}"
    spark, other = installed_spark(), jar_version("spark-core_*", Path(home, "jars"))
    if other and other.split(".")[:2] != spark.split(".")[:2]:
        raise SparkMixed(
            f"{binary} would run Spark {other} in {home} ({source}), and the installed pyspark is {spark}, whose jars "
            f"the bundled apps take. Unset SPARK_HOME, and put the spark-submit of pyspark first on PATH; or let both "
            f"lead to a Spark {spark}."
        )


def cut_jars(jars: str) -> list[str]:
    """Return the local jars that are cut or damaged.

    :param jars: the value of spark.jars.
    """
    addresses = [address.strip() for address in jars.split(",")]
    paths = {address: Path(urlsplit(address).path) for address in addresses if urlsplit(address).scheme in _LOCAL}
    return [address for address, path in paths.items() if path.is_file() and not zipfile.is_zipfile(path)]


def jar_version(artifact: str, folder: Path | None = None) -> str:
    """Return a jar's version in a folder, by default the installed Spark's folder of jars; "" if the jar is missing."""
    for jar in (folder or _spark_jars()).glob(f"{artifact}-*.jar"):
        if match := _JAR_VERSION.search(jar.name):
            return match[0].removeprefix("-").removesuffix(".jar")
    return ""


def resolve(coordinates: Sequence[str], cache: str | Path | None = None, without: Sequence[str] = ()) -> list[str]:
    """Return the paths of the jars of packages, and of their dependencies that Spark lacks.

    The jars are fetched at the first call only; safe for several processes at once.

    :param coordinates: such as "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0".
    :param cache: folder that keeps the jars; default: `AIRFLOW_LAKESTREAM_JARS`, else below ~/.cache.
    :param without: group:artifact of dependencies to leave out.

    Raises InvalidArgument for malformed coordinates, PackagesUnavailable, PackagesMissing, NoRoomForJars,
    JavaUnfit.
    """
    for package in coordinates:
        if _COORDINATES.fullmatch(package) is None:
            raise InvalidArgument("packages", f"{package!r} is not group:artifact:version.")
    key = "\n".join([installed_spark(), *sorted(coordinates), *sorted(without)])
    folder = _cache(cache)
    target = folder / hashlib.sha256(key.encode()).hexdigest()[:16]
    if not target.is_dir():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _locked(folder / ".lock"):
                # Another process may have fetched the jars while this process waited for the lock.
                if not target.is_dir():
                    _fetch(coordinates, target, without)
        except OSError as e:
            if e.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise NoRoomForJars(folder, str(e.strerror)) from e
    return sorted(str(jar) for jar in target.glob("*.jar"))


def _cache(folder: str | Path | None) -> Path:
    """Return the folder that keeps jars: `folder`, or the environment variable's, or the default."""
    if folder is not None:
        return Path(folder)
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "airflow-lakestream" / "jars"
    return Path(os.environ.get(CACHE_VARIABLE) or default)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(coordinates: Sequence[str], target: Path, without: Sequence[str]) -> None:
    """Fetch packages and their dependencies into a new folder. Raises the errors of `resolve`."""
    log.info("Spark's first start here fetches %s with its dependencies, once, to %s.", ", ".join(coordinates), target)
    scratch = Path(tempfile.mkdtemp(prefix=".fetch-", dir=target.parent))
    try:
        _run_ivy(coordinates, scratch, without)
        artifacts_of_spark = {_JAR_VERSION.sub("", jar.name) for jar in _spark_jars().glob("*.jar")}
        for jar in (scratch / "lib").glob("*.jar"):
            # Jars that Spark has would be on the class path in two versions.
            if _JAR_VERSION.sub("", jar.name) in artifacts_of_spark:
                jar.unlink()
        for package in coordinates:
            _, artifact, version = package.split(":")
            if not (scratch / "lib" / f"{artifact}-{version}.jar").is_file():
                raise PackagesUnavailable(f"Ivy came back without {package}")
        # The rename marks the set as complete.
        (scratch / "lib").replace(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run_ivy(coordinates: Sequence[str], scratch: Path, without: Sequence[str]) -> None:
    """Let Ivy write packages and their dependencies to `lib` in a folder. Raises the errors of `resolve`."""
    dependencies = []
    for group, artifact, version in (package.split(":") for package in coordinates):
        dependencies.append(f'<dependency org="{group}" name="{artifact}" rev="{version}" conf="default->default"/>')
    for group, artifact in (dependency.split(":") for dependency in without):
        dependencies.append(f'<exclude org="{group}" module="{artifact}"/>')
    (scratch / "ivy.xml").write_text(
        '<ivy-module version="2.0"><info organisation="airflow-lakestream" module="spark-jars"/>'
        f'<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(dependencies)}</dependencies></ivy-module>"
    )
    ivy_jars = sorted(_spark_jars().glob("ivy-*.jar"))
    if not ivy_jars:
        raise PackagesUnavailable("the installed pyspark brings no Ivy")
    java = java_path()
    command = [java, "-jar", str(ivy_jars[-1]), "-ivy", "ivy.xml", "-confs", "default", "-retrieve"]
    command.append("lib/[artifact]-[revision](-[classifier]).[ext]")
    try:
        ivy = subprocess.run(command, cwd=scratch, capture_output=True, text=True, errors="replace", check=False)  # noqa: S603  # our own arguments
    except OSError as e:
        raise JavaUnfit(f"Spark needs Java, and {java} can't be run ({e.strerror})") from e
    if ivy.returncode:
        output = ivy.stdout.splitlines()
        lines = [*output, *ivy.stderr.splitlines()]
        if full_disk := next((line.strip() for line in lines if any(text in line for text in FULL_DISK)), None):
            raise NoRoomForJars(scratch.parent, full_disk)
        errors = [line.strip(": \t") for line in output if ": not found" in line or "ERROR" in line]
        if errors and ": not found" in errors[0] and not any(_NO_ANSWER.search(line) for line in lines):
            raise PackagesMissing(errors[0], installed_spark())
        raise PackagesUnavailable(errors[0] if errors else f"Ivy ended with {ivy.returncode}")


def _spark_jars() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "jars"
