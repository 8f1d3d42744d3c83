"""A schema registry: Apicurio, in memory, with the API of Confluent's, on the loopback only."""

from __future__ import annotations

import json
import tarfile
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

from dev.archives import unpack
from dev.java import Jdk
from dev.ports import LOOPBACK, free_ports, listening
from dev.service import Owner, ServiceFolder, clean_environment

_READY_WITHIN_S = 120


@dataclass(frozen=True)
class Registry:
    """A running registry, as its clients see it."""

    url: str
    pid: int
    folder: str

    @property
    def ports(self) -> dict[str, int]:
        """Its ports, by what they are for."""
        return {"http": int(self.url.split(":")[2].split("/")[0])}

    def healthy(self, timeout: float = 2) -> bool:
        """Whether the registry answers."""
        if not listening(self.ports["http"]):
            return False
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=timeout) as answer:
                return answer.status == 200
        except OSError:
            return False

    def register(
        self, subject: str, text: str, kind: str = "AVRO", references: list[dict[str, object]] | None = None
    ) -> int:
        """Register a schema under a subject, and return its id."""
        document = {"schema": text, "schemaType": kind, "references": references or []}
        request = urllib.request.Request(
            f"{self.url}/subjects/{subject}/versions",
            json.dumps(document).encode(),
            {"Content-Type": "application/vnd.schemaregistry.v1+json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(json.loads(answer.read())["id"])


def start(folder: ServiceFolder, archive: Path, jdk: Jdk, owner: Owner | None) -> Registry:
    """Start a new registry in `folder`, and wait until it answers."""
    folder.prepare()
    (port,) = free_ports(1)
    with tarfile.open(archive) as packed:
        unpack(packed, folder.path / "app")
    (folder.path / "tmp").mkdir()
    (runner,) = (folder.path / "app").glob("*-runner.jar")
    command = [
        jdk.java,
        "-Xmx384m",
        f"-Djava.io.tmpdir={folder.path / 'tmp'}",
        "-XX:-UsePerfData",
        "-XX:TieredStopAtLevel=1",
        f"-Dquarkus.http.host={LOOPBACK}",
        f"-Dquarkus.http.port={port}",
        "-jar",
        str(runner),
    ]
    leash = folder.start(command, owner, clean_environment(drop=("QUARKUS_", "APICURIO_", "REGISTRY_")))
    registry = Registry(f"http://{LOOPBACK}:{port}/apis/ccompat/v7", 0, str(folder.path))
    folder.wait_ready(registry.healthy, leash, _READY_WITHIN_S)
    service = folder.process("service")
    assert service is not None
    registry = Registry(registry.url, service.pid, registry.folder)
    folder.write_state(asdict(registry))
    return registry
