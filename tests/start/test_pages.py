"""The pages Start, Tutorial and of other engines, copied line by line into one shell in an empty environment.

And the notebook, whose cells go on where Start ended.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.java import find_jdk
from dev.stack import Stack

CHECKOUT = Path(__file__).parents[2]
DOCS = CHECKOUT / "docs"
TUTORIAL = ("landing", "backfill", "bad-record", "stream", "mirror", "sensor")
PAGES = ["start", "readers", *(f"tutorial/{name}" for name in TUTORIAL)]
BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOTEBOOK = "notebook"
CELLS = """python - docs/notebooks/tables.ipynb <<'END'
import json, sys

space = {}
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        exec("".join(cell["source"]), space)
END
"""
# What the pages tell a reader to put in by hand: the addresses of their own broker, database and Connect.
BY_HAND = {
    "export BROKER=localhost:9092": "BROKER",
    "export DATABASE=postgresql://postgres:secret@localhost:5432/postgres": "DATABASE",
    "export CONNECT=http://localhost:8083": "CONNECT",
}


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    """Give what a reader has: a broker, a PostgreSQL, a Kafka Connect with Debezium."""
    with Stack.owned("start") as stack:
        kafka = stack.up_kafka()
        postgres, connect = stack.up_postgres(), stack.up_connect()
        user = f"{postgres.username}:{postgres.password}"
        yield {
            "BROKER": kafka.bootstrap,
            "DATABASE": f"postgresql://{user}@{postgres.host}:{postgres.port}/{postgres.database}",
            "CONNECT": connect.url,
        }


def script(addresses: dict[str, str]) -> str:
    lines = ["set -euo pipefail"]
    for page in PAGES:
        blocks = BLOCK.findall((DOCS / f"{page}.md").read_text())
        assert blocks, page
        for number, block in enumerate(blocks):
            lines += [f"echo '=== {page}, block {number}'", block]
        if page == "start":
            lines += [f"echo '=== {NOTEBOOK}, all cells'", CELLS]
    text = "\n".join(lines)
    for line, name in BY_HAND.items():
        assert line in text, line
        text = text.replace(line, f"export {name}={addresses[name]}")
    return text


def test_the_pages_do_what_they_say(addresses: dict[str, str], tmp_path: Path) -> None:
    environment = {
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "JAVA_HOME": str(find_jdk().home),
        # Spark would listen on all addresses.
        "SPARK_LOCAL_IP": "127.0.0.1",
        "LANG": "C.UTF-8",
        # Where pip keeps what it has fetched once, and how the JVMs of tests are started.
        **{name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "UV_", "JDK_JAVA_"))},
        "PIP_CACHE_DIR": os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip")),
        # Python compiles what is imported: to compile all that is installed takes a processor 20 s.
        "PIP_COMPILE": "0",
    }
    log = tmp_path / "log"
    with log.open("w") as out:
        done = subprocess.run(
            ["bash"],
            input=script(addresses),
            text=True,
            stdout=out,
            stderr=out,
            env=environment,
            cwd=CHECKOUT,
            check=False,
        )
    said = log.read_text()
    assert done.returncode == 0, said[-6000:]

    parts = dict(zip(re.findall(r"^=== (.*)$", said, re.M), re.split(r"^=== .*$", said, flags=re.M)[1:], strict=True))
    by_page = {
        page: "".join(text for name, text in parts.items() if name.startswith(f"{page},"))
        for page in (*PAGES, NOTEBOOK)
    }
    assert "PyIceberg: 215 orders of c1" in by_page["start"]
    assert "DuckDB: [(1500, Decimal(" in by_page["start"]
    assert "Spark: 1500 orders" in by_page["start"]
    assert "Polars: 1500 orders" in by_page["readers"]
    assert "Daft: 1500 orders" in by_page["readers"]
    assert "ClickHouse: 1500" in by_page["readers"]
    assert "215 orders of c1" in by_page[NOTEBOOK]
    assert "orders 1500 rows: orders[0] [0,748), orders[1] [0,752)" in by_page[NOTEBOOK]
    assert "1500 rows by Spark" in by_page[NOTEBOOK]
    assert "clicks: 3600" in by_page["tutorial/sensor"]
    assert "customers: [(1, 'Ada', 'Ulm'), (3, 'Cy', 'Kiel'), (4, 'Di', 'Jena')]" in by_page["tutorial/mirror"]
