"""Configuration of a script's job, validated on construction."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from airflow_lakestream.driver.lease_record import fingerprint_of
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Transient
from airflow_lakestream.flink import statements
from airflow_lakestream.flink.job_config import JobConfig

# Replaced by the options of a connection, so that no password has to be in a script.
KAFKA = "${kafka}"
DATABASE = "${database}"
# Texts, quoted names and comments, in which a semicolon does not end a statement. A hint is not a comment.
_PARTS = re.compile(r"'(?:[^']|'')*'|`(?:[^`]|``)*`|--[^\n]*|/\*(?!\+).*?\*/|;|[^'`;/-]+|.", re.DOTALL)
# First words of the statements that may precede the INSERTs.
_ALLOWED_WORDS = ("SET", "CREATE", "ALTER", "DROP", "USE", "LOAD", "ADD")
# Beginnings of settings that the operator sets.
_RESERVED_SETTINGS = (
    "pipeline.name",
    "$internal.",
    "execution.checkpointing.",
    "execution.state-recovery.",
    "execution.runtime-mode",
    "execution.savepoint",
    "state.checkpoints.",
    "state.savepoints.",
)
_SETTING = re.compile(r"SET\s+'([^']*)'", re.IGNORECASE)
_AS_SELECT = re.compile(r"CREATE\s+(OR\s+REPLACE\s+)?TABLE\b.*\bAS\s+(SELECT|WITH)\b", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class FlinkScript:
    """A script: the statements before the INSERTs, and the INSERTs, which are one job."""

    before: tuple[str, ...]
    inserts: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> FlinkScript:
        """Read a script. Raises InvalidArgument for statements that can't be supervised as one job."""
        before: list[str] = []
        inserts: list[str] = []
        for statement in split(text):
            word = statement.split(None, 1)[0].upper()
            if word == "INSERT":
                inserts.append(statement)
            elif word not in _ALLOWED_WORDS:
                raise _refusal(statement, f"A script has {', '.join(_ALLOWED_WORDS)} and, as the last, INSERT.")
            elif _AS_SELECT.match(statement):
                raise _refusal(statement, "It would be a job of its own: create the table, and INSERT into it.")
            elif inserts:
                raise _refusal(statement, "It follows an INSERT. The INSERTs come last: together they are one job.")
            else:
                _check_setting(statement)
                before.append(statement)
        if not inserts:
            raise InvalidArgument(
                "script", "has no INSERT, so there is no job to supervise.", "Add an INSERT at the end."
            )
        return cls(tuple(before), tuple(inserts))

    def statements(self, kafka: Mapping[str, str], database: Mapping[str, str]) -> Iterator[str]:
        """Yield the statements to run, in order and with secrets; the last statement submits the job.

        :param kafka: librdkafka's configuration, for `${kafka}`.
        :param database: options of Flink's CDC connectors, for `${database}`.
        """
        client = statements.with_options(statements.client_options(kafka)) if kafka else ""
        for statement in (*self.before, self._job):
            yield statement.replace(KAFKA, client).replace(DATABASE, statements.with_options(database))

    @property
    def _job(self) -> str:
        if len(self.inserts) == 1:
            return self.inserts[0]
        return f"EXECUTE STATEMENT SET BEGIN {' '.join(f'{insert};' for insert in self.inserts)} END"


def split(text: str) -> Iterator[str]:
    """Yield the statements of a text, without comments."""
    parts: list[str] = []
    # The added semicolon ends the last statement.
    for part in _PARTS.findall(text + ";"):
        if part == ";":
            if statement := "".join(parts).strip():
                yield statement
            parts = []
        else:
            # A comment separates words, as a space does.
            parts.append(" " if part.startswith(("--", "/*")) and not part.startswith("/*+") else part)


def _check_setting(statement: str) -> None:
    match = _SETTING.match(statement)
    if match and match[1].strip().startswith(_RESERVED_SETTINGS):
        raise _refusal(statement, "The operator sets that: see checkpoint_interval, checkpoint_location, parallelism.")


def _refusal(statement: str, remedy: str) -> InvalidArgument:
    shown = " ".join(statement.split())
    return InvalidArgument("script", f"{shown[:60]!r}{'...' if len(shown) > 60 else ''} is refused.", remedy)


APP = "flink_script"


@dataclass(frozen=True, kw_only=True)
class ScriptConfig(JobConfig):
    """The script or program of a job, and the Flink cluster. See `FlinkScriptOperator`.

    :param name: name of the stream; the checkpoint belongs to this stream for ever.
    :param database: options of Flink's CDC connectors; may hold secrets.
    :param jar: path of a program, in place of a script.
    :param jar_digest: digest of the jar's content, by which a replaced jar is noticed.
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
        """The statements of the script."""
        return FlinkScript.parse(self.script)

    @property
    def job_name(self) -> str:
        """The job's name on Flink's dashboard."""
        return f"lakestream {self.name}"

    @property
    def inputs(self) -> dict[str, str]:
        """The inputs that the checkpoint keeps for ever."""
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


# A jar's name is sent in a header of HTTP, in which other characters would need quoting.
_NAME = re.compile(r"[\w.+ -]+\.jar")


class JarReplaced(LakestreamError, Transient):
    """Error of a jar replaced since the task began."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} was replaced while its job was to be started. The next try takes the new one.")


def check_jar(path: str) -> None:
    """Refuse a path without the name of a jar. Raises InvalidArgument."""
    if not _NAME.fullmatch(Path(path).name):
        remedy = "Write the path of a .jar file on the workers; its name has only letters, digits, spaces and . _ - +"
        raise InvalidArgument("jar", f"{path!r} is not the name of a jar.", remedy)


def read_jar(path: str) -> bytes:
    """Return the content of a jar. Raises InvalidArgument."""
    check_jar(path)
    try:
        return Path(path).read_bytes()
    except OSError as e:
        remedy = "Put it where each worker has it under this path."
        raise InvalidArgument("jar", f"{path} can't be read: {e.strerror}.", remedy) from e


def digest_of(content: bytes) -> str:
    """Return the digest of a content."""
    return hashlib.sha256(content).hexdigest()
