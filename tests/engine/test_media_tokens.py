"""What providers count at most for media, held against their documented rules."""

import struct

import pytest

from holdfast.domain.models import Model
from holdfast.engine.attachments import media_tokens, picture_size
from holdfast.ports.llm import LlmMedia
from tests.builders import a_model
from tests.marks import each_case


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + b"\x08\x02"


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0"


def jpeg(width: int, height: int) -> bytes:
    # A thumbnail in an application segment has another size.
    inner = b"\xff\xd8\xff\xc0" + struct.pack(">HBHH", 17, 8, 1, 1)
    exif = b"\xff\xe1" + struct.pack(">H", len(inner) + 2) + inner
    frame = b"\xff\xc2" + struct.pack(">HBHH", 17, 8, height, width) + b"\x03"
    return b"\xff\xd8" + exif + b"\xff" + frame


def webp(kind: bytes, head: bytes) -> bytes:
    return b"RIFF\0\0\0\0WEBP" + kind + struct.pack("<I", len(head)) + head


def lossy(width: int, height: int) -> bytes:
    return webp(b"VP8 ", b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", width, height))


def lossless(width: int, height: int) -> bytes:
    return webp(b"VP8L", b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14))


def extended(width: int, height: int) -> bytes:
    sides = [(side - 1).to_bytes(3, "little") for side in (width, height)]
    return webp(b"VP8X", b"\0\0\0\0" + b"".join(sides))


@pytest.mark.parametrize("make", [png, gif, jpeg, lossy, lossless, extended])
@pytest.mark.parametrize("size", [(1, 1), (640, 480), (8_000, 3)])
def test_the_size_of_a_picture_is_read_from_its_header(make, size) -> None:  # type: ignore[no-untyped-def]
    assert picture_size(make(*size)) == size


@each_case("make", [png, gif, jpeg, lossy, lossless, extended])
def test_half_a_header_has_no_size(make) -> None:  # type: ignore[no-untyped-def]
    whole = make(640, 480)

    assert {picture_size(whole[:end]) for end in range(len(whole) // 2)} == {None}


def counted(model: Model, mime_type: str, content: bytes) -> int:
    return media_tokens(model, LlmMedia(ref="media://x", mime_type=mime_type, content=content))


CLAUDE = a_model("anthropic:claude-sonnet-4-5", context_window=200_000)
GPT = a_model("openai:gpt-4.1")
GEMINI = a_model("google:gemini-2.5-flash", context_window=1_048_576)
OTHER = a_model("openrouter:some/vision")


@each_case(
    ("model", "size", "tokens"),
    [
        # Documented by Anthropic: 200 x 200 and 1,092 x 1,092 pixels.
        (CLAUDE, (200, 200), 54),
        (CLAUDE, (1_092, 1_092), 1_590),
        (CLAUDE, (8_000, 8_000), 4_784),
        # Documented by OpenAI: 8 tiles at most; gpt-4o-mini counts 33 times as many.
        (GPT, (2_048, 4_096), 1_105),
        (a_model("openai:gpt-4o-mini"), (4_096, 2_048), 2_833 + 6 * 5_667),
        (a_model("openrouter:openai/gpt-4o-mini"), (512, 512), 8_500),
        # A model that counts 1,536 patches of 32 x 32 pixels at 2.46 tokens.
        (a_model("openai:gpt-4.1-nano"), (1_800, 2_400), 3_779),
        # Documented by Google: 960 x 540 pixels are six tiles.
        (GEMINI, (960, 540), 6 * 258),
        (GEMINI, (7_680, 7_680), 100 * 258),
        (OTHER, (7_680, 7_680), 100 * 258),
    ],
)
def test_a_picture_is_not_counted_below_its_providers_rule(
    model: Model, size: tuple[int, int], tokens: int
) -> None:
    bound = counted(model, "image/png", png(*size))

    assert tokens <= bound < 60 * max(tokens, 5_000)


def test_more_pixels_are_more_tokens() -> None:
    small, large = (counted(CLAUDE, "image/png", png(side, side)) for side in (200, 1_000))

    assert small < large


@each_case("model", [CLAUDE, GPT, GEMINI, OTHER])
def test_a_picture_without_a_size_is_counted_as_a_large_one(model: Model) -> None:
    large = counted(model, "image/png", png(8_000, 8_000))

    assert counted(model, "image/heic", b"????ftyp") >= large


@each_case(
    ("mime_type", "content", "tokens"),
    [
        # Text in a document is compressed, so its bytes are no bound.
        ("application/pdf", b"%PDF-", 200_000),
        ("video/mp4", b"????ftyp", 200_000),
        ("audio/flac", b"fLaC", 200_000),
        # A second of 8 kHz sound is 32 tokens, and 8,000 bytes.
        ("audio/wav", b"\0" * 8_000, 32),
        ("text/plain", b"words", 5),
    ],
)
def test_other_media_are_bounded_by_their_bytes_or_by_the_window(
    mime_type: str, content: bytes, tokens: int
) -> None:
    assert counted(CLAUDE, mime_type, content) >= tokens


def test_a_document_for_a_model_with_an_unknown_window_is_the_largest() -> None:
    assert counted(GPT, "application/pdf", b"%PDF-") == 1_000_000
