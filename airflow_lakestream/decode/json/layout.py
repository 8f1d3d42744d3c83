"""Layouts of JSON documents: literal bytes shared by many documents, with scalars between."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_lakestream.decode.json.document import parse_object
from airflow_lakestream.decode.values.outcome import Misfit

Path = tuple[str, ...]

# A document is parsed in Python, which pays if thousands of documents share its layout.
_MOST_BYTES = 1 << 16

_TOKEN = re.compile(rb'"[^"]*"|[{}\[\]:,]|[^ \t\r\n"{}\[\]:,]+')


@dataclass(frozen=True, slots=True)
class LayoutSlot:
    """Place of a scalar in a layout: its path in the document, and whether it is a text."""

    path: Path
    is_text: bool


@dataclass(frozen=True, slots=True)
class JsonLayout:
    """Layout of documents: `literals` with a scalar between each two, described by `slots`.

    The quotes of a text belong to the literals. `objects` are the paths of the objects inside, and () for the document.
    No path is listed twice.
    """

    slots: tuple[LayoutSlot, ...]
    literals: tuple[bytes, ...]
    objects: frozenset[Path]


def layout_of(document: bytes) -> JsonLayout | None:
    """Return the layout of a document, or None if the document has no layout.

    That is an invalid or very long document, or one with an array, a backslash, a repeated key, or without a scalar.
    """
    if len(document) > _MOST_BYTES or b"\\" in document:
        return None
    try:
        parse_object(document)
        walk = _LayoutWalk(document)
        walk.object(())
    except (Misfit, _NoLayout):
        return None
    return walk.layout() if walk.slots else None


class _NoLayout(Exception):
    """Signal: an array, or a repeated key."""


class _LayoutWalk:
    """A pass over the tokens of a valid object."""

    def __init__(self, document: bytes) -> None:
        self._document = document
        self._tokens = _TOKEN.finditer(document)
        self._seen: set[Path] = set()
        self._objects: set[Path] = set()
        self._literals: list[bytes] = []
        self._end = 0
        self.slots: list[LayoutSlot] = []
        next(self._tokens)

    def layout(self) -> JsonLayout:
        literals = (*self._literals, self._document[self._end :])
        return JsonLayout(tuple(self.slots), literals, frozenset(self._objects))

    def object(self, path: Path) -> None:
        """Walk to the end of the object last opened."""
        self._objects.add(path)
        for token in self._tokens:
            if token[0] == b"}":
                return
            if token[0] != b",":
                self._member((*path, token[0][1:-1].decode()))

    def _member(self, path: Path) -> None:
        if path in self._seen:
            raise _NoLayout
        self._seen.add(path)
        next(self._tokens)  # the colon
        value = next(self._tokens)
        if value[0] == b"[":
            raise _NoLayout
        if value[0] == b"{":
            self.object(path)
        else:
            self._slot(path, *value.span())

    def _slot(self, path: Path, start: int, end: int) -> None:
        is_text = self._document.startswith(b'"', start)
        if is_text:
            start, end = start + 1, end - 1
        self.slots.append(LayoutSlot(path, is_text))
        self._literals.append(self._document[self._end : start])
        self._end = end
