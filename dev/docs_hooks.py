"""Hooks of MkDocs: tables of settings, links in docstrings, and words for the search."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority

from airflow_lakestream.config.engines import engines_table
from airflow_lakestream.config.setting import FIRST_VERSION, MIRRORS, RecordMerge, Setting, SettingSection, SettingTaker
from airflow_lakestream.config.settings import SETTINGS
from airflow_lakestream.connect import connector
from airflow_lakestream.core import policies, routing
from airflow_lakestream.core.names import DEFAULT_METADATA
from airflow_lakestream.driver import supervisor

_SEE_ALSO = re.compile(r"<p>\.\. seealso:: (.*?)</p>", re.DOTALL)
_PAGE = re.compile(r"docs/([\w/-]+)\.md(#[\w-]+)?")
# A row of docs/words.md: what people look for, and a sentence whose first link leads to the subject.
_WORDS = re.compile(r"^\| ([^|]+) \| [^|]*?\]\(([\w/-]+)\.md(#[\w-]+)?\)[^|]* \|$", re.MULTILINE)


# A line for those who read the repository, behind the comment of a table. The site has the table in place of both.
_ELSEWHERE = r"(?:\nThe table is in the built site: .*)?"
# Where a page has the table of a taker's settings.
_SETTINGS = re.compile(rf"<!-- settings: (\w+) -->{_ELSEWHERE}")
# Where a page has the table of the settings that a taker refuses.
_REFUSED = re.compile(rf"<!-- refused: (\w+) -->{_ELSEWHERE}")
_ENGINES = re.compile(rf"<!-- engines -->{_ELSEWHERE}")
# Where a page has the table of the arguments of a class and of its bases, by the modules.
_ARGUMENTS = re.compile(rf"<!-- arguments: ([\w/ ]+) -->{_ELSEWHERE}")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Write the tables of settings, arguments and engines."""
    return with_tables(markdown, page.file.src_uri.count("/"))


def with_tables(markdown: str, depth: int) -> str:
    """Return a page with its tables of settings, arguments and engines.

    :param depth: the number of folders between `docs` and the page.
    """
    up = "../" * depth
    markdown = _ENGINES.sub(lambda _: "\n".join(engines_table()), markdown)
    markdown = _ARGUMENTS.sub(lambda found: "\n".join(_arguments(found[1].split(), up)), markdown)
    markdown = _REFUSED.sub(lambda found: "\n".join(_refusals(SettingTaker[found[1].upper()])), markdown)
    return _SETTINGS.sub(lambda found: "\n".join(_rows(SettingTaker[found[1].upper()], up)), markdown)


def _rows(taker: SettingTaker, up: str) -> Iterator[str]:
    defaults = {name: value for module in _CONFIGS[taker] for name, value in _defaults(module)}
    yield "| parameter | default | meaning |\n|---|---|---|"
    for one in SETTINGS.values():
        if one.doc and one.section is not SettingSection.OTHER and not _is_refused(one, taker):
            text = _linked(one.markdown(taker), up)
            default = one.mirrors_default if taker in MIRRORS else None
            yield f"| `{one.name}` | {default or one.default or defaults.get(one.name, '')} | {text} |"
    yield f"\nAll are there since {FIRST_VERSION}, except where a row names a later version."


def _linked(text: str, up: str) -> str:
    return re.sub(r"\]\((?=\w)", f"]({up}", text).replace("|", "\\|")


def _arguments(modules: list[str], up: str) -> Iterator[str]:
    """Yield the table of the arguments of classes: by the docstrings, or else by their settings.

    :param modules: of `operators`, or paths in the package: the last class of the first module, and its bases.
    """
    defaults: dict[str, str] = {}
    documented: dict[str, str] = {}
    for kind in _classes(modules):
        for init in (one for one in kind.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"):
            values = zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)
            defaults = {**defaults, **{one.arg: _default(value) for one, value in values if one.arg not in defaults}}
            # With a decorator it takes the arguments of decoding, too.
            defaults |= dict(_defaults("decoding")) if init.decorator_list else {}
        documented = dict(re.findall(r":param (\w+): (.+(?:\n +.+)*)", ast.get_docstring(kind) or "")) | documented
    documented.pop("kwargs", None)
    # Airflow's own arguments have a meaning of their own here, if the docstring has them.
    defaults |= {name: "" for name in documented if name not in defaults}
    yield "| parameter | default | meaning |\n|---|---|---|"
    for name, default in defaults.items():
        setting, text = SETTINGS.get(name), " ".join(documented.get(name, "").split()).removesuffix(" (templated)")
        meaning = text or ("" if setting is None else _linked(setting.markdown(), up))
        # An argument with a meaning of its own, and without a default, has not the setting's default either.
        usual = None if setting is None or (text and default == "none") else setting.default
        yield f"| `{name}` | {usual or default} | {meaning} |"


def _classes(modules: list[str]) -> Iterator[ast.ClassDef]:
    for at, module in enumerate(modules):
        path = module if "/" in module else f"operators/{module}"
        tree = ast.parse(_PACKAGE.joinpath(f"{path}.py").read_text())
        classes = [one for one in reversed(tree.body) if isinstance(one, ast.ClassDef)]
        yield from classes[:1] if at == 0 else classes


def _default(value: ast.expr | None) -> str:
    """Return a default in Markdown; empty for a required argument, and for a setting of Airflow."""
    text = "" if value is None else ast.unparse(value)
    return "" if not text or text.startswith("conf.") else _shown(eval(text, _NAMES))  # our own source


def _refusals(taker: SettingTaker) -> Iterator[str]:
    yield "| parameter | reason |\n|---|---|"
    for one in SETTINGS.values():
        if one.doc and _is_refused(one, taker) and (refusal := one.refusal(taker)) is not None:
            yield f"| `{one.name}` | {refusal.reason} |"


# One operator takes the settings of both kinds of mirrors.
def _is_refused(setting: Setting, taker: SettingTaker) -> bool:
    takers = MIRRORS if taker in MIRRORS else (taker,)
    return all(setting.refusal(one) is not None for one in takers)


_PACKAGE = Path(__file__).parents[1] / "airflow_lakestream"
_NAMES = {**vars(policies), **vars(routing), **vars(supervisor), **vars(connector)}
_NAMES |= {"DEFAULT_METADATA": DEFAULT_METADATA, "RecordMerge": RecordMerge}
# The wheel's build has neither Arrow nor PyIceberg, so that the configurations are read, not imported.
_CONFIGS = {SettingTaker.LANDING: ("decoding", "landing"), SettingTaker.MIRROR: ("decoding", "landing", "mirror")}


def _defaults(module: str) -> Iterator[tuple[str, str]]:
    """Yield the fields of a configuration's module, and their defaults in Markdown."""
    tree = ast.parse(_PACKAGE.joinpath("config", f"{module}.py").read_text())
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(
                target=ast.Name(id=name),
                value=ast.Call(func=ast.Name(id="SettingField"), args=[value, *_])
                | (ast.Constant() | ast.Name() | ast.Attribute() as value),
            ):
                yield name, _shown(eval(ast.unparse(value), _NAMES))  # our own source


def _shown(default: object) -> str:
    if default is None:
        return "none"
    if isinstance(default, str):
        return f"`{json.dumps(default)}`"
    return ", ".join(default) if isinstance(default, tuple) else f"`{default}`"


def on_page_content(html: str, **_: Any) -> str:
    """Turn a docstring's `.. seealso:: docs/ledger.md` into a link to that page."""
    return _SEE_ALSO.sub(lambda found: f"<p>See {_PAGE.sub(_link, found[1])}.</p>", html)


def _link(found: re.Match[str]) -> str:
    page, anchor = found[1], found[2] or ""
    return f'<a href="{page}.html{anchor}">{page.rpartition("/")[2].replace("_", " ")}</a>'


# After the search has written its index.
@event_priority(-100)
def on_post_build(config: Any, **_: Any) -> None:
    """Give the search the other words of docs/words.md, as tags of the sections that have the subjects."""
    index = Path(config["site_dir"], "search", "search_index.json")
    content = json.loads(index.read_text())
    sections = {one["location"]: one for one in content["docs"]}
    for words, page, anchor in _WORDS.findall(Path(config["docs_dir"], "words.md").read_text()):
        section = sections.get(f"{page}.html{anchor}")
        if section is None:
            raise PluginError(f"words.md: {words}: the search knows no section {page}.html{anchor}")
        section.setdefault("tags", []).extend(word.strip() for word in words.split(","))
    index.write_text(json.dumps(content, separators=(",", ":")))
