"""A setting as a value: parser, documentation, section, and the takers that refuse it. `config.settings` has all."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum, auto
from typing import Any

from airflow_lakestream.config import arguments
from airflow_lakestream.core.policies import NamedChoice, choose, is_given, seconds, size_in_bytes

Check = Callable[[str, object], object]
FIRST_VERSION = "0.1.0"


class SettingSection(StrEnum):
    """Group of settings. Pipeline files have a part for each up to ERRORS."""

    SOURCE = auto()
    LIMITS = auto()
    SCHEMA = auto()
    TABLE = auto()
    ROWS = auto()
    ERRORS = auto()
    SQL = auto()
    FAN_OUT = auto()
    CONNECTIONS = auto()
    RUN = auto()
    OTHER = auto()


class SettingKind(StrEnum):
    """Kind of a setting's value, if the value is not one of a few choices."""

    TEXT = auto()
    NAMES = auto()
    MAPPING = auto()
    FLAG = auto()
    COUNT = auto()
    SIZE = auto()
    SECONDS = auto()
    MOMENT = auto()
    LIMIT = auto()


class RecordMerge(NamedChoice):
    """Effect of a plain record on the row of its key."""

    REPLACE = auto()
    GIVEN = auto()


class RecordEnvelope(NamedChoice):
    """Wrapping around the row in a value: `core.policies.ValueEnvelope`, and the further ones of mirrors."""

    CONNECT = auto()
    DEBEZIUM = auto()
    FLATTENED = auto()
    MAXWELL = auto()
    CANAL = auto()


class SettingTaker(StrEnum):
    """A landing, a mirror, a group or an engine, which takes settings; the value completes "is not for".

    `UPSERT` is a mirror of plain records, `MIRROR` one of a database's events.
    """

    LANDING = "a landing of records"
    MIRROR = "a mirror"
    UPSERT = "a table by key"
    GROUP = "a group of tasks"
    SPARK = "Spark"
    FLINK = "the engine flink"
    CONNECT = "the engine connect"


MIRRORS = (SettingTaker.MIRROR, SettingTaker.UPSERT)


@dataclass(frozen=True)
class SettingRefusal:
    """SettingRefusal of a setting by a taker.

    :param reason: follows "is not for a mirror: ".
    :param remedy: a sentence.
    :param when: returns whether a literal value is refused.
    """

    reason: str
    remedy: str = "Leave it out."
    when: Callable[[object], object] = is_given

    def text(self, taker: SettingTaker) -> str:
        """Return the problem, without the setting's name."""
        return f"is not for {taker}: {self.reason}."


@dataclass(frozen=True)
class Setting:
    """A setting by name.

    :param doc: documentation in Markdown, with links relative to `docs`; the first sentence is the summary.
    :param kind: the kind of the value, or the enum of its choices.
    :param check: parser of a literal value, in place of the kind's parser; raises InvalidArgument.
    :param default: text for the default, if the value in a signature does not show it.
    :param not_for: refusals by taker; a text is the reason.
    :param for_mirrors: documentation for a mirror, also of plain records, if it differs.
    :param mirrors_default: text for the default of a mirror, if the value in a signature does not show it.
    :param since: the version of the package that brought the setting.
    """

    name: str
    doc: str = ""
    kind: SettingKind | type[StrEnum] = SettingKind.TEXT
    check: Check | None = None
    section: SettingSection = SettingSection.OTHER
    default: str | None = None
    not_for: Mapping[SettingTaker, str | SettingRefusal] = field(default_factory=dict)
    for_mirrors: str | None = None
    mirrors_default: str | None = None
    since: str = FIRST_VERSION

    def parse(self, value: object) -> Any:
        """Return the typed value; a typed value is its own. Raises InvalidArgument."""
        if isinstance(self.kind, type):
            return choose(self.kind, self.name, value)
        check = self.check or _PARSERS.get(self.kind)
        return value if check is None else check(self.name, value)

    def markdown(self, taker: SettingTaker = SettingTaker.LANDING) -> str:
        """Return the documentation, with all choices, and the version of a setting that came later."""
        later = "" if self.since == FIRST_VERSION else f" Since {self.since}."
        if taker in MIRRORS and self.for_mirrors is not None:
            return f"{self.for_mirrors}{later}"
        choices = self.kind if isinstance(self.kind, type) else ()
        unnamed = ", ".join(f'`"{one}"`' for one in choices if f'"{one}"' not in self.doc)
        lead = "Also" if '`"' in self.doc else "One of"
        return (f"{self.doc} {lead} {unnamed}." if unnamed else self.doc) + later

    def text(self, taker: SettingTaker = SettingTaker.LANDING) -> str:
        """Return the documentation without links."""
        return _LINK.sub(r"\1", _SEE.sub("", self.markdown(taker)))

    @property
    def summary(self) -> str:
        """First sentence of the documentation, without links and quotes, for the help of commands."""
        return re.split(r"\. (?=[A-Z`])", self.text())[0].rstrip(".").replace("`", "")

    def refusal(self, taker: SettingTaker) -> SettingRefusal | None:
        """Return the taker's refusal of the setting, or None."""
        found = self.not_for.get(taker)
        return SettingRefusal(found) if isinstance(found, str) else found


def in_section(section: SettingSection, *settings: Setting) -> tuple[Setting, ...]:
    """Return settings with a section, except for settings that have one."""
    return tuple(replace(one, section=section) if one.section is SettingSection.OTHER else one for one in settings)


_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
# A link behind a colon, only to read more.
_SEE = re.compile(rf": {_LINK.pattern}")
_PARSERS: Mapping[SettingKind, Check] = {
    SettingKind.NAMES: arguments.items,
    SettingKind.MAPPING: arguments.names,
    SettingKind.FLAG: arguments.flag,
    SettingKind.COUNT: arguments.count,
    SettingKind.SIZE: size_in_bytes,
    SettingKind.SECONDS: lambda argument, value: seconds(
        argument, value.total_seconds() if isinstance(value, timedelta) else value
    ),
    SettingKind.MOMENT: arguments.milliseconds,
    SettingKind.LIMIT: arguments.reject_limit,
}
