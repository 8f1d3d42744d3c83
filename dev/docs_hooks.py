"""What MkDocs does to our pages besides: links in docstrings lead to the pages of the site."""

from __future__ import annotations

import re
from typing import Any

_SEE_ALSO = re.compile(r"<p>\.\. seealso:: (.*?)</p>", re.DOTALL)
_PAGE = re.compile(r"docs/([\w/-]+)\.md(#[\w-]+)?")


def on_page_content(html: str, **_: Any) -> str:
    """Turn a docstring's `.. seealso:: docs/ledger.md` into a link to that page."""
    return _SEE_ALSO.sub(lambda found: f"<p>See {_PAGE.sub(_link, found[1])}.</p>", html)


def _link(found: re.Match[str]) -> str:
    page, anchor = found[1], found[2] or ""
    return f'<a href="{page}.html{anchor}">{page.rpartition("/")[2].replace("_", " ")}</a>'
