"""The web UI: built files, their routes, and plain pages for errors and for a missing build.

The sources of the UI are in `ui/`.
"""

import base64
import hashlib
import html
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from holdfast.domain.errors import Code, Denied, HoldfastError
from holdfast.http.auth import read_cookie
from holdfast.http.errors import error_response, path_not_found
from holdfast.http.requests import Request
from holdfast.http.responses import Response
from holdfast.http.routing import RouteRequest, Routes, cacheable

# Where the build of `ui/` is stored, in a checkout and in a wheel.
FOLDER: Final = Path(__file__).parent / "page"
_INDEX: Final = "index.html"
_ASSETS: Final = "assets"
# Media types of built files; sent explicitly, so that a browser never sniffs.
KINDS: Final[Mapping[str, str]] = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of the UI."""

    content: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class BuiltPage:
    """The HTML document of every UI path, and the assets that it loads."""

    document: bytes
    assets: Mapping[str, Asset]


@cache
def load_page(folder: Path) -> BuiltPage | None:
    """Return the build in a folder; None if the UI was not built."""
    try:
        document = (folder / _INDEX).read_bytes()
    except FileNotFoundError:
        return None
    found = (path for path in (folder / _ASSETS).iterdir() if path.suffix in KINDS)
    assets = {path.name: Asset(path.read_bytes(), KINDS[path.suffix]) for path in found}
    return BuiltPage(document, assets)


MEDIA_TYPE: Final = "text/html; charset=utf-8"
_STYLE: Final = """
:root { color-scheme: light dark; --paper: #fcfbf9; --text: #1b2321; --soft: #4d5652;
  --accent: #0b6657; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #131716; --text: #e7eae8; --soft: #b3bab7; --accent: #76d2bd; }
}
body { margin: 0; background: var(--paper); color: var(--soft);
  font: 15px/1.6 system-ui, sans-serif; }
main { max-width: 34rem; margin: 16vh auto 0; padding: 0 1.5rem; }
h1 { color: var(--text); font-size: 1.35rem; letter-spacing: -0.01em; }
code { padding: 1px 4px; border-radius: 4px; font-size: 0.9em;
  background: color-mix(in srgb, var(--text) 8%, transparent); color: var(--text); }
a { color: var(--accent); }
"""
# The CSP of a plain page allows only this inline style, by its hash.
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
) -> Response:
    """Return a plain page; title and paragraphs are HTML, so the caller escapes foreign text."""
    body = "\n".join(f"<p>{each}</p>" for each in paragraphs)
    page = _PAGE.format(title=title, style=_STYLE, body=body)
    return Response(
        status=status,
        content=page.encode(),
        media_type=MEDIA_TYPE,
        headers={**(headers or {}), **PLAIN_HEADERS},
    )


_SIGNED_IN: Final = "You are signed in."
_NOT_SIGNED_IN: Final = (
    "This browser is not signed in. <code>holdfast token link</code>, on the server's "
    "machine, prints a sign-in link that works once."
)
_HOW: Final = (
    "The web UI was not built. With Node 20.19 or newer, <code>make setup</code> in the "
    "checkout builds it for the server of its <code>.venv</code>; then reload this page. "
    "Elsewhere, install again from that checkout afterwards.",
    "Until then, use a terminal: <code>holdfast chat</code> starts a conversation with an "
    "agent, and <code>holdfast sessions list</code> lists sessions; from another machine, "
    "add <code>--server</code> and this server's address.",
    'For programs, <a href="/openapi.json">/openapi.json</a> describes every route to '
    "clients that are signed in or send a token; <code>docs/http.md</code> explains them.",
)


async def missing_build_page(request: RouteRequest[Any, None]) -> Response:
    """Return the page for a missing build; it only varies with the sign-in state."""
    state_text = _SIGNED_IN if await is_signed_in(request) else _NOT_SIGNED_IN
    return plain_page("The server runs", state_text, *_HOW)


async def is_signed_in(request: RouteRequest[Any, None]) -> bool:
    """Return whether the request has a valid session cookie."""
    try:
        caller = await request.holdfast.tokens.resolve(read_cookie(request.headers))
    except Denied:
        return False
    return caller.is_cookie


SIGN_IN: Final = "/sign-in"
# Paths below these are for programs: errors there are always JSON.
_API_PREFIXES: Final = ("/v1/", "/api/")
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
NEW_LINK: Final = (
    "On the server's machine, <code>holdfast token link</code> prints a sign-in link; open "
    "it in this browser. It works once, within ten minutes."
)
_SESSIONS_LINK: Final = '<a href="/">Go to the sessions</a>'


def prefers_html(request: Request) -> bool:
    """Return whether an error should be a page: the client prefers HTML, at a UI path."""
    if request.method not in _SAFE_METHODS or request.path.startswith(_API_PREFIXES):
        return False
    weights = _weights(request.headers.get("accept", ""))
    anything = weights.get("application/*", weights.get("*/*", 0.0))
    return weights.get("text/html", 0.0) > weights.get("application/json", anything)


def error_page(error: HoldfastError, path: str) -> Response:
    """Return an error as a page, with the same status and headers as the JSON response."""
    json_response = error_response(error)
    title, *paragraphs = _words(error, path)
    return plain_page(
        title, *paragraphs, status=json_response.status, headers=json_response.headers
    )


def _words(error: HoldfastError, path: str) -> tuple[str, ...]:
    is_unknown = error.code in (Code.UNAUTHENTICATED, Code.INVALID_QUERY)
    if path == SIGN_IN and is_unknown:
        spent = "It was already used, is older than ten minutes, or was copied incompletely."
        return "This link is not valid", spent, NEW_LINK, _SESSIONS_LINK
    if error.code is Code.UNAUTHENTICATED:
        return "This browser is not signed in", NEW_LINK
    if error.code is Code.PATH_NOT_FOUND:
        return "Page not found", "There is no page at this address.", _SESSIONS_LINK
    return "The request failed", html.escape(error.message), _SESSIONS_LINK


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


# CSP against cross-site scripting: only built files, only from this origin, no inline script.
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
DOCUMENT_HEADERS: Final = {
    "cache-control": "no-cache",
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
}
# Asset names contain a content hash, so they can be cached forever.
ASSET_HEADERS: Final = {"cache-control": "no-transform, public, max-age=31536000, immutable"}
# Paths by route name: these can be bookmarked.
ADDRESSES: Final[Mapping[str, str]] = {
    "front": "/",
    "page.sessions": "/sessions",
    "page.session": "/sessions/{place}",
    "page.agents": "/agents",
    "page.agent": "/agents/{place}",
    "page.timeline": "/timeline",
}


def page_routes(folder: Path) -> Routes:
    """Return the routes of the UI built into a folder, or of the page for a missing build."""
    # The query string is used by the UI only.
    routes = Routes(needs=None, tolerant=True)

    async def show(request: RouteRequest[Any, None]) -> Response:
        """Return the web UI, or a page that explains how to build it."""
        page = load_page(folder)
        if page is None:
            return await missing_build_page(request)
        return Response(
            content=page.document,
            media_type=MEDIA_TYPE,
            headers=DOCUMENT_HEADERS,
            has_etag=True,
        )

    for name, path in ADDRESSES.items():
        routes.get(path, name, {200: str, 304: None}, media_type=MEDIA_TYPE)(show)

    @routes.get(
        "/assets/{name}",
        "page.asset",
        **cacheable(bytes),
        media_type="application/octet-stream",
        other_media_types=tuple(KINDS.values()),
        errors=(Code.PATH_NOT_FOUND,),
    )
    async def load(request: RouteRequest[Any, None]) -> Response:
        """Return a file of the web UI."""
        page = load_page(folder)
        asset = page.assets.get(request.path["name"]) if page else None
        if asset is None:
            raise path_not_found()
        return Response(
            content=asset.content,
            media_type=asset.media_type,
            headers=ASSET_HEADERS,
            has_etag=True,
        )

    return routes
