"""Google Cloud Storage: a fake-gcs-server, on the loopback only, its objects in memory; built once, by Go.

`GcsServer.go` adds what obstore needs and it lacks.
"""

from __future__ import annotations

import hashlib
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from dev.ports import LOOPBACK, free_ports, listening
from dev.progress import Say, quiet
from dev.service import Owner, ServiceFolder, clean_environment
from dev.services import golang

MODULE = "github.com/fsouza/fake-gcs-server"
VERSION = "v1.56.1"

_READY_WITHIN_S = 60
_SOURCE = Path(__file__).with_name("GcsServer.go")
# In milliseconds since 1970: the year 2100.
_LATE = "4102444800000"


@dataclass(frozen=True)
class Gcs:
    """A running server, as its clients see it."""

    url: str
    pid: int
    folder: str

    @property
    def ports(self) -> dict[str, int]:
        """Its ports, by what they are for."""
        return {"http": int(self.url.rpartition(":")[2])}

    def healthy(self, timeout: float = 2) -> bool:
        """Whether the server answers."""
        if not listening(self.ports["http"]):
            return False
        try:
            with urllib.request.urlopen(f"{self.url}/_internal/healthcheck", timeout=timeout) as answer:
                return answer.status == 200
        except OSError:
            return False

    def bucket(self, name: str) -> str:
        """Have a bucket, and return its name."""
        content = json.dumps({"name": name}).encode()
        asked = urllib.request.Request(f"{self.url}/storage/v1/b", content, {"Content-Type": "application/json"})
        try:
            urllib.request.urlopen(asked, timeout=30).close()
        except urllib.error.HTTPError as e:
            if e.code != HTTPStatus.CONFLICT:
                raise
        return name

    def properties(self) -> dict[str, str]:
        """Return PyIceberg's properties of a catalog whose files are here; to this server any token is good."""
        return {"gcs.service.host": self.url, "gcs.oauth2.token": "any", "gcs.oauth2.token-expires-at": _LATE}

    def options(self) -> dict[str, str]:
        """Return delta-rs' storage options."""
        account = {"gcs_base_url": self.url, "disable_oauth": True}
        nobody = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        return {"google_service_account_key": json.dumps(account | nobody), "allow_http": "true"}


def start(folder: ServiceFolder, program: Path, owner: Owner | None, *, careless: bool = False) -> Gcs:
    """Start a new server in `folder`, and wait until it answers.

    :param careless: create an object also where it is there, as a store without conditional writes does.
    """
    folder.prepare()
    (port,) = free_ports(1)
    command = [str(program), "-port", str(port), *(["-careless"] if careless else [])]
    leash = folder.start(command, owner, clean_environment(drop=("GOOGLE_", "STORAGE_")))
    return folder.ready(Gcs(f"http://{LOOPBACK}:{port}", 0, str(folder.path)), leash, _READY_WITHIN_S)


def build(programs: Path, say: Say = quiet) -> Path:
    """Have the program in a folder, built when it is not there yet; safe for several processes at once."""
    part = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:8]
    steps = (["mod", "init", "gcs"], ["get", f"{MODULE}/fakestorage@{VERSION}"], ["build", "-o", "gcs", "."])
    return golang.have(golang.Program(f"gcs-{VERSION}-{part}", steps, "gcs", _SOURCE), programs, say)
