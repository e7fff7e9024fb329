"""Builds the prompt of a turn: messages as content blocks that the agent supports.

Also builds the transcript for an agent that has lost the session.

"""

import base64
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Struct

from holdfast.acp.client.lenient_json import read_object
from holdfast.domain.drafts import MessageDraft, notice_draft
from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    CLOSING_NOTICES,
    Media,
    Message,
    Notice,
    NoticeCode,
    Part,
    ResultStatus,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from holdfast.domain.turns import TurnRows, group_by_turn
from holdfast.ports.tools import OutputStore

TRANSCRIPT_LONGEST: Final = 100_000
RESULT_LONGEST: Final = 2_000
ARGUMENTS_LONGEST: Final = 500
HEADING: Final = (
    "This is the record of an earlier conversation between you and the user. Use it as context to "
    "continue; do not repeat its actions."
)
_END: Final = "This is the end of the record."
_BETWEEN: Final = "\n\n"
_ROOM: Final = 200


def transcript(history: Iterable[Message], *, turn: int) -> str | None:
    """Return the transcript of the turns before a turn; `None` if there are none."""
    earlier = [group for group in group_by_turn(history) if group.number < turn]
    texts = [_BETWEEN.join(_turn_lines(group)) for group in earlier]
    texts = [each for each in texts if each]
    if not texts:
        return None
    kept = _newest_turns(texts, TRANSCRIPT_LONGEST - len(HEADING) - len(_END) - _ROOM)
    return _BETWEEN.join((HEADING, *kept, _END))


def _newest_turns(texts: Sequence[str], room: int) -> list[str]:
    """Return the latest turns that fit, and a marker for those left out."""
    kept: list[str] = []
    for each in reversed(texts):
        if len(each) + len(_BETWEEN) > room:
            break
        room -= len(each) + len(_BETWEEN)
        kept.insert(0, each)
    missing = len(texts) - len(kept)
    if not kept:
        # The end of the latest turn, because the conversation continues there.
        kept = [f"[… the beginning of this turn is left out …]\n{texts[-1][-room:]}"]
        missing -= 1
    return [f"[… {missing} earlier turns are left out …]", *kept] if missing else kept


def _turn_lines(turn: TurnRows) -> Iterator[str]:
    results = {
        part.call_id: part
        for row in turn.messages
        for part in row.parts
        if isinstance(part, ToolResult)
    }
    for row in turn.messages:
        if row.role is Role.USER:
            yield f"User: {_message_text(row.parts)}"
        elif row.role is Role.ASSISTANT and (said := _message_text(row.parts)):
            yield f"Assistant: {said}"
        else:
            yield from _others(row.parts, results)


def _others(parts: Sequence[Part], results: Mapping[CallId, ToolResult]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, ToolCall):
            arguments = _truncate(msgspec.json.encode(part.arguments).decode(), ARGUMENTS_LONGEST)
            yield f"Tool {part.name}: {arguments}\n{_result(results.get(part.id))}"
        elif isinstance(part, Notice) and part.code in CLOSING_NOTICES:
            yield f"({part.text})"


def _message_text(parts: Sequence[Part]) -> str:
    return "".join(filter(None, map(_part_text, parts)))


def _part_text(part: Part) -> str | None:
    if isinstance(part, Text):
        return part.text
    # By name only, because the content is not part of the transcript.
    return f"[{part.name or part.mime_type}]" if isinstance(part, Media) else None


def _result(result: ToolResult | None) -> str:
    if result is None:
        return "(no result)"
    shown = result.result
    if result.status is not ResultStatus.OK:
        said = f": {result.error.message}" if result.error else ""
        return _truncate(f"({result.status}{said})", RESULT_LONGEST)
    text = shown if isinstance(shown, str) else msgspec.json.encode(shown).decode()
    return _truncate(text, RESULT_LONGEST)


def _truncate(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    return f"{text[:longest]}[… {len(text) - longest} characters left out …]"


Block = dict[str, Any]
# Writes content to a file that the agent can read, and returns its absolute path.
StoreFile = Callable[[Media, bytes], Awaitable[str]]


class PromptCapabilities(Struct, frozen=True, kw_only=True):
    """The content types an agent accepts in a prompt besides text and links."""

    image: bool = False
    audio: bool = False
    embedded: bool = False


class PromptContent(Struct, frozen=True, kw_only=True):
    """The blocks of a prompt, and the notices about them."""

    blocks: tuple[Block, ...]
    notices: tuple[MessageDraft, ...] = ()


def read_prompt_capabilities(initialized: object) -> PromptCapabilities:
    """Return the prompt capabilities from the reply to `initialize`."""
    offered = read_object(
        read_object(read_object(initialized).get("agentCapabilities")).get("promptCapabilities")
    )
    return PromptCapabilities(
        image=is_offered(offered.get("image")),
        audio=is_offered(offered.get("audio")),
        embedded=is_offered(offered.get("embeddedContext")),
    )


def is_offered(capability: object) -> bool:
    """Return whether a capability is set: `true` or an object; absent, null and false are not."""
    return capability is True or isinstance(capability, dict)


def turn_messages(history: Iterable[Message], turn: int) -> list[Message]:
    """Return the user messages of a turn, in order."""
    return [row for row in history if row.turn == turn and row.role is Role.USER]


def text_block(text: str) -> Block:
    """Return a text block."""
    return {"type": "text", "text": text}


async def build_prompt(
    rows: Sequence[Message],
    capabilities: PromptCapabilities,
    *,
    store: OutputStore | None,
    put: StoreFile,
) -> PromptContent:
    """Return the messages as one prompt; adjacent text of a message becomes one block."""
    attaching = _MediaAttacher(capabilities, store, put)
    blocks: list[Block] = []
    for row in rows:
        for part in _join_text(row.parts):
            if isinstance(part, Media):
                blocks.append(await attaching.block(part))
            else:
                blocks.append(text_block(part))
    return PromptContent(blocks=tuple(blocks), notices=attaching.notices())


def _join_text(parts: Sequence[Part]) -> list[str | Media]:
    """Return text and media in order, with adjacent text joined."""
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


class _MediaAttacher:
    """Converts the media of one prompt into blocks."""

    def __init__(
        self, capabilities: PromptCapabilities, store: OutputStore | None, put: StoreFile
    ) -> None:
        self._capabilities = capabilities
        self._store = store
        self._put = put
        self._linked: list[str] = []

    async def block(self, media: Media) -> Block:
        """Return the block of a medium: embedded if supported, otherwise a link to a file."""
        found = await self._store.read(media.ref) if self._store is not None else None
        name = media.name or media.mime_type
        if found is None:
            return text_block(f"[attached: {name}; its content no longer exists]")
        content = found.content
        kind = media.mime_type.partition("/")[0]
        if (kind == "image" and self._capabilities.image) or (
            kind == "audio" and self._capabilities.audio
        ):
            return {"type": kind, "mimeType": media.mime_type, "data": _encode_base64(content)}
        if self._capabilities.embedded:
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
        """Return one notice that names all media sent as links."""
        if not self._linked:
            return ()
        names = ", ".join(self._linked)
        text = f"The agent does not accept these attachments and was given links to files: {names}."
        return (notice_draft(NoticeCode.INFORMATION, text),)


def _resource(media: Media, content: bytes) -> Block:
    name = media.name or media.ref.removeprefix(_HANDLE_START)
    resource = {"uri": f"attachment:///{quote(name)}", "mimeType": media.mime_type}
    if media.mime_type.startswith("text/"):
        return {**resource, "text": content.decode(errors="replace")}
    return {**resource, "blob": _encode_base64(content)}


def _encode_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


_HANDLE_START: Final = "media://sha256-"
