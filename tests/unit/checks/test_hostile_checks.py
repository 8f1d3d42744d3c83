"""Checks that end the process in which they run, or would take too much: failed checks, which name the rows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_lakestream.checks import audit
from airflow_lakestream.checks.audit import SqlAuditor
from airflow_lakestream.config.checks import parse_checks
from airflow_lakestream.core.checks import ChecksFailed, Finding, StagedRows
from airflow_lakestream.exceptions import InvalidArgument
from tests.support.given_records import GivenLake, Record
from tests.support.hostile_checks import CONDITIONS, DEEP, TEXTS, number_of


def written(values: list[str | None]) -> StagedRows:
    """Return rows with these texts, and how long each is to be made."""
    count = len(values)
    columns: Mapping[str, Any] = {
        "_kafka_topic": ["given"] * count,
        "_kafka_partition": [0] * count,
        "_kafka_offset": list(range(count)),
        "s": values,
        "n": [number_of(one) for one in values],
    }
    rows = pa.Table.from_pydict(columns)
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    data = sink.getvalue()
    return StagedRows(rows.schema, {"rows": data.size}, lambda _: pa.BufferReader(data), count)


def findings(checks: dict[str, Any], values: list[str | None]) -> list[Finding]:
    asked = parse_checks("checks", checks)
    assert asked is not None
    return list(SqlAuditor(asked).findings(written(values)))


def test_a_check_that_ends_its_process_names_the_row_and_the_others_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit, "SECONDS", 0.25)
    statements = [
        "SELECT * FROM landing WHERE json_contains(s, '1')",
        "SELECT format('{:>{}}', s, n) FROM landing",
        "SELECT count(*) FROM range(100000) a, range(100000) b, landing WHERE a.range * b.range % 7 = n",
        "SELECT n FROM landing WHERE s IS NULL",
    ]
    found = findings({"sql": statements, "not_null": "s"}, ["1500000000", DEEP, None])
    assert [one.check.partition(":")[0] for one in found] == ["not_null", *["sql"] * 4]
    null, crash, memory, time, last = found
    assert null.problem == "NULL in 1 of the rows"
    assert crash.problem == "it ends the process that it runs in: killed by signal 11"
    assert list(crash.rows) == ["given[0] offset 1"]
    assert "takes more than 500 MiB of memory" in memory.problem
    assert list(memory.rows) == ["given[0] offset 0"]
    assert time.problem.startswith("it takes more than 0.2")
    assert last.problem == "it returned rows"


def test_a_statement_that_ends_the_process_before_it_reads_a_row_is_to_blame_itself() -> None:
    crash = "SELECT json_transform(s, repeat('[', 100000) || repeat(']', 100000)) FROM landing"
    with pytest.raises(InvalidArgument, match=r"^checks.sql: .*killed by signal 11"):
        findings({"sql": crash}, ["1"])


def test_a_statement_that_is_too_deep_is_to_blame_itself() -> None:
    with closing(audit.CheckProcess()) as checks:
        for sql, said in [
            (f"SELECT {'(SELECT ' * 300}1{')' * 300} FROM landing", "nested too deeply"),
            (f"SELECT {'(' * 5000}1{')' * 5000}", "expression depth"),
        ]:
            with pytest.raises(InvalidArgument, match=rf"^checks.sql: .*{said}"):
                checks.select(sql)


def test_what_a_row_holds_forges_no_line() -> None:
    [found] = findings({"unique": "s"}, ["a\nlake.orders: all is well\x1b[2J\u202e"] * 2)
    assert "s=a\\nlake.orders: all is well\\x1b[2J\\u202e" in found.rows[0]


def test_a_file_that_can_not_be_read_is_no_failed_check() -> None:
    rows = written(["1"])

    def gone(path: str) -> Any:
        raise FileNotFoundError(path)

    asked = parse_checks("checks", {"not_null": "s"})
    assert asked is not None
    with pytest.raises(FileNotFoundError):
        SqlAuditor(asked).findings(StagedRows(rows.columns, rows.files, gone, 1))


def test_the_next_landing_goes_on(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    deep, flat = (Record(json.dumps({"s": one}).encode()) for one in (DEEP, "2"))
    options: dict[str, Any] = {
        "schema": "s string",
        "checks": {"sql": "SELECT * FROM landing WHERE json_contains(s, '7')"},
    }
    with pytest.raises(ChecksFailed, match=r"killed by signal 11\n    given\[0\] offset 0"):
        lake.land([deep], **options)
    lake.land([flat], **options)
    assert [row["s"] for row in lake.rows()] == ["2"]


PROGRAM = """
from tests.support.hostile_checks import PRODUCT, TEXTS, hurry
from tests.support.peak_memory import peak_bytes
from tests.unit.checks.test_hostile_checks import findings
hurry()
found = findings(PRODUCT, TEXTS)
print(peak_bytes(), sum(one.check != "not_null: n" for one in found), len(found))
"""


@pytest.mark.long
def test_hostile_records_times_hostile_checks_are_failed_checks_within_bounds() -> None:
    assert (len(set(TEXTS)), len(set(CONDITIONS))) == (60, 30)
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=450)
    assert done.returncode == 0, done.stderr[-2000:]
    peak, of_statements, count = map(int, done.stdout.split())
    # Each statement fails for some of them; the process of the checks is the larger one.
    assert of_statements == count >= 25
    assert peak <= 512 * 2**20


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", ["worker", "worker, Delta", "group", "mirror", "mirror, merged on read", "mirror, Delta"]
)
def test_a_landing_of_hostile_records_has_only_failed_checks_and_the_next_goes_on(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.unit.checks.hostile_landings", kind, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=450)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["without"], found["next"]) == (True, True)
    assert len(found["failed"]) >= 25
    assert all(one.startswith("sql: ") for one in found["failed"])
    assert found["more"] <= 512 * 2**20
