"""The manifests for Kubernetes, held against the schemas of the operators that read them, and against the package."""

from __future__ import annotations

import copy
import importlib.metadata
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from airflow_lakestream.flink.landing_job import LEAST_KEPT
from airflow_lakestream.spark.app_config import AppConfig
from dev.crds import Schemas, schemas
from dev.jars import KAFKA
from dev.java import find_jdk
from dev.service import CHECKOUT
from dev.services.flink import CURRENT as FLINK
from dev.stack import HOME

FOLDER = CHECKOUT / "dev" / "kubernetes"
MODELS = {
    ("v1", "Secret"): "IoK8sApiCoreV1Secret",
    ("v1", "Service"): "IoK8sApiCoreV1Service",
    ("sparkoperator.k8s.io/v1beta2", "SparkApplication"): "SparkV1beta2SparkApplication",
}
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))


def resources(file: str) -> Iterator[dict[str, Any]]:
    yield from yaml.safe_load_all((FOLDER / file).read_text())


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [one for file in FILES for one in resources(file) if one["kind"] == kind]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Schemas:
    return schemas(HOME / "jars", tmp_path_factory.mktemp("crds"), find_jdk(), print)


def faults(resource: Mapping[str, Any], known: Schemas) -> list[str]:
    """Return what its operator would refuse of a resource, or drop without a word."""
    key = (resource["apiVersion"], resource["kind"])
    if key == ("apps/v1", "Deployment"):
        spec = resource["spec"]
        unknown = set(spec) - {"replicas", "selector", "template"}
        return [*sorted(unknown), *_by_model("IoK8sApiCoreV1PodTemplateSpec", spec["template"])]
    if key in MODELS:
        return _by_model(MODELS[key], resource)
    found = Draft202012Validator(known[key]).iter_errors(resource)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in found]


def _by_model(name: str, given: Mapping[str, Any]) -> list[str]:
    """Kubeflow publishes its schemas as Pydantic's models, which leave out what they don't know."""
    import kubeflow_spark_api.models as models
    from pydantic import ValidationError

    try:
        taken = getattr(models, name).from_dict(copy.deepcopy(dict(given))).to_dict()
    except ValidationError as e:
        return [str(e)]
    return [f"not known: {path}" for path in _lost(given, taken)]


def _lost(given: Any, taken: Any, path: str = "") -> Iterator[str]:
    if isinstance(given, Mapping) and isinstance(taken, Mapping):
        for key, value in given.items():
            if key not in taken:
                yield f"{path}.{key}"
            else:
                yield from _lost(value, taken[key], f"{path}.{key}")
    elif isinstance(given, list) and isinstance(taken, list):
        for number, (one, other) in enumerate(zip(given, taken, strict=True)):
            yield from _lost(one, other, f"{path}[{number}]")


@pytest.mark.parametrize("file", FILES)
def test_operators_take_the_manifests(file: str, known: Schemas) -> None:
    found = [fault for resource in resources(file) for fault in faults(resource, known)]
    if file == "flink.yaml":
        # The newest schema among Maven's artifacts is that of 1.10, which knows Flink up to 1.20.
        (version,) = found
        assert version.startswith("spec.flinkVersion: 'v2_0' is not one of ")
    else:
        assert found == []


@pytest.mark.parametrize("file", FILES)
def test_a_misspelt_field_is_found(file: str, known: Schemas) -> None:
    for resource in resources(file):
        assert not any("misspelt" in fault for fault in faults(resource, known))
        for holder in (resource.get("spec"), (resource.get("spec") or {}).get("template")):
            if isinstance(holder, dict):
                holder["misspelt"] = 1
        if "spec" not in resource:
            resource["misspelt"] = 1
        assert any("misspelt" in fault for fault in faults(resource, known)), resource["kind"]


def test_the_versions_are_those_that_are_tested_here() -> None:
    (kafka,) = of_kind("Kafka")
    assert f"kafka-{kafka['spec']['kafka']['version']}" == KAFKA.name
    (flink,) = of_kind("FlinkDeployment")
    assert flink["spec"]["flinkVersion"] == "v" + "_".join(FLINK.split(".")[:2])
    (spark,) = of_kind("SparkApplication")
    assert spark["spec"]["sparkVersion"] == importlib.metadata.version("pyspark")


def test_the_app_takes_its_configuration_and_may_read_what_it_lands() -> None:
    (secret,) = of_kind("Secret")
    config = AppConfig.parse(json.loads(secret["stringData"]["app.json"]))
    (topic,) = of_kind("KafkaTopic")
    (user,) = of_kind("KafkaUser")
    acls = {one["resource"]["type"]: one for one in user["spec"]["authorization"]["acls"]}
    assert config.landing["topic"] == topic["metadata"]["name"] == acls["topic"]["resource"]["name"]
    assert config.landing["consumer_group"] == acls["group"]["resource"]["name"]
    (spark,) = of_kind("SparkApplication")
    (volume,) = spark["spec"]["volumes"]
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]
    folder, file = spark["spec"]["arguments"][1].rsplit("/", 1)
    assert spark["spec"]["driver"]["volumeMounts"][0]["mountPath"] == folder
    assert file in secret["stringData"]


def test_what_the_operators_of_airflow_ask_of_the_clusters_is_there() -> None:
    (flink,) = of_kind("FlinkDeployment")
    assert int(flink["spec"]["flinkConfiguration"]["execution.checkpointing.num-retained"]) >= LEAST_KEPT
    (gateway,) = of_kind("Deployment")
    (container,) = gateway["spec"]["template"]["spec"]["containers"]
    assert f"-Drest.address={flink['metadata']['name']}-rest" in container["args"]
    # With the annotation Strimzi deletes the connectors that KafkaConnectOperator has made.
    annotated = {one["metadata"]["name"] for one in of_kind("KafkaConnect") if one["metadata"].get("annotations")}
    assert annotated == {one["metadata"]["labels"]["strimzi.io/cluster"] for one in of_kind("KafkaConnector")}


def test_no_secret_is_written_down() -> None:
    for file in FILES:
        for word in ("password", "token"):
            given = [line for line in (FOLDER / file).read_text().splitlines() if f'"{word}": ' in line]
            assert all('"..."' in line for line in given)


def test_manifests_are_where_the_documentation_says() -> None:
    page = (Path(CHECKOUT) / "docs" / "kubernetes.md").read_text()
    assert all(f"dev/kubernetes/{file}" in page for file in FILES)
