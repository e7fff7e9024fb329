"""Media over HTTP: pictures are shown, everything else is only ever saved."""

from base64 import b64encode

import pytest

from holdfast.domain.ids import SessionId
from holdfast.domain.messages import media_handle
from tests.http.v1.client import A_STRANGER, Visitor, refusal
from tests.marks import each_case

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


@each_case("mime_type", list(PICTURES))
async def test_a_picture_is_shown(visitor: Visitor, mime_type: str) -> None:
    path, _ = await _kept(visitor, PICTURES[mime_type], mime_type)

    answer = await visitor.get(path)

    assert (answer.status, answer.body) == (200, PICTURES[mime_type])
    assert answer.headers["content-type"] == mime_type
    assert answer.headers["content-disposition"] == "inline"
    assert answer.headers["x-content-type-options"] == "nosniff"
    same = await visitor.get(path, if_none_match=answer.headers["etag"])
    assert (same.status, same.body) == (304, b"")


@each_case(
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


async def test_what_is_uploaded_can_be_sent(visitor: Visitor) -> None:
    session, picture = await visitor.session(), PICTURES["image/png"]
    path = f"/v1/sessions/{session['id']}"

    uploaded = await visitor.post(f"{path}/media", picture, content_type="image/png; charset=x")
    ref = uploaded.document["ref"]
    part = {"type": "media", "mime_type": "image/png", "ref": ref, "name": "dot.png"}
    sent = await visitor.post(f"{path}/messages", {"role": "user", "parts": [part]})

    assert uploaded.status == 201
    assert uploaded.document == {"ref": ref, "mime_type": "image/png", "byte_length": len(picture)}
    assert (await visitor.get(uploaded.headers["location"])).body == picture
    assert (sent.status, sent.document["parts"]) == (201, [part | {"byte_length": None}])


async def test_content_can_be_part_of_the_message(visitor: Visitor) -> None:
    session, picture = await visitor.session(), PICTURES["image/png"]
    path = f"/v1/sessions/{session['id']}"
    inline = {"type": "media", "mime_type": "image/png", "data": b64encode(picture).decode()}
    body = {"role": "user", "id": A_STRANGER, "parts": [{"type": "text", "text": "See"}, inline]}

    sent = await visitor.post(f"{path}/messages", body)
    again = await visitor.post(f"{path}/messages", body)

    assert (sent.status, again.status) == (201, 200)
    stored = sent.document["parts"][1]
    assert (stored["byte_length"], "data" in stored) == (len(picture), False)
    hash_ = stored["ref"].removeprefix("media://")
    assert (await visitor.get(f"{path}/media/{hash_}")).body == picture


@each_case(
    ("part", "code"),
    [
        ({"mime_type": "image/png"}, "invalid_body"),
        (
            {"mime_type": "image/png", "data": "AAAA", "ref": f"media://sha256-{'0' * 64}"},
            "invalid_body",
        ),
        ({"mime_type": "image/png", "data": "%"}, "invalid_body"),
        ({"mime_type": "image/png", "data": ""}, "invalid_input"),
        ({"mime_type": "text/html", "data": "AAAA"}, "invalid_input"),
    ],
)
async def test_content_that_is_not_right_is_refused_and_nothing_is_kept(
    visitor: Visitor, part: dict[str, str], code: str
) -> None:
    session = await visitor.session()
    good = {"type": "media", "mime_type": "image/gif", "data": b64encode(b"GIF89a").decode()}
    body = {"role": "user", "parts": [good, {"type": "media", **part}]}

    refused = await visitor.post(f"/v1/sessions/{session['id']}/messages", body)

    assert refusal(refused) == (400, code)
    assert await visitor.messages(session) == []
    hash_ = media_handle(b"GIF89a").removeprefix("media://")
    kept = await visitor.get(f"/v1/sessions/{session['id']}/media/{hash_}")
    assert refusal(kept) == (404, "media_not_found")


@each_case(
    ("content", "mime_type"),
    [(b"", "image/png"), (b"x", "text/html"), (b"x", ""), (b"x" * ((8 << 20) + 1), "image/png")],
)
async def test_an_upload_that_is_not_right_is_refused(
    visitor: Visitor, content: bytes, mime_type: str
) -> None:
    session = await visitor.session()

    answer = await visitor.post(
        f"/v1/sessions/{session['id']}/media", content, content_type=mime_type
    )

    assert answer.status == 400


async def test_a_session_shows_only_what_it_holds(visitor: Visitor) -> None:
    path, hash_ = await _kept(visitor, b"mine", "text/plain")
    other_session = await visitor.session()
    somebody = await visitor.as_("somebody")

    for elsewhere in (hash_, "0" * 64, "x", f"{hash_}00"):
        answer = await visitor.get(f"/v1/sessions/{other_session['id']}/media/{elsewhere}")
        assert refusal(answer) == (404, "media_not_found")
    assert refusal(await somebody.get(path)) == (404, "session_not_found")
