"""What a person reads in a browser where a program reads an error."""

import html
from typing import Final

from holdfast.domain.errors import Code, HoldfastError
from holdfast.http.answers import Answer
from holdfast.http.errors import error_answer
from holdfast.http.page_plain import plain_page
from holdfast.http.requests import Request

SIGN_IN: Final = "/sign-in"
# What stands below these is for programs, whoever looks at it.
_FOR_PROGRAMS: Final = ("/v1/", "/api/")
_READS: Final = frozenset({"GET", "HEAD"})
NEW_LINK: Final = (
    "Where the server runs, <code>holdfast token link</code> prints a link; open it here. "
    "It works once, within ten minutes, and signs this browser in."
)
_ONWARDS: Final = '<a href="/">Go to the sessions</a>'


def is_for_eyes(request: Request) -> bool:
    """Tell whether somebody looks: who asks prefers a page, at an address for people."""
    if request.method not in _READS or request.path.startswith(_FOR_PROGRAMS):
        return False
    weights = _weights(request.headers.get("accept", ""))
    anything = weights.get("application/*", weights.get("*/*", 0.0))
    return weights.get("text/html", 0.0) > weights.get("application/json", anything)


def refusal_page(error: HoldfastError, path: str) -> Answer:
    """Return the page for an error, with the status and the headers that a program would get."""
    told = error_answer(error)
    title, *paragraphs = _words(error, path)
    return plain_page(title, *paragraphs, status=told.status, headers=told.headers)


def _words(error: HoldfastError, path: str) -> tuple[str, ...]:
    is_unknown = error.code in (Code.UNAUTHENTICATED, Code.INVALID_QUERY)
    if path == SIGN_IN and is_unknown:
        spent = "It was used before, is older than ten minutes, or was not copied whole."
        return "This link signs nobody in", spent, NEW_LINK, _ONWARDS
    if error.code is Code.UNAUTHENTICATED:
        return "This browser is not signed in", NEW_LINK
    if error.code is Code.PATH_NOT_FOUND:
        return "There is nothing here", "No page has this address.", _ONWARDS
    return "That did not work", html.escape(error.message), _ONWARDS


def _weights(accept: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in accept.lower().split(","):
        name, *rules = (part.strip() for part in each.split(";"))
        weight = next((rule[2:] for rule in rules if rule.startswith("q=")), "1")
        try:
            found[name] = float(weight)
        except ValueError:
            found[name] = 0.0
    return found
