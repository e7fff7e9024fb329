"""The page's own addresses: each gives the same document, which reads its address by itself.

They are open to everybody, because a document without data says nothing; the data comes from the
routes of `/v1`, and those ask who is there.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from holdfast.domain.errors import Code
from holdfast.http.answers import Answer
from holdfast.http.errors import path_not_found
from holdfast.http.front import front
from holdfast.http.page_files import KINDS, built_page
from holdfast.http.page_plain import MEDIA_TYPE
from holdfast.http.table import Act, Asked, Route

# Only what was built, only from here, and text never becomes a script, whoever wrote it.
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
# A file with another content has another name.
ASSET_HEADERS: Final = {"cache-control": "no-transform, public, max-age=31536000, immutable"}

# By the names of their routes: what a person can bookmark.
ADDRESSES: Final[Mapping[str, str]] = {
    "front": "/",
    "page.sessions": "/sessions",
    "page.session": "/sessions/{place}",
    "page.agents": "/agents",
    "page.agent": "/agents/{place}",
    "page.timeline": "/timeline",
}


def page_routes(folder: Path) -> tuple[Route, ...]:
    """Return the routes of the page that was built into a folder, or of the one that says how."""

    async def show(asked: Asked[Any, None]) -> Answer:
        page = built_page(folder)
        if page is None:
            return await front(asked)
        return Answer(
            content=page.document,
            media_type=MEDIA_TYPE,
            headers=DOCUMENT_HEADERS,
            has_etag=True,
        )

    async def load(asked: Asked[Any, None]) -> Answer:
        page = built_page(folder)
        asset = page.assets.get(asked.path["name"]) if page else None
        if asset is None:
            raise path_not_found()
        return Answer(
            content=asset.content,
            media_type=asset.media_type,
            headers=ASSET_HEADERS,
            has_etag=True,
        )

    return (*(_address(name, path, show) for name, path in ADDRESSES.items()), _asset(load))


def _address(name: str, path: str, show: Act) -> Route:
    return Route(
        method="GET",
        path=path,
        name=name,
        summary="Show the page to a browser, or how to get it.",
        act=show,
        needs=None,
        gives={200: str, 304: None},
        media_type=MEDIA_TYPE,
        # What stands behind the question mark is the page's own business.
        tolerant=True,
    )


def _asset(load: Act) -> Route:
    return Route(
        method="GET",
        path="/assets/{name}",
        name="page.asset",
        summary="Return a file of the page.",
        act=load,
        needs=None,
        gives={200: bytes, 304: None},
        tells={200: ("etag",), 304: ("etag",)},
        media_type="application/octet-stream",
        kinds=tuple(KINDS.values()),
        refuses=(Code.PATH_NOT_FOUND,),
        tolerant=True,
    )
