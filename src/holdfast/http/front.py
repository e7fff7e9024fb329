"""What a browser finds where the page was not built: where it stands, and how to go on.

No script, nothing to load.
"""

from typing import Any, Final

from holdfast.domain.errors import Denied
from holdfast.http.answers import Answer
from holdfast.http.callers import cookie_of
from holdfast.http.page_plain import plain_page
from holdfast.http.table import Asked

_SIGNED_IN: Final = "You are signed in."
_NOT_SIGNED_IN: Final = (
    "This browser is not signed in. <code>holdfast token link</code>, where the server runs, "
    "prints a link that signs it in, once."
)
_HOW: Final = (
    "The page to chat in was not built here. With Node 20.19 or newer, <code>make setup</code> in "
    "the checkout builds it; then load this address again. A wheel has it inside.",
    "Meanwhile, in a terminal, <code>holdfast chat</code> converses with an agent, and "
    "<code>holdfast sessions list</code> shows what was said; from another machine, add "
    "<code>--server</code> and this server's address.",
    'For programs, <a href="/openapi.json">/openapi.json</a> describes every route to whoever is '
    "signed in or sends a token; <code>docs/http.md</code> explains them.",
)


async def front(asked: Asked[Any, None]) -> Answer:
    """Tell everybody the same, but for whether they are signed in."""
    standing = _SIGNED_IN if await is_signed_in(asked) else _NOT_SIGNED_IN
    return plain_page("The server runs", standing, *_HOW)


async def is_signed_in(asked: Asked[Any, None]) -> bool:
    """Tell whether a browser has a cookie of ours that holds."""
    try:
        caller = await asked.house.tokens.resolve(cookie_of(asked.headers))
    except Denied:
        return False
    return caller.is_cookie
