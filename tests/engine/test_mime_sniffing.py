"""A content is sent as what it is said to be only if its first bytes agree."""

from holdfast.engine.attachments import matches_media_type
from tests.marks import each_case


@each_case(
    ("mime_type", "content"),
    [
        ("application/pdf", b"\n%PDF-1.4"),
        ("audio/flac", b"fLaC..."),
        ("audio/mpeg", b"ID3..."),
        ("audio/mpeg", b"\xff\xfb\x90"),
        ("audio/ogg", b"OggS..."),
        ("audio/wav", b"RIFF\0\0\0\0WAVEfmt "),
        ("image/gif", b"GIF89a..."),
        ("image/gif", b"GIF87a..."),
        ("image/heic", b"\0\0\0\x18ftypheic"),
        ("image/heif", b"\0\0\0\x18ftypmif1"),
        ("image/jpeg", b"\xff\xd8\xff\xe0"),
        ("image/png", b"\x89PNG\r\n\x1a\n..."),
        ("image/webp", b"RIFF\0\0\0\0WEBPVP8 "),
        ("text/plain", "Größe\n".encode()),
        ("video/mp4", b"\0\0\0\x18ftypisom"),
        ("video/webm", b"anything"),
    ],
)
def test_a_content_and_its_type_agree(mime_type: str, content: bytes) -> None:
    assert matches_media_type(content, mime_type) is True
    # Those that are known by their beginning, and the type that nobody looks into.
    assert matches_media_type(b"\0nothing of the kind", mime_type) is (mime_type == "video/webm")


@each_case("content", [b"", b" \n", b"\xff\xfe", b"a\0b"])
def test_what_is_no_text_is_not_sent_as_one(content: bytes) -> None:
    assert matches_media_type(content, "text/plain") is False
