"""The statement and the snippet of docs/sql.md do what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

from airflow_lakestream.transform import SqlTransform
from tests.unit.transform.support import batch

PAGE = (Path(__file__).parents[3] / "docs" / "sql.md").read_text()


def test_the_statement_runs() -> None:
    sql = re.findall(r'sql="""(.*?)"""', PAGE, re.DOTALL)[0].replace("{{ params.country }}", "DE")
    value = b'{"user": {"id": 7}, "page": "/cart", "timestamp": "2026-07-01T14:00:00+02:00", "country": "DE"}'
    result = SqlTransform(sql).apply(batch([value, value.replace(b"DE", b"FR")]))
    (row,) = result.rows.to_pylist()
    assert (row["id"], row["page"], row["at"].isoformat()) == (7, "/cart", "2026-07-01T12:00:00+00:00")
    assert result.filtered.tolist() == [1]


def test_the_snippet_runs() -> None:
    (code,) = re.findall(r"^In Python:\n\n((?:    .*\n|\n)+)", PAGE, re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout == "['n'] [{'n': 1}]\n[0] [1] [2]\n"
