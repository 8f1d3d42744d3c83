"""Builds the documentation's site into the wheel, so that the links in Airflow lead somewhere without the internet."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Of no use in the wheel: sources of scripts, search in other languages, a map for search engines that has a date in it.
LEFT_OUT = shutil.ignore_patterns("*.map", "lunr", "sitemap.xml*", "objects.inv")


class SiteHook(BuildHookInterface[Any]):
    """Adds the folder `airflow_lakestream/site` to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the site, unless the installation is editable."""
        if version == "editable":
            return
        self._folder = Path(tempfile.mkdtemp(prefix="lakestream-site-"))
        built, kept = self._folder / "built", self._folder / "site"
        command = ["-m", "mkdocs", "build", "--quiet", "--config-file", "dev/mkdocs.yml", "--site-dir", str(built)]
        environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        subprocess.run([sys.executable, *command], cwd=self.root, env=environment, check=True)
        shutil.copytree(built, kept, ignore=LEFT_OUT)
        build_data["force_include"][str(kept)] = "airflow_lakestream/site"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the built site."""
        if version != "editable":
            shutil.rmtree(self._folder)
