"""Reads Iceberg tables by DuckDB, in the environment of the benchmark's peers, which has its extension.

    python duckdb_reader.py FOLDER      FOLDER is for the extensions

Each line that comes in is a JSON list: a metadata file, and columns. Each line that goes out is a JSON list of rows.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

EXTENSIONS = ("avro", "iceberg")


def main(folder: str) -> None:
    import duckdb

    sql = duckdb.connect(config={"extension_directory": folder})
    for name in EXTENSIONS:
        package = Path(str(import_module(f"duckdb_extension_{name}").__file__)).parent
        sql.execute(f"install '{next(package.rglob(f'{name}.duckdb_extension'))}'")
        sql.execute(f"load {name}")
    for line in sys.stdin:
        metadata, columns = json.loads(line)
        quoted = ", ".join(f'"{one}"' for one in columns)
        rows = sql.execute(f"select {quoted} from iceberg_scan(?)", [metadata]).fetchall()
        print(json.dumps(rows), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
