"""Whether a content is what it is said to be, as far as its first bytes tell."""

from collections.abc import Callable, Mapping
from typing import Final

_LOOK: Final = 1_024


def _begins(*starts: bytes) -> Callable[[bytes], bool]:
    return lambda content: content.startswith(starts)


def _riff(kind: bytes) -> Callable[[bytes], bool]:
    return lambda content: content.startswith(b"RIFF") and content[8:12] == kind


def _boxed(content: bytes) -> bool:
    return content[4:8] == b"ftyp"


def _is_text(content: bytes) -> bool:
    try:
        words = content.decode()
    except UnicodeDecodeError:
        return False
    return bool(words.strip()) and "\x00" not in words


_LOOKS: Final[Mapping[str, Callable[[bytes], bool]]] = {
    "application/pdf": lambda content: b"%PDF-" in content[:_LOOK],
    "audio/flac": _begins(b"fLaC"),
    # Eleven bits that are set begin a frame, where no tag stands before it.
    "audio/mpeg": _begins(b"ID3", *(bytes((0xFF, second)) for second in range(0xE0, 0x100))),
    "audio/ogg": _begins(b"OggS"),
    "audio/wav": _riff(b"WAVE"),
    "image/gif": _begins(b"GIF87a", b"GIF89a"),
    "image/heic": _boxed,
    "image/heif": _boxed,
    "image/jpeg": _begins(b"\xff\xd8\xff"),
    "image/png": _begins(b"\x89PNG\r\n\x1a\n"),
    "image/webp": _riff(b"WEBP"),
    "text/plain": _is_text,
    "video/mp4": _boxed,
}


def is_what_it_says(content: bytes, mime_type: str) -> bool:
    """Tell whether a content can be of that type; of types that nobody knows, anything can."""
    look = _LOOKS.get(mime_type)
    return bool(content) and (look is None or look(content))
