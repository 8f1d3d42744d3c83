"""Commit files: a version of a Delta table is written once, or not at all.

This is the compare-and-set of Delta's own protocol, and the only one here. delta-rs writes files in the same way, but
its public calls can't change a table property in the commit of rows, and rebase an append without a check.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError

Action = Mapping[str, Any]


def put_commit(store: Any, version: int, actions: Sequence[Action]) -> bool:
    """Write a version; return False if the version exists. After an error the version may be written, now or later."""
    lines = "\n".join(json.dumps(action, separators=(",", ":"), ensure_ascii=False) for action in actions)
    try:
        obstore.put(store, commit_path(version), lines.encode(), mode="create")
    except AlreadyExistsError:
        return False
    return True


def read_commit(store: Any, version: int) -> list[Action] | None:
    """Return the actions of a version, or None if the file is missing."""
    try:
        data = bytes(obstore.get(store, commit_path(version)).bytes())
    except FileNotFoundError:
        return None
    return [json.loads(line) for line in data.decode().split("\n") if line.strip()]


def info_of(actions: Iterable[Action]) -> Mapping[str, Any]:
    """Return the `commitInfo` of a commit, or an empty mapping."""
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})


def commit_path(version: int) -> str:
    """Return the path of a version's file below the table's folder."""
    return f"_delta_log/{version:020}.json"
