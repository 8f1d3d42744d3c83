"""Builds of the package to compare: a wheel of a commit or of the working tree, in an environment of its own."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

from dev.bench.lab import Installation
from dev.bench.results import FOLDER
from dev.errors import BuildFailed
from dev.progress import Say
from dev.service import CHECKOUT

BUILDS = FOLDER / "builds"
CONSTRAINTS = CHECKOUT / "dev" / "constraints.txt"
UV = Path(sys.executable).with_name("uv")


def install_commit_or_wheel(ref: str, say: Say) -> Installation:
    """Install a wheel, or that of a commit, which is built once; raise BuildFailed if git or uv refuses.

    Dependencies are those of this checkout's constraints: what is compared is the package alone.
    """
    wheel = Path(ref)
    if wheel.suffix == ".whl":
        if not wheel.is_file():
            raise BuildFailed(f"there is no wheel {ref}")
        return _install(wheel.resolve(), BUILDS / wheel.stem)
    source = source_of(ref)
    folder = source.parent
    if not (wheels := list(folder.glob("*.whl"))):
        say(f"{ref}: building the wheel of {folder.name}")
        wheels = [_build(source, folder)]
    return _install(wheels[0], folder)


def source_of(ref: str) -> Path:
    """Return the folder with the files of a commit. Raises BuildFailed if git refuses."""
    commit = _run("git", "rev-parse", "--verify", f"{ref}^{{commit}}").decode().strip()
    source = BUILDS / commit[:12] / "source"
    if not source.exists():
        source.mkdir(parents=True)
        with tarfile.open(fileobj=io.BytesIO(_run("git", "archive", commit))) as archive:
            archive.extractall(source, filter="data")
    return source


def install_working_tree(say: Say) -> Installation:
    """Install a wheel of this checkout as it stands, uncommitted changes included."""
    say("building the wheel of the working tree")
    folder = BUILDS / "working-tree"
    return _install(_build(CHECKOUT, folder), folder)


def _build(source: Path, folder: Path) -> Path:
    for old in folder.glob("*.whl"):
        old.unlink()
    _run(str(UV), "build", "--quiet", "--wheel", "--out-dir", str(folder), str(source))
    (wheel,) = folder.glob("*.whl")
    return wheel


def _install(wheel: Path, folder: Path) -> Installation:
    """Install the wheel with what a user of the extract has, and check that its own code is the one imported."""
    python, path = folder / "venv" / "bin" / "python", folder / "path"
    if not python.exists():
        _run(str(UV), "venv", "--quiet", "--python", sys.executable, str(folder / "venv"))
    options = ("--quiet", "--python", str(python), "--constraints", str(CONSTRAINTS))
    _run(
        str(UV), "pip", "install", *options, "--reinstall-package", "airflow-lakestream", f"{wheel}[protobuf]", "psutil"
    )
    path.mkdir(exist_ok=True)
    if not (path / "dev").exists():
        (path / "dev").symlink_to(CHECKOUT / "dev")
    found = (
        _run(str(python), "-P", "-c", "import airflow_lakestream; print(airflow_lakestream.__file__)").decode().strip()
    )
    if not Path(found).is_relative_to(folder):
        raise BuildFailed(f"{python} imports {found}, which is not the code of {wheel.name}")
    return Installation(python, path)


def _run(*command: str) -> bytes:
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, check=False)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip() or "it printed no reason"
        raise BuildFailed(f"`{' '.join(command)}` ended with {done.returncode}: {said}")
    return done.stdout
