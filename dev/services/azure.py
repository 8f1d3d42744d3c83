"""Azure's Blob Storage: an Azurite, on the loopback only, its blobs in a folder of its own; installed once, by npm."""

from __future__ import annotations

import base64
import secrets
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from dev.errors import JarsUnavailable
from dev.locks import file_lock
from dev.ports import LOOPBACK, free_ports, listening
from dev.progress import Say, quiet
from dev.service import Owner, ServiceFolder, clean_environment

VERSION = "3.37.0"
ACCOUNT = "lakestream"

_READY_WITHIN_S = 60
_ANSWERS = Path(__file__).with_name("azurite_answers.js")
_PROGRAM = Path("node_modules", "azurite", "dist", "src", "blob", "main.js")


@dataclass(frozen=True)
class Azure:
    """A running server, as its clients see it."""

    authority: str
    key: str
    pid: int
    folder: str

    @property
    def ports(self) -> dict[str, int]:
        """Its ports, by what they are for."""
        return {"http": int(self.authority.rpartition(":")[2])}

    def healthy(self, timeout: float = 2) -> bool:
        """Whether somebody listens."""
        return listening(self.ports["http"])

    def container(self, name: str) -> str:
        """Have a container, and return its name."""
        # Only the tests of stores need PyArrow.
        from pyarrow.fs import AzureFileSystem, FileType

        # It has no second address for the calls of a Data Lake.
        authorities = {"blob_storage_authority": self.authority, "dfs_storage_authority": self.authority}
        schemes = {"blob_storage_scheme": "http", "dfs_storage_scheme": "http"}
        store = AzureFileSystem(ACCOUNT, account_key=self.key, **authorities, **schemes)
        if store.get_file_info(name).type is FileType.NotFound:
            store.create_dir(name)
        return name

    def properties(self) -> dict[str, str]:
        """Return PyIceberg's properties of a catalog whose files are here."""
        return {
            "adls.account-name": ACCOUNT,
            "adls.account-key": self.key,
            "adls.blob-storage-authority": self.authority,
            "adls.blob-storage-scheme": "http",
            "adls.dfs-storage-authority": self.authority,
            "adls.dfs-storage-scheme": "http",
        }


def start(folder: ServiceFolder, programs: Path, owner: Owner | None) -> Azure:
    """Start a new server in `folder`, and wait until it answers."""
    folder.prepare()
    (port,) = free_ports(1)
    node = _find("node")
    command = [node, "--require", str(_ANSWERS), str(programs / _PROGRAM), "--silent"]
    # A client may take a connection again after a minute.
    command += ["--blobHost", LOOPBACK, "--blobPort", str(port), "--blobKeepAliveTimeout", "120"]
    # Clients are newer than it is.
    command += ["--location", str(folder.path / "data"), "--skipApiVersionCheck", "--disableTelemetry"]
    server = Azure(f"{LOOPBACK}:{port}", base64.b64encode(secrets.token_bytes(32)).decode(), 0, str(folder.path))
    environment = {**clean_environment(drop=("AZURITE_", "AZURE_")), "AZURITE_ACCOUNTS": f"{ACCOUNT}:{server.key}"}
    leash = folder.start(command, owner, environment)
    return folder.ready(server, leash, _READY_WITHIN_S)


def install(programs: Path, say: Say = quiet) -> Path:
    """Have the program in a folder, fetched when it is not there yet; safe for several processes at once."""
    target = programs / f"azurite-{VERSION}"
    if target.is_dir():
        return target
    npm = _find("npm")
    programs.mkdir(parents=True, exist_ok=True)
    with file_lock(programs / ".azurite.lock"):
        if not target.is_dir():
            say("azure: fetching Azurite")
            _install(npm, target)
    return target


def _install(npm: str, target: Path) -> None:
    scratch = Path(tempfile.mkdtemp(prefix=".azurite-", dir=target.parent)).resolve()
    command = [npm, "install", "--prefix", str(scratch), "--no-audit", "--no-fund", "--ignore-scripts"]
    try:
        done = subprocess.run(
            [*command, f"azurite@{VERSION}"], cwd=scratch, capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
            raise JarsUnavailable(f"Azurite could not be fetched ({said}): check the network, then run it again.")
        # The rename is what makes it complete.
        scratch.replace(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _find(program: str) -> str:
    if (found := shutil.which(program)) is None:
        raise JarsUnavailable(f"No {program}, which Azure's emulator needs: install Node.js 20 or newer.")
    return found
