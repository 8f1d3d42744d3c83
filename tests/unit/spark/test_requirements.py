from __future__ import annotations

from types import CodeType

import pytest

import airflow_lakestream
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.spark import stream
from airflow_lakestream.spark.stream import PACKAGE, ExecutorsLack, modules_for


def test_what_executors_are_asked_names_what_they_lack() -> None:
    look = stream._versions_function([PACKAGE, "no_such_module_of_ours"])
    host, found = look(0)
    assert found == {PACKAGE: airflow_lakestream.__version__, "no_such_module_of_ours": None}
    with pytest.raises(ExecutorsLack, match=rf"executors on {host}: no-such is missing.*--py-files"):
        stream._check_versions({host: found}, {PACKAGE: "airflow-lakestream", "no_such_module_of_ours": "no-such"})


def test_the_question_is_sent_as_code_that_imports_nothing_of_ours() -> None:
    look = stream._versions_function([])
    code = look.__code__
    assert isinstance(code, CodeType)
    assert "<locals>" in look.__qualname__
    assert not {"requirements", "airflow_lakestream"} & set(code.co_names)


def test_another_version_of_the_package_is_refused() -> None:
    with pytest.raises(ExecutorsLack, match=r"is 0\.0\.1 there, and"):
        stream._check_versions({"h": {PACKAGE: "0.0.1"}}, {PACKAGE: "airflow-lakestream"})


@pytest.mark.parametrize("formats", [{"format": "protobuf"}, {"key_format": "protobuf"}])
def test_protobuf_needs_more(formats: dict[str, str]) -> None:
    plain = {"topic": "t", "table": "a.b", "consumer_group": "g"}
    config = ExtractConfig(**plain, **formats, schema_registry={"url": "http://registry"})
    more = set(modules_for(config)) - set(modules_for(ExtractConfig(**plain)))
    assert more == {"google.protobuf", "grpc_tools"}
