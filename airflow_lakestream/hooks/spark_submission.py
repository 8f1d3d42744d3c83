"""What is submitted, whatever manager takes it: a backend renders a `Submission` in the terms of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from airflow_lakestream.driver.job_folder import DriverConfig

PROPERTIES_FILE = "spark.properties"


@dataclass(frozen=True)
class Submission:
    """One launch of a driver.

    :param application: path of the program.
    :param folder: of this launch, on the worker, which only its owner can read.
    :param config: the driver's configuration, with secrets in it: a file only where a backend needs one.
    :param stream: what all launches of one stream have in common.
    :param settings: Spark's, among them those that may be secret.
    :param variables: the driver's environment; they may be secret.
    :param py_files: Python code, for driver and executors.
    :param files: for the working folder of driver and executors.
    :param seen_at: the path by which the driver sees its configuration.
    """

    application: str
    folder: Path
    config: DriverConfig
    stream: str
    settings: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    py_files: Sequence[str] = ()
    files: Sequence[str] = ()
    seen_at: str = ""

    @property
    def arguments(self) -> list[str]:
        """The program's arguments."""
        return ["--config", self.seen_at]

    def with_config_file(self) -> Submission:
        """Write the configuration into a file of the folder, and return the submission that names it."""
        return replace(self, seen_at=str(self.config.write(self.folder)))

    def with_settings(self, settings: Mapping[str, str]) -> Submission:
        """Return it with more settings; those that were given win."""
        return replace(self, settings={**settings, **self.settings})

    def with_environment(self, prefix: str) -> Submission:
        """Return it with its variables as settings whose names begin with `prefix`."""
        named = {prefix + name: value for name, value in self.variables.items()}
        return replace(self, settings={**self.settings, **named}, variables={})

    def write_properties(self, given: str = "") -> Path:
        """Write the settings into a file of the folder that only its owner can read, and return its path.

        :param given: the text of another such file, which the settings win over.
        """
        lines = [f"{key}={_escaped(value)}" for key, value in sorted(self.settings.items())]
        file = self.folder / PROPERTIES_FILE
        file.touch(0o600)
        file.write_text("\n".join([given, *lines, ""]))
        return file


class SecretDrop(Protocol):
    """A place where a driver finds what nobody else may see."""

    def put(self, submission: Submission) -> Submission:
        """Leave a submission's secrets there; return the submission without them, and with the way to them."""

    def forget(self, name: str) -> None:
        """Delete what was left for a driver, if it is still there."""


def _escaped(value: str) -> str:
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return "\\" + text if text[:1].isspace() else text
