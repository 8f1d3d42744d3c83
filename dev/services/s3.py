"""S3: a MinIO, on the loopback only, its buckets in a folder of its own; built once from its sources, by Go."""

from __future__ import annotations

import secrets
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from dev.ports import LOOPBACK, free_ports, listening
from dev.progress import Say, quiet
from dev.service import Owner, ServiceFolder, clean_environment
from dev.services import golang

MODULE = "github.com/minio/minio"
VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
REGION = "us-east-1"

_READY_WITHIN_S = 60


@dataclass(frozen=True)
class S3:
    """A running server, as its clients see it."""

    url: str
    access_key: str
    secret_key: str
    pid: int
    folder: str

    @property
    def ports(self) -> dict[str, int]:
        """Its ports, by what they are for."""
        return {"s3": int(self.url.rsplit(":", 1)[1])}

    def healthy(self, timeout: float = 2) -> bool:
        """Whether the server answers."""
        if not listening(self.ports["s3"]):
            return False
        try:
            with urllib.request.urlopen(f"{self.url}/minio/health/ready", timeout=timeout) as answer:
                return answer.status == 200
        except OSError:
            return False

    def bucket(self, name: str) -> str:
        """Have a bucket, and return its name: to this server a folder is one."""
        Path(self.folder, "data", name).mkdir(exist_ok=True)
        return name

    def properties(self) -> dict[str, str]:
        """Return PyIceberg's properties of a catalog whose files are here."""
        return {
            "s3.endpoint": self.url,
            "s3.region": REGION,
            "s3.access-key-id": self.access_key,
            "s3.secret-access-key": self.secret_key,
        }

    def temporary(self) -> dict[str, str]:
        """Return the same with keys that end by themselves, as its token service gives them."""
        # Only the tests of stores need Amazon's client.
        import boto3

        keys = {"aws_access_key_id": self.access_key, "aws_secret_access_key": self.secret_key}
        service = boto3.client("sts", endpoint_url=self.url, region_name=REGION, **keys)
        role = "arn:aws:iam::000000000000:role/any"
        given = service.assume_role(RoleArn=role, RoleSessionName="tests", DurationSeconds=900)["Credentials"]
        return {
            **self.properties(),
            "s3.access-key-id": given["AccessKeyId"],
            "s3.secret-access-key": given["SecretAccessKey"],
            "s3.session-token": given["SessionToken"],
        }


def start(folder: ServiceFolder, program: Path, owner: Owner | None) -> S3:
    """Start a new server in `folder`, and wait until it answers."""
    folder.prepare()
    port, console = free_ports(2)
    (folder.path / "data").mkdir()
    server = S3(f"http://{LOOPBACK}:{port}", f"key{secrets.token_hex(6)}", secrets.token_hex(16), 0, str(folder.path))
    command = [str(program), "server", "--quiet", "--address", f"{LOOPBACK}:{port}"]
    # Its pages would take all addresses: off by the variable below, and bound here should that mean nothing any more.
    command += ["--console-address", f"{LOOPBACK}:{console}", str(folder.path / "data")]
    environment = {
        **clean_environment(drop=("MINIO_",)),
        "MINIO_ROOT_USER": server.access_key,
        "MINIO_ROOT_PASSWORD": server.secret_key,
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
        "HOME": str(folder.path),
    }
    leash = folder.start(command, owner, environment)
    return folder.ready(server, leash, _READY_WITHIN_S)


def build(programs: Path, say: Say = quiet) -> Path:
    """Have the program in a folder, built when it is not there yet; safe for several processes at once."""
    return golang.have(golang.Program(f"minio-{VERSION}", [["install", f"{MODULE}@{VERSION}"]], "minio"), programs, say)
