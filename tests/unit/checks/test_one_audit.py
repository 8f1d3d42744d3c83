"""Whichever engine checks, the same code looks: what is played on the shared audit holds for all of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import airflow_lakestream
from airflow_lakestream.lakes import LAKES

ROOT = Path(airflow_lakestream.__file__).parent
# Where a landing's rows become findings, and where an audit is made of the argument `checks`.
LOOKS, MAKES = "tables/examiner.py", "config/checks.py"
# By engine, or part of one: where it is given an audit.
ENGINES = {
    "extract, group and Spark": "run/job.py",
    "mirrors in Iceberg": "cdc/merge/history.py",
    "mirrors in Delta": "cdc/merge/history.py",
    "Flink": "flink/stream.py",
    "what Flink leaves out": "run/job.py",
    "Connect": "operators/kafka_connect.py",
}


def calls(name: str) -> Iterator[str]:
    """Yield the modules that call a function or a method of this name, outside of what checks."""
    for path in sorted(ROOT.rglob("*.py")):
        module = path.relative_to(ROOT).as_posix()
        if module.startswith(("checks/", "spark_apps/", "example_dags/")):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and name in (getattr(node.func, "attr", ""), getattr(node.func, "id", "")):
                yield module


def test_findings_come_from_one_place_and_audits_from_another() -> None:
    assert set(calls("findings")) == {LOOKS}
    naming = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if "from airflow_lakestream.checks.audit import" in path.read_text()
    }
    assert naming == {MAKES}


def test_each_engine_is_given_that_audit() -> None:
    for engine, module in ENGINES.items():
        assert "auditor" in (ROOT / module).read_text(), engine
    # By it, mirrors of both formats are given theirs.
    assert set(calls("merger_of")) == {"cdc/iceberg.py", "cdc/delta.py"}
    examiners = ("LandingExaminer", "IcebergExaminer", "BranchChecks", "DeltaChecks", "PublicationChecks")
    assert {place for name in examiners for place in calls(name)} == {
        "cdc/merge/audited.py",
        "iceberg/publishing/sink.py",
    }
    # An extract's sink gets the checks of its table's format.
    assert 'part("checks")(auditor' in (ROOT / "run/job.py").read_text()
    assert {lake.checks.partition(":")[2] for lake in LAKES.values()} == {"BranchChecks", "DeltaChecks"}
