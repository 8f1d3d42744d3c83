"""Check of words by `dev/WORDS.md`, a part of `make lint`: class names, docstrings, comments, messages, pages."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dev.service import CHECKOUT

PACKAGE, DOCS = CHECKOUT / "airflow_lakestream", CHECKOUT / "docs"
MOST_LINES, MOST_VAGUE, MOST_VAGUE_IN_DOCS = 450, 3.0, 4.0
_VAGUE = """
what that which those it its one ones they them their there some others other whose such so none nothing whatever
whoever nobody somebody who where
"""
VAGUE = frozenset(_VAGUE.split())
# Pattern, and the plain form. A pattern is about words in a sentence, never about names in code.
BANNED: Mapping[str, str] = {
    r"\b(told|telling|tells?)\b": "is configured with, reports, emits, logs, knows",
    r"^What\b(?!.*\?)": "the noun, or a verb with its object",
    r"\bNone where\b": "or None if ...",
    r"\bbe it\b": "even if it is ...",
    r"\bbut for\b": "except",
    r"\ball else\b": "everything else",
    r"\bnothing of\b": "none",
    r"\bcomes? (to|of|up)\b": "becomes, results from, appears",
    r"\bis borne\b": "is tolerated",
    r"\bcan be had\b": "is available",
    r"(?<!--)\banew\b": "again, recreated",
    r"(?<!when: )\bbeside\b(?!:)": "next to, in addition",
    r"\b(whoever|whatever)\b": "the noun",
    r"\bso (many|long|often)\b": "N, that long, that often",
    r"\bTell whether\b": "Return whether",
}
# Names of one word: terms of `dev/WORDS.md`, keys of a pipeline's file, errors, names that others import.
_ONE_WORD = """
Audit Batch Counts Finding Landing Ledger Mirror Plan Record Sink Verdict
Alerts Checks Connect Flink Freshness Lag Metadata Orchestration Part Pipeline Quality Retention Sensor Source Spark
Setting Transformation
Conflict Contention Exceeded Fenced Malformed Misfit Overtaken Stopped Superseded Terminal Transient Undecided Unfit
Unroutable _Busy _Exists _Signalled _Undone
Java Lease Odd Proposing Tombstones Transformed
"""
ONE_WORD = frozenset(_ONE_WORD.split())
WORD = re.compile(r"[A-Za-z']+")


@dataclass(frozen=True)
class WordFinding:
    """A place with a banned pattern or a name that is not allowed, and what to write."""

    path: Path
    line: int
    text: str
    plain: str

    def __str__(self) -> str:
        place = self.path.relative_to(CHECKOUT) if self.path.is_relative_to(CHECKOUT) else self.path
        return f"{place}:{self.line}: {self.text!r}: write {self.plain}"


def sentences_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of docstrings and comments, and the messages, of a module: line number and text."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for number, line in enumerate(node.value.splitlines()):
                yield node.lineno + number, re.sub(r"`[^`]*`|:param \w+:|https?://\S+", "X", line.strip())
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], re.sub(r"`[^`]*`", "X", token.string.lstrip("# "))


def prose_of(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page without code: line number and text."""
    is_code = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        is_code ^= line.startswith("```")
        if not is_code and not line.startswith(("```", "    ")):
            yield number, re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`|<[^>]*>", "X", line))


def banned_in(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[WordFinding]:
    """Yield the banned patterns of a file."""
    for number, line in lines:
        for pattern, plain in BANNED.items():
            if found := re.search(pattern, line):
                yield WordFinding(path, number, found[0], plain)


def names_in(package: Path) -> Iterator[WordFinding]:
    """Yield classes of one word outside of the list, names that two modules share, and modules that are too long."""
    homes: dict[str, Path] = {}
    for path in sorted(package.rglob("*.py")):
        text = path.read_text()
        if (lines := text.count("\n")) > MOST_LINES:
            yield WordFinding(path, lines, f"{lines} lines", f"modules of {MOST_LINES} lines at most")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                words = re.findall(r"[A-Z][a-z0-9]+|[A-Z]+(?![a-z])", node.name)
                if len(words) == 1 and node.name not in ONE_WORD:
                    yield WordFinding(path, node.lineno, node.name, "a noun phrase of two words and more")
                if homes.setdefault(node.name, path) != path:
                    yield WordFinding(path, node.lineno, node.name, f"another name: {homes[node.name].name} has it")


def vague_share(texts: Iterator[str]) -> float:
    """Return the vague words per 100 words."""
    words = Counter(word.lower() in VAGUE for text in texts for word in WORD.findall(text))
    return 100 * words[True] / max(words.total(), 1)


def first_lines(package: Path) -> Iterator[str]:
    """Yield the first line of each docstring."""
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield (ast.get_docstring(node) or "").partition("\n")[0]


def main() -> int:
    """Print the findings, and return 1 if there are any."""
    modules = sorted(PACKAGE.rglob("*.py"))
    findings = [*names_in(PACKAGE)]
    for path in modules:
        findings += banned_in(path, sentences_of(path))
    for page in sorted(DOCS.rglob("*.md")):
        findings += banned_in(page, prose_of(page))
    for finding in findings:
        print(finding)
    pages = [
        line for page in sorted(DOCS.rglob("*.md")) for _, line in prose_of(page) if not line.startswith(("|", "#"))
    ]
    shares = (
        ("first lines of docstrings", vague_share(first_lines(PACKAGE)), MOST_VAGUE),
        ("pages", vague_share(iter(pages)), MOST_VAGUE_IN_DOCS),
    )
    too_vague = [f"{of}: {share:.1f} vague words per 100, {most} at most" for of, share, most in shares if share > most]
    for line in too_vague:
        print(line)
    return 1 if findings or too_vague else 0


if __name__ == "__main__":
    sys.exit(main())
