"""What MkDocs does to our pages besides: links in docstrings, and words that the search knows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority

_SEE_ALSO = re.compile(r"<p>\.\. seealso:: (.*?)</p>", re.DOTALL)
_PAGE = re.compile(r"docs/([\w/-]+)\.md(#[\w-]+)?")
# A row of docs/words.md: what people look for, and a sentence whose first link leads to the subject.
_WORDS = re.compile(r"^\| ([^|]+) \| [^|]*?\]\(([\w/-]+)\.md(#[\w-]+)?\)[^|]* \|$", re.MULTILINE)


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
