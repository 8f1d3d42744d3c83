"""A script of Flink SQL, split into statements, with the INSERTs at the end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.flink import statements

# Replaced by the options of a connection, so that no password has to be in a script.
KAFKA = "${kafka}"
DATABASE = "${database}"
# Texts, quoted names and comments, in which a semicolon does not end a statement. A hint is not a comment.
_PARTS = re.compile(r"'(?:[^']|'')*'|`(?:[^`]|``)*`|--[^\n]*|/\*(?!\+).*?\*/|;|[^'`;/-]+|.", re.DOTALL)
_BEFORE = ("SET", "CREATE", "ALTER", "DROP", "USE", "LOAD", "ADD")
# Settings that the operator is responsible for.
_OURS = (
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
    """The statements before the INSERTs, and the INSERTs, which are one job."""

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
            elif word not in _BEFORE:
                raise _refused(statement, f"A script has {', '.join(_BEFORE)} and, as the last, INSERT.")
            elif _AS_SELECT.match(statement):
                raise _refused(statement, "It would be a job of its own: create the table, and INSERT into it.")
            elif inserts:
                raise _refused(statement, "It follows an INSERT. The INSERTs come last: together they are one job.")
            else:
                _check_setting(statement)
                before.append(statement)
        if not inserts:
            raise InvalidArgument(
                "script", "has no INSERT, so there is no job to supervise.", "Add an INSERT at the end."
            )
        return cls(tuple(before), tuple(inserts))

    def statements(self, kafka: Mapping[str, str], database: Mapping[str, str]) -> Iterator[str]:
        """Yield the statements to run, in order; the last statement submits the job. With secrets.

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
        return f"EXECUTE STATEMENT SET BEGIN {' '.join(f'{one};' for one in self.inserts)} END"


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
    if match and match[1].strip().startswith(_OURS):
        raise _refused(statement, "The operator sets that: see checkpoint_interval, checkpoint_location, parallelism.")


def _refused(statement: str, remedy: str) -> InvalidArgument:
    shown = " ".join(statement.split())
    return InvalidArgument("script", f"{shown[:60]!r}{'...' if len(shown) > 60 else ''} is refused.", remedy)
