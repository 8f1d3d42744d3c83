"""What Hadoop's servers have in common: their files of settings, and a small Java."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from dev.java import Jdk
from dev.service import ServiceFolder

_LOG = """\
log4j.rootLogger=INFO,out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
log4j.logger.http.requests=WARN
"""


def configure(folder: ServiceFolder, sites: Mapping[str, Mapping[str, str]]) -> Path:
    """Write a HADOOP_CONF_DIR into a service's folder, a file for each of `sites` ("core", "hdfs"), and return it."""
    conf = folder.path / "conf"
    conf.mkdir()
    (folder.path / "tmp").mkdir()
    for name, settings in sites.items():
        (conf / f"{name}-site.xml").write_text(_site(settings))
    (conf / "log4j.properties").write_text(_LOG)
    return conf


def command(folder: ServiceFolder, conf: Path | str, jars: Path, jdk: Jdk, main: str) -> list[str]:
    """Return what starts one of Hadoop's servers."""
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
    # Its web application generates classes.
    options += ["--add-opens=java.base/java.lang=ALL-UNNAMED", f"-Djava.io.tmpdir={folder.path / 'tmp'}"]
    return [jdk.java, *options, "-cp", f"{conf}:{jars}/*", main]


def _site(settings: Mapping[str, str]) -> str:
    lines = (
        f"<property><name>{key}</name><value>{escape(value)}</value></property>" for key, value in settings.items()
    )
    return "<configuration>\n" + "\n".join(lines) + "\n</configuration>\n"
