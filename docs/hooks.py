"""Docstrings on the API pages: what is Sphinx's in them as Markdown has it."""

import re
from typing import Any

_ROLE = re.compile(r":(?:class|meth|func|attr|mod|exc|data):\s*(?=<code|<a )")


def on_page_content(html: str, **_: Any) -> str:
    """Takes out roles, and the second colon of those before a block of code."""
    return re.sub(r"::(</p>|</summary>)", r":\1", _ROLE.sub("", html).replace("<p>::</p>", ""))
