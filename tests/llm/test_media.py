"""Pictures and documents on the wire: the very bytes, in each provider's own words."""

import base64
from pathlib import Path
from typing import Any

import pytest

from holdfast import Config, SessionRequest, open_holdfast
from holdfast.domain.messages import Media, Text, media_handle
from holdfast.ports.llm import LlmMedia, LlmMessage, LlmRequest, LlmToolCall
from tests.houses import played
from tests.llm.builders import a_request, heard, said
from tests.llm.dialects import CHAT, MESSAGES, Dialect, Saying
from tests.llm.fake_providers import FakeProvider
from tests.llm.provider_requests import KEY, asking
from tests.marks import demands

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\xff\xfe some pixels"
PDF = b"%PDF-1.7\n%\xe2\xe3\xcf\xd3 a page"
WAV = b"RIFF\x24\0\0\0WAVEfmt "


def b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def url(content: bytes, mime_type: str) -> str:
    return f"data:{mime_type};base64,{b64(content)}"


def shown(content: bytes, mime_type: str, *, at: int = 0) -> LlmMedia:
    return LlmMedia(ref=media_handle(content), mime_type=mime_type, at=at, content=content)


LOOK = LlmMessage(
    role="user",
    text="Compare this with that, please.",
    media=(shown(PNG, "image/png", at=12), shown(PDF, "application/pdf", at=22)),
)
DRAWN = (
    said("Draw."),
    LlmMessage(role="assistant", calls=(LlmToolCall(id="call_a", name="draw", arguments={}),)),
    LlmMessage(
        role="tool",
        call_id="call_a",
        name="draw",
        text='{"ref":"x"}',
        media=(shown(PNG, "image/png", at=11),),
    ),
)


async def received(fake: FakeProvider, dialect: Dialect, request: LlmRequest) -> Any:
    """Ask, and return the body that arrived."""
    fake.replies.append(dialect.reply(Saying(text=("Fine.",))))
    async with asking(fake, dialect) as vendors:
        await heard(vendors, request)
    return fake.received[-1].body


async def test_chat_completions_get_urls_of_data(fake: FakeProvider) -> None:
    body = await received(fake, CHAT, a_request(LOOK, model=CHAT.model))

    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Compare this"},
                {"type": "image_url", "image_url": {"url": url(PNG, "image/png")}},
                {"type": "text", "text": " with that"},
                {
                    "type": "file",
                    "file": {
                        "filename": "filename.pdf",
                        "file_data": url(PDF, "application/pdf"),
                    },
                },
                {"type": "text", "text": ", please."},
            ],
        }
    ]


@pytest.mark.parametrize("dialect", [CHAT], ids=lambda each: each.provider)
async def test_a_picture_alone_is_a_whole_message(fake: FakeProvider, dialect: Dialect) -> None:
    alone = LlmMessage(role="user", text="\n\n", media=(shown(PNG, "image/png"),))

    body = await received(fake, dialect, a_request(alone, model=dialect.model))

    assert times(PNG, body) == 1
    assert not any(each and not each.strip() for each in strings(body))


async def test_a_sound_is_heard_by_models_that_hear(fake: FakeProvider) -> None:
    message = LlmMessage(role="user", text="Who?", media=(shown(WAV, "audio/wav", at=4),))

    body = await received(fake, CHAT, a_request(message, model="openai:gpt-4o-audio-preview"))

    assert body["messages"][0]["content"][1] == {
        "type": "input_audio",
        "input_audio": {"data": b64(WAV), "format": "wav"},
    }


async def test_what_a_tool_returned_goes_with_its_result(
    fake: FakeProvider, dialect: Dialect
) -> None:
    body = await received(fake, dialect, a_request(*DRAWN, model=dialect.model))

    everything = strings(body)
    assert times(PNG, body) == 1
    if dialect is MESSAGES:
        (result,) = body["messages"][-1]["content"]
        assert result["tool_use_id"] == "call_a"
        assert [block["type"] for block in result["content"]] == ["text", "image"]
    # The call is answered in its place, wherever the provider wants the picture.
    assert any("call_a" in each for each in everything)


@demands("S0-045d")
async def test_a_handle_in_the_record_is_bytes_on_the_wire(
    fake: FakeProvider, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", fake.url)
    monkeypatch.setenv("HOLDFAST_ANTHROPIC_API_KEY", KEY)
    fake.replies += [MESSAGES.reply(Saying(text=("A cat.",))) for _ in range(2)]
    async with open_holdfast(config=Config(home=home)) as house:
        session = await house.open(request=SessionRequest(model=MESSAGES.model, tools=()))
        handle = await house.media.keep(house.owner, session.id, PNG, mime_type="image/png")
        picture = Media(mime_type="image/png", ref=handle, name="cat.png")
        sent = await house.send(session.id, (Text(text="What is this?"), picture))
        await played(house, session.id)
        await house.send(session.id, "Sure?")
        rows = await played(house, session.id)

    assert sent.parts == (Text(text="What is this?"), picture)
    assert b64(PNG) not in str(rows)
    for request in fake.received:
        blocks = request.body["messages"][0]["content"]
        assert [block["type"] for block in blocks] == ["text", "image"]
        assert blocks[0]["text"] == "What is this?\n[attached: cat.png]"
        assert base64.b64decode(blocks[1]["source"]["data"]) == PNG
    assert [len(request.body["messages"]) for request in fake.received] == [1, 3]


async def test_a_model_that_is_not_known_to_see_is_told_in_words(
    fake: FakeProvider, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_BASE_URL", f"{fake.url}{CHAT.prefix}")
    fake.replies.append(CHAT.reply(Saying(text=("I cannot see it.",))))
    async with open_holdfast(config=Config(home=home)) as house:
        session = await house.open(request=SessionRequest(model="ollama:llama3.2", tools=()))
        handle = await house.media.keep(house.owner, session.id, PNG, mime_type="image/png")
        picture = Media(mime_type="image/png", ref=handle, name="cat.png")
        await house.send(session.id, (picture,))
        await played(house, session.id)

    told = "[attached: cat.png, image/png; its content is not shown]"
    assert fake.received[0].body["messages"][-1] == {"role": "user", "content": told}


def times(content: bytes, body: Any) -> int:
    """Return how often a content is in a body; Google writes base64 as in an address."""
    plain = b64(content)
    forms = {plain, url(content, "image/png"), plain.replace("/", "_").replace("+", "-")}
    return sum(each in forms for each in strings(body))


def strings(value: Any) -> list[str]:
    """Return every text in a body."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for each in inner for text in strings(each)]
