"""Problems of a pipeline's file, with line and column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_lakestream.exceptions import LakestreamError, Terminal


@dataclass(frozen=True, order=True)
class FileProblem:
    """A problem of a file. Lines and columns count from 1; an unreadable file has line 0."""

    file: str
    line: int
    column: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.text}" if self.line else f"{self.file}: {self.text}"


class PipelineError(LakestreamError, Terminal, ValueError):
    """Files of pipelines are wrong; `problems` has all problems, in the order of files and lines."""

    def __init__(self, problems: Sequence[FileProblem]) -> None:
        self.problems = sorted(problems)
        super().__init__("\n".join(map(str, self.problems)))
