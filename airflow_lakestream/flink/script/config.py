"""The configuration of a script's job, validated at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from airflow_lakestream.driver.lease_record import fingerprint_of
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.flink.job_config import JobConfig
from airflow_lakestream.flink.script.text import DATABASE, KAFKA, Script

APP = "flink_script"


@dataclass(frozen=True, kw_only=True)
class ScriptConfig(JobConfig):
    """What to run, and by which Flink. See `FlinkScriptOperator`.

    :param name: of the stream; the checkpoint belongs to it for good.
    :param database: options of Flink's CDC connectors; may hold secrets.
    :param jar: a file with a program, in the place of a script; `jar_digest` tells it from another one of its name.
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
    def parsed(self) -> Script:
        """The statements."""
        return Script.parse(self.script)

    @property
    def job_name(self) -> str:
        """What Flink's dashboard shows of the job."""
        return f"lakestream {self.name}"

    @property
    def inputs(self) -> dict[str, str]:
        """What the checkpoint belongs to for good."""
        return {"app": APP, "name": self.name}

    @property
    def places(self) -> dict[str, Any]:
        """Which Kafka, catalog, Flink and database it is, without their secrets."""
        database = [self.database.get(name) for name in ("hostname", "port", "database-name")]
        return {**super().places, **({"database": database} if self.database else {})}

    @property
    def state_of(self) -> str:
        """A text that is equal for two configurations if a job of one can go on with the state of the other."""
        # Offsets of one Kafka or database are none of another's; Flink itself may have moved.
        places = {name: place for name, place in self.places.items() if name != "flink"}
        if self.jar:
            # Another version of it may go on: whether it can, Flink itself says.
            return fingerprint_of({"class": self.entry_class, **places})
        return fingerprint_of({"script": [self.parsed.before, self.parsed.inserts], **places})

    @property
    def program(self) -> str:
        """A text that is equal for two configurations if a job of one does what the other wants."""
        program = f"{self.state_of}/{self.parallelism}/{self.checkpoint_interval}"
        if not self.jar:
            return program
        return f"{program}/{fingerprint_of({'jar': self.jar_digest, 'arguments': list(self.program_arguments)})}"
