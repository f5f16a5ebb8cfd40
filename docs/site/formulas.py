"""Formulas of the site: LaTeX to MathML when the site is built, so that a page asks nobody else for anything.

Between single dollars in a line, between double ones in a paragraph of its own. A formula that does not read, or that
is left as text, fails the build.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
_LONG = 40  # letters of LaTeX, beyond which a formula in a line may be wider than a small screen
_CODE = re.compile(r"<(pre|code|script)\b.*?</\1>", re.DOTALL)


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Replace every formula of a page.

    Raises:
        PluginError: If one does not read, or is left as text.
    """

    def formula(found: re.Match[str]) -> str:
        latex = html.unescape(found[3]).strip()
        try:
            if found[2] == "(":
                made = convert(latex, display="inline")
                return f'<span class="formula">{made}</span>' if len(latex) > _LONG else made
            return f'<div class="formula">{convert(latex, display="block")}</div>'
        except Exception as error:  # the converter raises many kinds
            raise PluginError(f"formula must be LaTeX. Got {latex!r} in {page.file.src_path} ({error!r}).") from error

    content = _FORMULA.sub(formula, content)
    if "$$" in _CODE.sub("", content):
        raise PluginError(f"page must hold no raw $$. Got one in {page.file.src_path}: give it a paragraph of its own.")
    return content
