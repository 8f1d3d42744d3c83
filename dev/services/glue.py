"""AWS Glue, as moto models it, on the loopback only; see `glue_server`."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from dev.ports import LOOPBACK, free_ports, listening
from dev.service import CHECKOUT, Owner, ServiceFolder, clean_environment

_READY_WITHIN_S = 60


@dataclass(frozen=True)
class Glue:
    """A running server, as its clients see it."""

    url: str
    warehouse: str
    pid: int
    folder: str

    @property
    def ports(self) -> dict[str, int]:
        """Its ports, by what they are for."""
        return {"http": int(self.url.rpartition(":")[2])}

    @property
    def properties(self) -> dict[str, str]:
        """Properties of a PyIceberg catalog; to this server any keys are good."""
        keys = {"glue.access-key-id": "any", "glue.secret-access-key": "any", "glue.region": "eu-central-1"}
        return {"type": "glue", "glue.endpoint": self.url, "warehouse": self.warehouse, **keys}

    def healthy(self, timeout: float = 2) -> bool:
        """Whether somebody listens."""
        return listening(self.ports["http"])


def start(folder: ServiceFolder, owner: Owner | None, *, careless: bool = False) -> Glue:
    """Start a new server in `folder`, and wait until it answers.

    :param careless: take a change of a table that was made for an older version, which Glue does not.
    """
    folder.prepare()
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "dev.services.glue_server", str(port), *(["--careless"] if careless else [])]
    environment = {**clean_environment(drop=("AWS_",)), "PYTHONPATH": str(CHECKOUT)}
    leash = folder.start(command, owner, environment)
    glue = Glue(f"http://{LOOPBACK}:{port}", (folder.path / "warehouse").as_uri(), 0, str(folder.path))
    return folder.ready(glue, leash, _READY_WITHIN_S)
