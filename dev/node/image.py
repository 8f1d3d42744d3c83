"""The image of Spark's drivers and executors, without Docker: docs/kubernetes.md has the same as a recipe.

Three layers: Debian's packages, only unpacked; Python's, which docs/spark.md lists; the entry point of Spark's images.
The package itself is not in it: the operator sends it along.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

from dev.locks import file_lock
from dev.node.programs import CACHE, debian
from dev.progress import Say, quiet
from dev.service import CHECKOUT

NAME = "localhost/lakestream-spark:1"
PAUSE = "localhost/pause:2"
IMAGES = CACHE / "images"
_SITE = "usr/local/lib/python3.11/dist-packages"
_SPARK = f"/{_SITE}/pyspark"
_JAVA = "/usr/lib/jvm/java-17-openjdk-amd64"
_DEBIAN = (
    *("base-files", "bash", "dash", "coreutils", "libc-bin", "sed", "grep", "findutils", "procps", "hostname"),
    *("python3", "openjdk-17-jre-headless", "tini", "ca-certificates"),
)
_PYTHON = (
    *("confluent-kafka", "pendulum", "pyiceberg[pyarrow,pyiceberg-core]", "fsspec", "numpy", "pyarrow", "duckdb"),
    *("obstore", "sqlalchemy"),
)
_ENTRY = Path(__file__).with_name("entrypoint.sh")
_ENVIRONMENT = [
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG=C.UTF-8",
    f"JAVA_HOME={_JAVA}",
    f"SPARK_HOME={_SPARK}",
]


def archives() -> list[Path]:
    """Return the archives of both images, as `docker save` writes them."""
    return [IMAGES / "pause-2.tar", IMAGES / f"spark-{_version()}.tar"]


def make(say: Say = quiet) -> None:
    """Have the archives; safe for several processes at once."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with file_lock(IMAGES / ".lock"):
        pause, spark = archives()
        if not pause.is_file():
            _save(pause, PAUSE, [_layer("pause-2", _pause)], {"Entrypoint": ["/sleep", "1000000000"]})
        if not spark.is_file():
            say("kubernetes: making the image of Spark (some two minutes, the first time)")
            layers = [_layer("debian", _debian), _layer(f"python-{_version()}", _python), _layer("entry", _entry)]
            config = {
                "User": "185",
                "WorkingDir": "/opt/spark/work-dir",
                "Entrypoint": ["/opt/entrypoint.sh"],
                "Env": _ENVIRONMENT,
            }
            _save(spark, NAME, layers, config)


def _version() -> str:
    # Only here: whoever starts a stack need not load Spark.
    import pyspark

    from airflow_lakestream.spark.packages import kafka_packages

    told = [pyspark.__version__, *kafka_packages(), *_DEBIAN, *_PYTHON, _ENTRY.read_text()]
    return hashlib.sha256("\n".join([*told, (CHECKOUT / "dev/constraints.txt").read_text()]).encode()).hexdigest()[:12]


def _layer(name: str, fill: Callable[[Path], None]) -> Path:
    """Return a layer's archive, made of what `fill` puts into an empty folder."""
    archive, root = IMAGES / f"{name}.layer", IMAGES / name
    if archive.is_file():
        return archive
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    fill(root)
    part = archive.with_suffix(".part")
    owned = ["--numeric-owner", "--owner=0", "--group=0"]
    subprocess.run(["tar", *owned, "-C", root, "-cf", part, "."], check=True)
    shutil.rmtree(root)
    part.replace(archive)
    return archive


def _pause(root: Path) -> None:
    # Busybox is what it is called by.
    shutil.copy(debian("busybox"), root / "sleep")


def _debian(root: Path) -> None:
    command = ["perl", debian("mmdebstrap"), "--quiet", "--variant=extract", f"--include={','.join(_DEBIAN)}"]
    subprocess.run([*command, "bookworm", root], check=True, stdin=subprocess.DEVNULL)
    # What the packages' scripts would have made.
    (root / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/bash\nspark:x:185:0:spark:/opt/spark/work-dir:/bin/bash\n"
    )
    (root / "etc/group").write_text("root:x:0:\nspark:x:185:\n")
    for folder in ("root", "tmp", "opt/spark/work-dir", "etc/ssl/certs/java"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / "opt/spark/work-dir").chmod(0o775)
    for link, target in (("bin/sh", "dash"), ("usr/bin/java", f"{_JAVA}/bin/java")):
        if not os.path.lexists(root / link):
            (root / link).symlink_to(target)
    for folder in ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache/apt", "var/lib/apt"):
        shutil.rmtree(root / folder, ignore_errors=True)


def _python(root: Path) -> None:
    import pyspark

    from airflow_lakestream.spark.packages import kafka_packages, resolve

    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python-version", "3.11", "--link-mode", "copy"]
    given = ["--target", root / _SITE, "--constraints", CHECKOUT / "dev/constraints.txt"]
    subprocess.run([*uv, *given, f"pyspark=={pyspark.__version__}", *_PYTHON], check=True)
    for jar in resolve(kafka_packages()):
        shutil.copy(jar, root / _SITE / "pyspark/jars")


def _entry(root: Path) -> None:
    (root / "opt").mkdir()
    shutil.copy(_ENTRY, root / "opt/entrypoint.sh")
    (root / "opt/entrypoint.sh").chmod(0o755)


def _save(archive: Path, name: str, layers: list[Path], config: dict[str, object]) -> None:
    digests = []
    for layer in layers:
        with layer.open("rb") as opened:
            digests.append(f"sha256:{hashlib.file_digest(opened, 'sha256').hexdigest()}")
    image = {"architecture": "amd64", "os": "linux", "config": config}
    image["rootfs"] = {"type": "layers", "diff_ids": digests}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": [layer.name for layer in layers]}]
    part = archive.with_suffix(".part")
    with tarfile.open(part, "w") as written:
        for file, content in (("manifest.json", manifest), ("config.json", image)):
            text = IMAGES / file
            text.write_text(json.dumps(content))
            written.add(text, file)
        for layer in layers:
            written.add(layer, layer.name)
    part.replace(archive)
