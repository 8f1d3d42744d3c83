"""Iceberg's reference of a REST catalog, on the loopback only; its files are those of this machine."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from dev.java import Jdk
from dev.ports import LOOPBACK, free_ports, listening
from dev.service import Owner, ServiceFolder, clean_environment

_READY_WITHIN_S = 60
_PROGRAM = Path(__file__).with_name("RestCatalog.java")
_CLIENT = "lakestream"


@dataclass(frozen=True)
class RestCatalog:
    """A running catalog, as its clients see it."""

    url: str
    secret: str
    warehouse: str
    pid: int
    folder: str

    @property
    def ports(self) -> dict[str, int]:
        """Its ports, by what they are for."""
        return {"http": int(self.url.rpartition(":")[2])}

    @property
    def properties(self) -> dict[str, str]:
        """Properties of a PyIceberg catalog: it fetches its token by OAuth2, with a client's credentials."""
        credential = f"{_CLIENT}:{self.secret}"
        return {"type": "rest", "uri": self.url, "credential": credential, "oauth2-server-uri": self.tokens}

    @property
    def tokens(self) -> str:
        """Where a client gets its token."""
        return f"{self.url}/v1/oauth/tokens"

    def healthy(self, timeout: float = 2) -> bool:
        """Whether somebody listens."""
        return listening(self.ports["http"])


def start(folder: ServiceFolder, jars: Path, jdk: Jdk, owner: Owner | None) -> RestCatalog:
    """Start a new catalog in `folder`, and wait until it answers."""
    folder.prepare()
    (port,) = free_ports(1)
    (folder.path / "tmp").mkdir()
    java = [jdk.java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
    java += [f"-Djava.io.tmpdir={folder.path / 'tmp'}", "-cp", f"{jars}/*", str(_PROGRAM)]
    warehouse = (folder.path / "warehouse").as_uri()
    environment = {**clean_environment(drop=("CATALOG_", "HADOOP_")), "JAVA_HOME": str(jdk.home)}
    arguments = [str(port), f"jdbc:sqlite:{folder.path / 'catalog.db'}", warehouse, _CLIENT]
    leash = folder.start([*java, *arguments], owner, environment)
    catalog = RestCatalog(f"http://{LOOPBACK}:{port}", secrets.token_hex(12), warehouse, 0, str(folder.path))
    return folder.ready(catalog, leash, _READY_WITHIN_S)
