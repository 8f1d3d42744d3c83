"""The check of words finds each planted example, and nothing in plain text."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev import words

EXAMPLES = (
    "an operator is told the topic",
    "What a landing reads",
    "or None where there is no table",
    "read the rows, be it late",
    "all rows but for the last",
    "keep all else",
    "nothing of it is read",
    "the plan comes to ten ranges",
    "a loss is borne",
    "no table can be had",
    "the file is made anew",
    "a file beside the table",
    "commit whatever fails",
    "so many rows",
    "Tell whether a table has rows",
)


@pytest.mark.parametrize("text", EXAMPLES)
@pytest.mark.parametrize("form", ["docstring", "comment", "message", "page"])
def test_each_banned_pattern_is_found_with_its_plain_form(text: str, form: str, tmp_path: Path) -> None:
    forms = {
        "docstring": f'"""{text}."""\n',
        "comment": f"# {text}\n",
        "message": f'X = "{text}."\n',
        "page": f"{text}.\n",
    }
    path = tmp_path / ("a.md" if form == "page" else "a.py")
    path.write_text(forms.get(form, f"{text}.\n"))
    lines = words.prose_of(path) if form == "page" else words.sentences_of(path)
    found = list(words.banned_in(path, lines))
    assert found
    assert all(one.line == 1 and one.plain for one in found)


def test_names_in_code_and_questions_are_not_sentences(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("Read `told` and [a link](beside.md).\n\n```python\ntold = beside\n```\n\n## What is a ledger?\n")
    module = tmp_path / "a.py"
    module.write_text('"""Module with `told`."""\n\ntold = 1\n')
    assert not list(words.banned_in(page, words.prose_of(page)))
    assert not list(words.banned_in(module, words.sentences_of(module)))


def test_every_pattern_has_an_example() -> None:
    assert [one for one in words.BANNED if not any(words.re.search(one, text) for text in EXAMPLES)] == []


def test_names_of_one_word_shared_names_and_long_modules_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "class Told:\n    pass\n\n\nclass OffsetRange:\n    pass\n\n\nclass Ledger:\n    pass\n"
    )
    (tmp_path / "b.py").write_text("class OffsetRange:\n    pass\n" + "X = 1\n" * words.MOST_LINES)
    found = sorted((one.path.name, one.text) for one in words.names_in(tmp_path))
    assert found == [("a.py", "Told"), ("b.py", "452 lines"), ("b.py", "OffsetRange")]


def test_vague_words_are_counted() -> None:
    assert words.vague_share(iter(["What it has", "the ledger"])) == 40.0
