"""The messages of a turn as one prompt."""

import base64
from typing import Any

import pytest

from holdfast.acp.client.prompt import (
    PromptCapabilities,
    PromptContent,
    build_prompt,
    read_prompt_capabilities,
    turn_messages,
)
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.messages import (
    Media,
    Message,
    Notice,
    NoticeCode,
    Part,
    Role,
    Text,
    media_handle,
)
from holdfast.ports.tools import Slice
from tests.builders import a_message
from tests.marks import each_case

pytestmark = pytest.mark.anyio

PIXEL, SOUND, WORDS = b"\x89PNG", b"ID3", "größer".encode()
IMAGE = Media(mime_type="image/png", ref=media_handle(PIXEL), name="a b.png")
AUDIO = Media(mime_type="audio/mpeg", ref=media_handle(SOUND))
NOTES = Media(mime_type="text/plain", ref=media_handle(WORDS), name="n.txt")
LOST = Media(mime_type="image/png", ref=media_handle(b"lost"))


class Contents:
    """A shelf with three contents."""

    async def keep(self, content: bytes, *, mime_type: str = "text/plain") -> str:
        raise AssertionError("a prompt keeps nothing")

    async def read(self, handle: str, *, start: int = 0, end: int | None = None) -> Slice | None:
        held = {media_handle(each): each for each in (PIXEL, SOUND, WORDS)}
        content = held.get(handle)
        return None if content is None else Slice(content=content, start=0, total=len(content))


async def put(media: Media, content: bytes) -> str:
    return f"/desk/{len(content)} {media.name}"


async def prompt(*parts: Part, taken: PromptCapabilities = PromptCapabilities()) -> PromptContent:  # noqa: B008
    row = a_message(parts=parts)
    return await build_prompt([row], taken, store=Contents(), put=put)


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


async def test_every_message_is_one_block_of_words_in_its_order() -> None:
    rows = [a_message("one"), a_message(parts=(Text(text="t"), Text(text="wo")))]

    assert await build_prompt(rows, PromptCapabilities(), store=None, put=put) == PromptContent(
        blocks=({"type": "text", "text": "one"}, {"type": "text", "text": "two"})
    )


async def test_media_that_are_taken_stand_where_they_stood() -> None:
    taken = PromptCapabilities(image=True, audio=True, embedded=True)

    said = await prompt(Text(text="a"), IMAGE, Text(text="b"), AUDIO, NOTES, taken=taken)

    assert said == PromptContent(
        blocks=(
            {"type": "text", "text": "a"},
            {"type": "image", "mimeType": "image/png", "data": encoded(PIXEL)},
            {"type": "text", "text": "b"},
            {"type": "audio", "mimeType": "audio/mpeg", "data": encoded(SOUND)},
            {
                "type": "resource",
                "resource": {
                    "uri": "attachment:///n.txt",
                    "mimeType": "text/plain",
                    "text": "größer",
                },
            },
        )
    )


async def test_what_is_taken_only_with_its_context_is_embedded() -> None:
    said = await prompt(IMAGE, AUDIO, taken=PromptCapabilities(embedded=True))

    assert [block["resource"] for block in said.blocks] == [
        {"uri": "attachment:///a%20b.png", "mimeType": "image/png", "blob": encoded(PIXEL)},
        {
            "uri": f"attachment:///{AUDIO.ref.removeprefix('media://sha256-')}",
            "mimeType": "audio/mpeg",
            "blob": encoded(SOUND),
        },
    ]


async def test_what_is_not_taken_becomes_a_link_to_a_file_and_one_notice() -> None:
    said = await prompt(IMAGE, AUDIO, LOST)

    told = (
        "The agent does not accept these attachments and was given links to files: a "
        "b.png, audio/mpeg."
    )
    assert said == PromptContent(
        blocks=(
            {
                "type": "resource_link",
                "uri": "file:///desk/4%20a%20b.png",
                "name": "a b.png",
                "mimeType": "image/png",
                "size": 4,
            },
            {
                "type": "resource_link",
                "uri": "file:///desk/3%20None",
                "name": "audio/mpeg",
                "mimeType": "audio/mpeg",
                "size": 3,
            },
            {
                "type": "text",
                "text": "[attached: image/png; its content no longer exists]",
            },
        ),
        notices=(
            MessageDraft(role=Role.SYSTEM, parts=(Notice(code=NoticeCode.INFORMATION, text=told),)),
        ),
    )


@each_case(
    ("offered", "taken"),
    [
        (None, PromptCapabilities()),
        ({"promptCapabilities": None}, PromptCapabilities()),
        ({"promptCapabilities": {"image": None, "audio": False}}, PromptCapabilities()),
        (
            {"promptCapabilities": {"image": True, "embeddedContext": {}}},
            PromptCapabilities(image=True, embedded=True),
        ),
        (
            {"promptCapabilities": {"audio": {"wav": True}, "image": "yes"}},
            PromptCapabilities(audio=True),
        ),
    ],
)
async def test_absent_and_null_mean_no_and_an_object_means_yes(
    offered: Any, taken: PromptCapabilities
) -> None:
    assert read_prompt_capabilities({"agentCapabilities": offered}) == taken


async def test_a_prompt_holds_what_was_said_in_its_turn_and_nothing_else() -> None:
    rows: list[Message] = [
        a_message("old", turn=1),
        a_message("new", turn=2),
        a_message("answer", turn=2, role=Role.ASSISTANT),
        a_message("later", turn=3),
    ]

    assert [row.text for row in turn_messages(rows, 2)] == ["new"]
