"""Airflow's own settings for commands: variables of the environment and airflow.cfg, without an import of Airflow."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from configparser import Error, RawConfigParser
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_LOCAL_BUNDLE = "airflow.dag_processing.bundles.local.LocalDagBundle"


@dataclass(frozen=True, slots=True)
class AirflowSettings:
    """Settings of the Airflow of this environment.

    :param home: the value of AIRFLOW_HOME, or its default.
    :param file: the content of airflow.cfg; empty for a missing file.
    """

    home: Path
    file: RawConfigParser

    def get(self, section: str, name: str) -> str | None:
        """Return a setting by Airflow's order, the environment first, or None if neither has it."""
        found = os.environ.get(f"AIRFLOW__{section}__{name}".upper(), self.file.get(section, name, fallback=None))
        return None if found is None else found.strip()

    def has_dags_at(self, path: Path) -> bool:
        """Return whether Airflow reads DAGs from the place of a file."""
        return any(folder.resolve() in path.resolve().parents for folder in self._folders())

    @property
    def dag_place(self) -> str:
        """The place for new DAG files, in words."""
        folders = [str(folder) for folder in self._folders()]
        if not folders:
            return f"the DAG bundle {' or '.join(str(bundle.get('name')) for bundle in self._bundles())}"
        if not self.file.sections() and not any(name.startswith("AIRFLOW_") for name in os.environ):
            # Nothing describes the Airflow that the file is for: it may run on another machine.
            return "Airflow's DAG folder, if it is not there yet"
        if len(folders) == 1:
            return f"Airflow's DAG folder, {folders[0]}"
        return f"one of Airflow's DAG folders: {', '.join(folders)}"

    def _folders(self) -> list[Path]:
        """Return the local folders of DAG files; an empty list if all bundles of DAGs are elsewhere, such as in Git."""
        usual = _expanded(self.get("core", "dags_folder") or str(self.home / "dags"))
        bundles = list(self._bundles())
        if not bundles:
            return [usual]
        local = [bundle.get("kwargs") for bundle in bundles if bundle.get("classpath") == _LOCAL_BUNDLE]
        paths = [one.get("path") if isinstance(one, dict) else None for one in local]
        return [usual if path is None else Path(str(path)) for path in paths]

    def _bundles(self) -> Iterator[dict[str, object]]:
        # A list that is wrong is Airflow's to refuse: the DAG folder is then the best guess.
        with suppress(ValueError):
            found = json.loads(self.get("dag_processor", "dag_bundle_config_list") or "[]")
            yield from (bundle for bundle in found if isinstance(bundle, dict))


def airflow_settings() -> AirflowSettings:
    """Read the settings of the environment's Airflow. Raises ValueError for a file that is no configuration."""
    home = _expanded(os.environ.get("AIRFLOW_HOME") or "~/airflow")
    path = _expanded(os.environ.get("AIRFLOW_CONFIG") or str(home / "airflow.cfg"))
    file = RawConfigParser(strict=False)
    try:
        file.read(path, encoding="utf-8")
    except (Error, OSError) as e:
        raise ValueError(f"{path} can't be read as a configuration: {e}") from e
    return AirflowSettings(home, file)


def _expanded(path: str) -> Path:
    """Return a path with variables of the environment and the home folder in place, as Airflow expands it."""
    return Path(os.path.expandvars(path)).expanduser()
