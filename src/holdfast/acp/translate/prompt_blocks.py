"""The messages of a turn as the blocks of one prompt: words always, the rest as it can be taken."""

import base64
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import PurePath
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct

from holdfast.acp.translate.readings import fields
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.messages import Media, Message, Notice, NoticeCode, Part, Role, Text
from holdfast.ports import OutputStore

Block = dict[str, Any]
# Writes a content into a file that the program can read, and returns its absolute path.
Put = Callable[[Media, bytes], Awaitable[str]]


class Taken(Struct, frozen=True, kw_only=True):
    """What a program takes in a prompt beside words and links."""

    image: bool = False
    audio: bool = False
    embedded: bool = False


class Prompt(Struct, frozen=True, kw_only=True):
    """The blocks of a prompt, and what the record should say about them."""

    blocks: tuple[Block, ...]
    notices: tuple[MessageDraft, ...] = ()


def taken_of(initialized: object) -> Taken:
    """Return what a program says it takes, in its reply to `initialize`."""
    offered = fields(fields(fields(initialized).get("agentCapabilities")).get("promptCapabilities"))
    return Taken(
        image=is_offered(offered.get("image")),
        audio=is_offered(offered.get("audio")),
        embedded=is_offered(offered.get("embeddedContext")),
    )


def is_offered(capability: object) -> bool:
    """Tell whether a capability is there: true or an object; absent, null and false are no."""
    return capability is True or isinstance(capability, dict)


def messages_of(history: Iterable[Message], turn: int) -> list[Message]:
    """Return what was said to the agent in a turn, in its order."""
    return [row for row in history if row.turn == turn and row.role is Role.USER]


def text_block(text: str) -> Block:
    """Return words as a block."""
    return {"type": "text", "text": text}


async def prompt_of(
    rows: Sequence[Message], taken: Taken, *, shelf: OutputStore | None, put: Put
) -> Prompt:
    """Return the messages as one prompt: one block of words for each, with its media in place."""
    attaching = _Attaching(taken, shelf, put)
    blocks: list[Block] = []
    for row in rows:
        for part in _joined(row.parts):
            if isinstance(part, Media):
                blocks.append(await attaching.block(part))
            else:
                blocks.append(text_block(part))
    return Prompt(blocks=tuple(blocks), notices=attaching.notices())


def _joined(parts: Sequence[Part]) -> list[str | Media]:
    """Return words and media in their order; words that follow one another are one."""
    found: list[str | Media] = []
    for part in parts:
        if isinstance(part, Media):
            found.append(part)
        elif isinstance(part, Text):
            before = found[-1] if found else None
            if isinstance(before, str):
                found[-1] = before + part.text
            else:
                found.append(part.text)
    return found


class _Attaching:
    """Media on their way into one prompt."""

    def __init__(self, taken: Taken, shelf: OutputStore | None, put: Put) -> None:
        self._taken = taken
        self._shelf = shelf
        self._put = put
        self._linked: list[str] = []

    async def block(self, media: Media) -> Block:
        """Return the block of a medium: whole if it is taken so, else a link to a file."""
        found = await self._shelf.read(media.ref) if self._shelf is not None else None
        name = media.name or media.mime_type
        if found is None:
            return text_block(f"[attached: {name}; its content is not there any more]")
        content = found.content
        kind = media.mime_type.partition("/")[0]
        if (kind == "image" and self._taken.image) or (kind == "audio" and self._taken.audio):
            return {"type": kind, "mimeType": media.mime_type, "data": _encoded(content)}
        if self._taken.embedded:
            return {"type": "resource", "resource": _resource(media, content)}
        self._linked.append(name)
        return {
            "type": "resource_link",
            "uri": PurePath(await self._put(media, content)).as_uri(),
            "name": name,
            "mimeType": media.mime_type,
            "size": len(content),
        }

    def notices(self) -> tuple[MessageDraft, ...]:
        """Return one notice about everything that became a link."""
        if not self._linked:
            return ()
        names = ", ".join(self._linked)
        told = f"The agent does not take these by themselves and was given links to files: {names}."
        return (MessageDraft(role=Role.SYSTEM, parts=(_notice(told),)),)


def _notice(told: str) -> Notice:
    return Notice(code=NoticeCode.INFORMATION, text=told)


def _resource(media: Media, content: bytes) -> Block:
    name = media.name or media.ref.removeprefix(_HANDLE_START)
    resource = {"uri": f"attachment:///{quote(name)}", "mimeType": media.mime_type}
    if media.mime_type.startswith("text/"):
        return {**resource, "text": content.decode(errors="replace")}
    return {**resource, "blob": _encoded(content)}


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


_HANDLE_START: Final = "media://sha256-"
