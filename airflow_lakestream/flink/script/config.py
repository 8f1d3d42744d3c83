"""Configuration of a script's job, validated on construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from airflow_lakestream.driver.lease_record import fingerprint_of
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.flink.job_config import JobConfig
from airflow_lakestream.flink.script.text import DATABASE, KAFKA, FlinkScript

APP = "flink_script"


@dataclass(frozen=True, kw_only=True)
class ScriptConfig(JobConfig):
    """The script or program of a job, and the Flink cluster. See `FlinkScriptOperator`.

    :param name: name of the stream; the checkpoint belongs to it for good.
    :param database: options of Flink's CDC connectors; may hold secrets.
    :param jar: a file with a program, in place of a script; `jar_digest` distinguishes it from a file of the same name.
    """

    app: str = APP
    name: str
    script: str = ""
    database: Mapping[str, str] = field(default_factory=dict)
    jar: str = ""
    jar_digest: str = ""
    entry_class: str = ""
    program_arguments: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sections("database")
        if self.jar:
            return
        self.check_catalog()
        if KAFKA in self.script and not self.kafka:
            raise InvalidArgument("script", f"has {KAFKA}, and there is no Kafka connection.", "Give kafka_conn_id.")
        if DATABASE in self.script and not self.database:
            problem = f"has {DATABASE}, and there is no connection of a database."
            raise InvalidArgument("script", problem, "Give database_conn_id.")
        _ = self.parsed

    @cached_property
    def parsed(self) -> FlinkScript:
        """The statements."""
        return FlinkScript.parse(self.script)

    @property
    def job_name(self) -> str:
        """The job's name on Flink's dashboard."""
        return f"lakestream {self.name}"

    @property
    def inputs(self) -> dict[str, str]:
        """The permanent inputs of the checkpoint."""
        return {"app": APP, "name": self.name}

    @property
    def places(self) -> dict[str, Any]:
        """The identities of Kafka, catalog, Flink and database, without secrets."""
        database = [self.database.get(name) for name in ("hostname", "port", "database-name")]
        return {**super().places, **({"database": database} if self.database else {})}

    @property
    def state_of(self) -> str:
        """A fingerprint, equal for two configurations if a job may continue from the state of either.

        `program` is stricter: it also has settings that a new job with the old state may change.
        """
        # Offsets of one Kafka or database mean nothing in another; Flink itself may have moved.
        places = {name: place for name, place in self.places.items() if name != "flink"}
        if self.jar:
            # Another version of the jar may continue from the state: Flink itself checks that.
            return fingerprint_of({"class": self.entry_class, **places})
        return fingerprint_of({"script": [self.parsed.before, self.parsed.inserts], **places})

    @property
    def program(self) -> str:
        """A fingerprint, equal for two configurations if a job of either does the same work."""
        program = f"{self.state_of}/{self.parallelism}/{self.checkpoint_interval}"
        if not self.jar:
            return program
        return f"{program}/{fingerprint_of({'jar': self.jar_digest, 'arguments': list(self.program_arguments)})}"
