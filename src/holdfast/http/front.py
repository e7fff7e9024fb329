"""What a browser finds where the page was not built: where it stands, and how to go on.

No script, nothing to load.
"""

from typing import Any, Final

from holdfast.domain.errors import Denied
from holdfast.http.answers import Answer
from holdfast.http.callers import cookie_of
from holdfast.http.table import Asked

MEDIA_TYPE: Final = "text/html; charset=utf-8"

_SIGNED_IN: Final = "You are signed in."
_NOT_SIGNED_IN: Final = (
    "This browser is not signed in. <code>holdfast token link</code>, where the server runs, "
    "prints a link that signs it in, once."
)
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Holdfast</title>
</head>
<body>
<main>
<h1>Holdfast</h1>
<p>The server runs. {standing}</p>
<p>The page to chat in was not built here. With Node 20.19 or newer, <code>make setup</code> in the
checkout builds it; a wheel has it inside. Meanwhile, in a terminal, <code>holdfast chat</code>
converses with an agent, and <code>holdfast sessions list</code> shows what was said; from another
machine, add <code>--server</code> and this server's address.</p>
<p>For programs, <a href="/openapi.json">/openapi.json</a> describes every route to whoever is
signed in or sends a token; <code>docs/http.md</code> explains them.</p>
</main>
</body>
</html>
"""


async def front(asked: Asked[Any, None]) -> Answer:
    """Tell everybody the same, but for whether they are signed in."""
    try:
        caller = await asked.house.tokens.resolve(cookie_of(asked.headers))
        is_signed_in = caller.is_cookie
    except Denied:
        is_signed_in = False
    page = _PAGE.format(standing=_SIGNED_IN if is_signed_in else _NOT_SIGNED_IN)
    return Answer(content=page.encode(), media_type=MEDIA_TYPE)
