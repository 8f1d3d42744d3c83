"""Submission of a driver to any manager, rendered by each backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from airflow_lakestream.driver.driver_folder import DriverConfig

PROPERTIES_FILE = "spark.properties"


@dataclass(frozen=True)
class DriverSubmission:
    """A launch of a driver.

    :param application: path of the program.
    :param folder: folder of this launch, on the worker, which only its owner can read.
    :param config: the driver's configuration, with secrets: written into a file only if a backend needs it.
    :param stream: key that all launches of a stream share.
    :param settings: Spark's settings; they may be secret.
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

    def with_config_file(self) -> DriverSubmission:
        """Write the configuration into a file of the folder. Return the submission with the file's path."""
        return replace(self, seen_at=str(self.config.write(self.folder)))

    def with_settings(self, settings: Mapping[str, str]) -> DriverSubmission:
        """Return the submission with more settings; existing settings win."""
        return replace(self, settings={**settings, **self.settings})

    def with_environment(self, prefix: str) -> DriverSubmission:
        """Return the submission with the variables as settings: names begin with `prefix`."""
        named = {prefix + name: value for name, value in self.variables.items()}
        return replace(self, settings={**self.settings, **named}, variables={})

    def write_properties(self, given: str = "") -> Path:
        """Write the settings into a file of the folder, readable only by the owner. Return the path.

        :param given: the text of another properties file, which the settings win over.
        """
        lines = [f"{key}={_escaped(value)}" for key, value in sorted(self.settings.items())]
        file = self.folder / PROPERTIES_FILE
        file.touch(0o600)
        file.write_text("\n".join([given, *lines, ""]))
        return file


class SecretPlace(Protocol):
    """A place for secrets of a driver."""

    def put(self, submission: DriverSubmission) -> DriverSubmission:
        """Leave a submission's secrets in the place. Return the submission without secrets, but with the path."""

    def forget(self, name: str) -> None:
        """Delete the secrets left for a driver, if any."""


def _escaped(value: str) -> str:
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return "\\" + text if text[:1].isspace() else text
