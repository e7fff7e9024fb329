"""Media in requests: found in rows by handle, loaded when a request is about to be sent.

Media that a model does not accept, or that exceed a limit, are described in text, so that the
conversation can continue. When not all fit, the newest are sent.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from msgspec.structs import replace

from holdfast.domain.errors import Internal
from holdfast.domain.messages import Media, Part, Text, media_hash
from holdfast.domain.models import MediaLimits
from holdfast.ports.llm import LlmMedia, LlmMessage
from holdfast.ports.tools import OutputStore

REFUSED: Final = "the provider refused a request with it"
_MIB: Final = 1 << 20
_IN_A_RESULT_MOST: Final = 16
_DEEPEST: Final = 64
_HANDLES: Final = "media://"
_MIME_KEYS: Final = ("mimeType", "mime_type", "media_type")
# Common aliases of the registered types.
_ALIASES: Final = {"image/jpg": "image/jpeg", "audio/mp3": "audio/mpeg", "audio/x-wav": "audio/wav"}


def media_of(parts: Sequence[Part]) -> list[LlmMedia]:
    """Return the media of a row, each with its offset in the row's text."""
    found: list[LlmMedia] = []
    at = 0
    for part in parts:
        if isinstance(part, Text):
            at += len(part.text)
        elif isinstance(part, Media):
            found.append(
                LlmMedia(ref=part.ref, mime_type=_type(part.mime_type), name=part.name, at=at)
            )
    return found


def media_in(result: Any, text: str) -> tuple[LlmMedia, ...]:
    """Return the distinct media of a tool result, placed after its text."""
    if _HANDLES not in text:
        return ()
    found: dict[str, LlmMedia] = {}
    for ref, mime_type in _handles(result):
        if len(found) < _IN_A_RESULT_MOST:
            found.setdefault(ref, LlmMedia(ref=ref, mime_type=_type(mime_type), at=len(text)))
    return tuple(found.values())


def _handles(value: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield handles that have a type; a bare handle may refer to any content."""
    if depth > _DEEPEST:
        return
    if isinstance(value, Mapping):
        ref = value.get("ref")
        mime_type = next((value[key] for key in _MIME_KEYS if key in value), None)
        if isinstance(ref, str) and isinstance(mime_type, str) and media_hash(ref) is not None:
            yield ref, mime_type
    inner = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, Mapping | list | tuple):
        for each in inner:
            yield from _handles(each, depth + 1)


def _type(mime_type: str) -> str:
    bare = mime_type.partition(";")[0].strip().lower()
    return _ALIASES.get(bare, bare)


def holds_media(messages: Iterable[LlmMessage]) -> bool:
    """Return whether media are attached to any message."""
    # Runs over the whole conversation for every request, so it uses `map` without Python calls.
    return any(map(_media, messages))


_media: Final = attrgetter("media")


def describe_media(
    messages: Iterable[LlmMessage], *, why: str | None = None
) -> tuple[LlmMessage, ...]:
    """Return the messages with their media replaced by descriptions."""
    return tuple(
        _joined(message, [_unshown(each, why) for each in message.media])
        if message.media
        else message
        for message in messages
    )


async def attach_media(
    messages: tuple[LlmMessage, ...], shelf: OutputStore | None, intake: MediaLimits | None
) -> tuple[LlmMessage, ...]:
    """Return the messages with the media that the model accepts; describes the others."""
    if shelf is None or intake is None:
        return describe_media(messages)
    fetching = _Fetching(shelf, intake)
    newest_first = [await fetching.fetched(message) for message in reversed(messages)]
    return tuple(reversed(newest_first))


class _Fetching:
    """Loads the media of one request within the limits of its model."""

    def __init__(self, shelf: OutputStore, intake: MediaLimits) -> None:
        self._shelf = shelf
        self._intake = intake
        self._count = 0
        self._size = 0

    async def fetched(self, message: LlmMessage) -> LlmMessage:
        if not message.media:
            return message
        return _joined(message, [await self._one(each) for each in message.media])

    async def _one(self, media: LlmMedia) -> LlmMedia | str:
        """Return the media with its content, or the text that describes it."""
        largest = self._intake.types.get(media.mime_type)
        if largest is None:
            return _unshown(media)
        # Checked before reading, so that media over the limit are not loaded.
        if self._count >= self._intake.most:
            return _unshown(media, f"a request holds {self._intake.most} at most, the newest")
        try:
            found = await self._shelf.read(media.ref)
        except Internal:
            return _unshown(media, "it is damaged in the store")
        if found is None:
            return _unshown(media, "the session does not hold it")
        why = self._objection(found.content, media.mime_type, largest)
        if why is not None:
            return _unshown(media, why)
        self._count += 1
        self._size += len(found.content)
        return replace(media, content=found.content)

    def _objection(self, content: bytes, mime_type: str, largest: int) -> str | None:
        if len(content) > largest:
            return f"the model takes {_size(largest)} of this type at most"
        if self._size + len(content) > self._intake.total:
            return f"a request holds {_size(self._intake.total)} at most, the newest"
        # The provider would refuse this request and every later one.
        if not matches_media_type(content, mime_type):
            return f"it is no {mime_type}"
        return None


def _joined(message: LlmMessage, shown: Sequence[LlmMedia | str]) -> LlmMessage:
    """Insert descriptions on separate lines at the media's offsets, before loaded content."""
    text, end, follows_words = "", 0, False
    kept: list[LlmMedia] = []
    for media, each in zip(message.media, shown, strict=True):
        said, end = message.text[end : media.at], media.at
        text = _on_its_line(text, said) if follows_words else text + said
        # A tool result already names its media and must stay as the tool returned it.
        words = _words(each) if message.role != "tool" else ""
        text = _on_its_line(text, words)
        follows_words = bool(words)
        if isinstance(each, LlmMedia):
            kept.append(replace(each, at=len(text)))
    said = message.text[end:]
    text = _on_its_line(text, said) if follows_words else text + said
    return replace(message, text=text, media=tuple(kept))


def _on_its_line(text: str, more: str) -> str:
    is_apart = text.endswith("\n") or more.startswith("\n")
    return f"{text}\n{more}" if text and more and not is_apart else text + more


def _words(shown: LlmMedia | str) -> str:
    if isinstance(shown, str):
        return shown
    return f"[attached: {shown.name}]" if shown.name else ""


def _unshown(media: LlmMedia, why: str | None = None) -> str:
    name = f"{media.name}, " if media.name else ""
    reason = f": {why}" if why else ""
    return f"[attached: {name}{media.mime_type}; its content is not shown{reason}]"


def _size(count: int) -> str:
    return f"{count / _MIB:.3g} MiB" if count >= _MIB else f"{count} bytes"


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
    # An MPEG frame without an ID3 tag begins with eleven set bits.
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


def matches_media_type(content: bytes, mime_type: str) -> bool:
    """Return whether the content matches the type; an unknown type matches any content."""
    look = _LOOKS.get(mime_type)
    return bool(content) and (look is None or look(content))
