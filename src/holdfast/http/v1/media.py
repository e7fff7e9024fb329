"""Media: what a session holds beside its messages, read by its hash."""

import re
from typing import Final

from holdfast.domain.errors import Code
from holdfast.domain.tokens import Scope
from holdfast.http.answers import Answer
from holdfast.http.table import Asked, NoQuery, Route
from holdfast.http.v1.paths import of_session, session_of

_HASH: Final = re.compile(r"(?:sha256-)?([0-9a-f]{64})")
# What a browser can show and never runs, by how it begins; everything else is only ever saved.
_SAFE: Final = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
)


async def read_media(asked: Asked[NoQuery, None]) -> Answer:
    """Return a content."""
    session_id = await session_of(asked)
    found = _HASH.fullmatch(asked.path["hash"])
    hash_ = found[1] if found else ""
    # Checked whole before any of it is sent, so few are read at a time.
    async with asked.room.reading:
        content = await asked.house.media.read(asked.owner, session_id, f"media://sha256-{hash_}")
    # By its bytes and not by what its sender called it: a name makes nothing harmless.
    kind = next((kind for begins, kind in _SAFE if begins.match(content)), None)
    return Answer(
        content=content,
        media_type=kind or "application/octet-stream",
        headers={
            "content-disposition": "inline" if kind else f'attachment; filename="{hash_}"',
            "x-content-type-options": "nosniff",
        },
        has_etag=True,
    )


ROUTES: Final[tuple[Route, ...]] = of_session(
    Route(
        method="GET",
        path="/media/{hash}",
        name="media.read",
        summary="Return a content that a message names; pictures are shown, all else is saved.",
        act=read_media,
        needs=Scope.READ,
        gives={200: bytes, 304: None},
        tells={
            200: ("content-disposition", "etag"),
            304: ("content-disposition", "etag"),
        },
        media_type="application/octet-stream",
        kinds=tuple(kind for _, kind in _SAFE),
        refuses=(Code.MEDIA_NOT_FOUND, Code.SESSION_NOT_FOUND),
    )
)
