"""Media over HTTP: pictures are shown, everything else is only ever saved."""

import pytest

from holdfast.domain.ids import SessionId
from tests.http.v1.client import Visitor, refusal

pytestmark = pytest.mark.anyio

PICTURES = {
    "image/png": b"\x89PNG\r\n\x1a\n....",
    "image/jpeg": b"\xff\xd8\xff\xe0....",
    "image/gif": b"GIF89a....",
    "image/webp": b"RIFF\n\x00\x00\x00WEBPVP8 ",
}


async def _kept(visitor: Visitor, content: bytes, mime_type: str) -> tuple[str, str]:
    session = await visitor.session()
    handle = await visitor.house.media.keep(
        visitor.house.owner, SessionId(session["id"]), content, mime_type=mime_type
    )
    hash_ = handle.removeprefix("media://sha256-")
    return f"/v1/sessions/{session['id']}/media/{hash_}", hash_


@pytest.mark.parametrize("mime_type", list(PICTURES))
async def test_a_picture_is_shown(visitor: Visitor, mime_type: str) -> None:
    path, _ = await _kept(visitor, PICTURES[mime_type], mime_type)

    answer = await visitor.get(path)

    assert (answer.status, answer.body) == (200, PICTURES[mime_type])
    assert answer.headers["content-type"] == mime_type
    assert answer.headers["content-disposition"] == "inline"
    assert answer.headers["x-content-type-options"] == "nosniff"
    same = await visitor.get(path, if_none_match=answer.headers["etag"])
    assert (same.status, same.body) == (304, b"")


@pytest.mark.parametrize(
    ("content", "mime_type"),
    [
        (b"<svg onload=alert(1)>", "image/svg+xml"),
        (b"<html><script>", "text/plain"),
        (b"<html><script>", "image/png"),
        (b"%PDF-1.7", "application/pdf"),
    ],
)
async def test_everything_else_is_saved(visitor: Visitor, content: bytes, mime_type: str) -> None:
    path, hash_ = await _kept(visitor, content, mime_type)

    answer = await visitor.get(path)

    assert (answer.status, answer.body) == (200, content)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == f'attachment; filename="{hash_}"'
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_a_session_shows_only_what_it_holds(visitor: Visitor) -> None:
    path, hash_ = await _kept(visitor, b"mine", "text/plain")
    other_session = await visitor.session()
    somebody = await visitor.as_("somebody")

    for elsewhere in (hash_, "0" * 64, "x", f"{hash_}00"):
        answer = await visitor.get(f"/v1/sessions/{other_session['id']}/media/{elsewhere}")
        assert refusal(answer) == (404, "media_not_found")
    assert refusal(await somebody.get(path)) == (404, "session_not_found")
