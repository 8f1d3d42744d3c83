"""Files of a run that came to nothing: they are in no version of the table, and nobody will commit them."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote

import obstore

from airflow_lakestream.delta.commit.log import info_of, read_commit
from airflow_lakestream.delta.head import Head
from airflow_lakestream.delta.write.files import delete_files

# At most, between the store's clock and a writer's.
CLOCKS_APART_MS = 3_600_000


def delete_unreferenced(store: Any, head: Head | None, folder: str) -> tuple[int, int]:
    """Delete the files below a folder that no version has added; return how many are deleted, and are left.

    Looked through are the versions since the oldest of the files. Where the log does not go back so far, nothing is
    deleted: another version may need a file that the head has no more.
    """
    there = {
        item["path"]: int(item["last_modified"].timestamp() * 1000)
        for part in obstore.list(store, folder.strip("/"))
        for item in part
    }
    if head is None or not there:
        return 0, 0
    added: set[str] = set()
    for version in range(head.version, -1, -1):
        actions = read_commit(store, version)
        if actions is None:
            return 0, 0
        added |= {unquote(action["add"]["path"]) for action in actions if "add" in action}
        if info_of(actions).get("timestamp", 0) < min(there.values()) - CLOCKS_APART_MS:
            break
    unused = [{"path": quote(path)} for path in there if path not in added]
    left = delete_files(store, unused)
    return len(unused) - len(left), len(left)
