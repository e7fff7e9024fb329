"""Pages without a script: what is the matter, and what to do, in the page's own colours."""

import base64
import hashlib
from collections.abc import Mapping
from typing import Final

from holdfast.http.answers import Answer

MEDIA_TYPE: Final = "text/html; charset=utf-8"

_STYLE: Final = """
:root { color-scheme: light dark; --paper: #fcfbf9; --ink: #1b2321; --soft: #4d5652;
  --accent: #0b6657; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #131716; --ink: #e7eae8; --soft: #b3bab7; --accent: #76d2bd; }
}
body { margin: 0; background: var(--paper); color: var(--soft);
  font: 15px/1.6 system-ui, sans-serif; }
main { max-width: 34rem; margin: 16vh auto 0; padding: 0 1.5rem; }
h1 { color: var(--ink); font-size: 1.35rem; letter-spacing: -0.01em; }
code { padding: 1px 4px; border-radius: 4px; font-size: 0.9em;
  background: color-mix(in srgb, var(--ink) 8%, transparent); color: var(--ink); }
a { color: var(--accent); }
"""
# Of a document that loads nothing only this one style is let in, by what it says.
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
PLAIN_HEADERS: Final = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )
}
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · Holdfast</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>
</body>
</html>
"""


def plain_page(
    title: str, *paragraphs: str, status: int = 200, headers: Mapping[str, str] | None = None
) -> Answer:
    """Return a page; title and paragraphs are markup, so what others wrote is escaped before."""
    body = "\n".join(f"<p>{each}</p>" for each in paragraphs)
    page = _PAGE.format(title=title, style=_STYLE, body=body)
    return Answer(
        status=status,
        content=page.encode(),
        media_type=MEDIA_TYPE,
        headers={**(headers or {}), **PLAIN_HEADERS},
    )
