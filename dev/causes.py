"""What a program's log says of its end: the complaint that came first, and the last one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

# `airflow standalone` says before each line which of its parts it is from, and in colour.
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PART = re.compile(r"^[a-z][a-z-]*\s*\| ")
_HARMLESS = re.compile(r"\b(INFO|DEBUG|TRACE|WARN|WARNING|LOG|NOTICE|info|debug|warning)\b")
_LEVEL = re.compile(
    r"\b(FATAL|PANIC|CRITICAL|SEVERE|ERROR)\b|^(fatal|error|critical|Error)\b|\[(error|critical)\s*\]"
    r"|^Terminating due to ",
    re.ASCII,
)
# The last line of Python's traceback, and the first one of Java's.
_RAISED = re.compile(
    r"^(Caused by: |Exception in thread \S+ )?([A-Za-z_][\w$.]*(Error|Exception|Exit|Failed|Timeout|NotFound)\w*)(:|$)"
)
_TRACEBACK = "Traceback (most recent call last)"
# Java's why is in the next line.
_NO_MACHINE = "Error occurred during initialization of VM"
_MOST_CHARACTERS = 300


def causes_in(log: str) -> str:
    """Return the first complaint of a log, and the last one where it is another; else the log's last line."""
    lines = [_PART.sub("", _COLOUR.sub("", line)).rstrip() for line in log.splitlines()]
    found = list(dict.fromkeys(_complaints(lines)))
    if not found:
        said = [line.strip() for line in lines if line.strip()]
        return f"its last line: {said[-1][:_MOST_CHARACTERS]}" if said else "it logged nothing"
    return found[0] if len(found) == 1 else f"first: {found[0]}; last: {found[-1]}"


def _complaints(lines: Sequence[str]) -> Iterator[str]:
    """Yield what each complaint says: where an exception follows, that one, and the last of its causes."""
    start = 0
    while start < len(lines):
        end = start + 1
        if not _is_complaint(lines[start]):
            start = end
            continue
        said = lines[start]
        raised = said if _RAISED.match(said) else None
        if said.startswith(_NO_MACHINE):
            raised, end = " ".join(lines[start : start + 2]), start + 2
        while end < len(lines) and _goes_on(lines[end]):
            # Python tells the cause first; Java tells it last.
            if _RAISED.match(lines[end]):
                raised = lines[end]
            end += 1
        yield (raised or said).strip().removeprefix("Caused by: ")[:_MOST_CHARACTERS]
        start = end


def _is_complaint(line: str) -> bool:
    if _TRACEBACK in line or _RAISED.match(line):
        return True
    level, harmless = _LEVEL.search(line), _HARMLESS.search(line)
    return level is not None and (harmless is None or level.start() < harmless.start())


def _goes_on(line: str) -> bool:
    """Whether a line belongs to the complaint before it: of a traceback, or the exception that it is about."""
    chained = "The above exception was" in line or "During handling of" in line
    return not line or line[0] in " \t" or _TRACEBACK in line or chained or _RAISED.match(line) is not None
