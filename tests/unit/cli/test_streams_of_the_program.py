"""What the program writes, as a process of its own: whatever letters the locale has, and no library's lines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PIPELINE = """\
metadata: {name: plain, description: "Bücher → Tabelle"}
sources: {orders: {type: kafka, topic: orders}}
sinks: {lake: {type: iceberg, table: lake.orders}}
"""
# An Airflow without a database, and a locale of ASCII alone.
ENVIRONMENT = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def lakestream(home: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "AIRFLOW_HOME": str(home), **ENVIRONMENT, **more}
    command = [Path(sys.executable).with_name("lakestream"), *arguments]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False, env=environment, cwd=home)


def test_letters_that_the_locale_lacks_end_nothing(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(PIPELINE)
    done = lakestream(tmp_path, "pipeline", "render", "p.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert "'Bücher → Tabelle'" in done.stdout
    (tmp_path / "p.yaml").write_text(PIPELINE.replace("topic: orders", "topic: Bücher"))
    done = lakestream(tmp_path, "pipeline", "validate", "p.yaml")
    assert done.returncode == 2
    assert "is not a topic's name." in done.stderr


def test_what_goes_wrong_is_one_line_without_those_of_libraries(tmp_path: Path) -> None:
    # PyIceberg warns of a catalog whose properties it does not like, and tells of its tries.
    catalog = (
        '{"conn_type": "iceberg", "extra": {"type": "rest", "uri": "http://127.0.0.1:1", "py-io-impl": "no.such"}}'
    )
    for arguments in (("audit", "lake.orders", "--group", "g"), ("ledger", "history", "lake.orders", "--group", "g")):
        done = lakestream(tmp_path, *arguments, AIRFLOW_CONN_ICEBERG_DEFAULT=catalog)
        assert done.returncode == 2
        lines = done.stderr.splitlines()
        assert len(lines) == 1, done.stderr
        assert lines[0].startswith("lakestream: ")
