"""What a measured program sees of itself: seconds and CPU of its work, and what PyIceberg's commits take."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from dev.bench.process_tree import cpu_of_tree

# The name of a batch's seconds and CPU seconds, among those of its steps.
BATCH = "whole batch"


class Work:
    """`with Work() as work:` around what is measured."""

    def __enter__(self) -> Work:
        self.began_at = time.time()
        self._began, self._cpu = time.perf_counter(), cpu_of_tree()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began
        self.cpu_seconds = cpu_of_tree() - self._cpu

    def told(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        return {"began_at": self.began_at, "seconds": self.seconds, "cpu_seconds": self.cpu_seconds}


class CommitClock:
    """Takes the time of each PyIceberg commit: its manifests, and the catalog's answer; not the data files."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._spent = 0.0
        self._local = threading.local()

    def start(self) -> CommitClock:
        """Look on from now on, for good; PyIceberg is still imported by whoever needs it, at his own cost."""
        methods = {
            "pyiceberg.table.update.snapshot": ("_SnapshotProducer", "commit", False),
            "pyiceberg.catalog.sql": ("SqlCatalog", "commit_table", True),
        }
        if early := sorted(methods.keys() & sys.modules.keys()):
            raise AssertionError(f"{', '.join(early)} is imported already: its import would be in nobody's time")
        sys.meta_path.insert(0, _OnImport({name: partial(self._time, *what) for name, what in methods.items()}))
        return self

    def _time(self, owner: str, name: str, ends_commit: bool, module: ModuleType) -> None:
        kind = getattr(module, owner)
        original: Callable[..., Any] = getattr(kind, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            # A producer may call the catalog itself: the outer of the two has the time of both.
            nested = getattr(self._local, "inside", False)
            self._local.inside, began = True, time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self._local.inside = nested
                self._spent += 0 if nested else time.perf_counter() - began
                if ends_commit:
                    self._end_commit()

        setattr(kind, name, timed)

    def _end_commit(self) -> None:
        self.seconds.append(self._spent)
        self._spent = 0.0


class _OnImport(MetaPathFinder):
    """Does something to modules as soon as they are imported."""

    def __init__(self, actions: dict[str, Callable[[ModuleType], None]]) -> None:
        self._actions = actions

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        action = self._actions.pop(name, None)
        spec = find_spec(name) if action is not None else None
        if action is None or spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_act(module: ModuleType) -> None:
            load(module)
            action(module)

        spec.loader.exec_module = load_and_act  # type: ignore[method-assign]  # the import goes on as ever
        return spec


def write_result(path: Path, told: dict[str, Any]) -> None:
    """Hand over what was seen."""
    path.write_text(json.dumps(told))
