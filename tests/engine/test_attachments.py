"""What is attached leaves with the request if its model takes it, and is named in words if not."""

from typing import Any

import pytest

from holdfast.domain.drafts import MessageDraft, Outcome
from holdfast.domain.errors import Code, Internal
from holdfast.domain.events import StepFailed
from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    Media,
    Message,
    Notice,
    NoticeCode,
    ResultStatus,
    Role,
    Text,
    ToolCall,
    ToolResult,
    media_handle,
)
from holdfast.domain.models import MediaLimits, Model, model_of
from holdfast.domain.sessions import StopReason
from holdfast.engine.attachments import REFUSED, attach_media, describe_media
from holdfast.engine.runtime import MEDIA_REFUSED
from holdfast.ports.llm import Failed, FailureKind, LlmMedia, LlmMessage, LlmRequest
from holdfast.ports.tools import Slice
from tests.engine.builders import a_row, assistant, user
from tests.engine.scripts import looks, says
from tests.engine.stand_ins import ScriptedLlm, Stage, StandInShelf, StandInTool, StandInToolbox
from tests.marks import demands, each_case

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n a picture"
OTHER = b"\x89PNG\r\n\x1a\n another one"
PDF = b"%PDF-1.7 a document"


def an_intake(**changes: Any) -> MediaLimits:
    usual = {"types": {"image/png": 100, "application/pdf": 100}, "most": 3, "total": 100}
    return MediaLimits(**usual | changes)


def a_seeing(**changes: Any) -> Model:
    """Return a model that sees."""
    base = model_of("maker:seeing")
    return Model(id=base.id, provider=base.provider, name=base.name, intake=an_intake(**changes))


def media(of: bytes, *, at: int = 0, name: str | None = None, **changes: Any) -> LlmMedia:
    usual = {"ref": media_handle(of), "mime_type": "image/png", "name": name, "at": at}
    return LlmMedia(**usual | changes)


def shown(content: bytes, **changes: Any) -> LlmMedia:
    return media(content, content=content, **changes)


async def filled(
    *messages: LlmMessage, kept: tuple[bytes, ...] = (PNG, OTHER, PDF), **changes: Any
) -> tuple[LlmMessage, ...]:
    shelf = StandInShelf()
    for content in kept:
        await shelf.keep(content)
    return await attach_media(messages, shelf, an_intake(**changes))


def said(text: str, *what: LlmMedia) -> LlmMessage:
    return LlmMessage(role="user", text=text, media=what)


@demands("S0-045d")
async def test_what_the_model_takes_stands_where_it_was_put() -> None:
    message = said("before after", media(PNG, at=6), media(OTHER, at=12))

    assert await filled(message) == (said("before after", shown(PNG, at=6), shown(OTHER, at=12)),)


async def test_a_name_is_told_before_what_it_names() -> None:
    message = said("before after", media(PNG, at=6, name="cat.png"))

    text = "before\n[attached: cat.png]\n after"
    assert await filled(message) == (
        said(text, shown(PNG, at=text.index("]") + 1, name="cat.png")),
    )


@each_case(
    ("given", "changes", "why"),
    [
        (media(PNG, mime_type="image/tiff"), {}, ""),
        (media(b"nobody has this"), {}, ": the session does not have it"),
        (media(PNG, ref="media://nothing"), {}, ": the session does not have it"),
        (media(PDF), {}, ": it is not image/png"),
        (
            media(PNG),
            {"types": {"image/png": 8}},
            ": the model accepts at most 8 bytes of this type",
        ),
        (media(PNG), {"total": 1 << 2}, ": a request has at most 4 bytes, the newest"),
        (media(PNG), {"most": 0}, ": a request has at most 0, the newest"),
    ],
)
async def test_what_is_not_sent_is_named_with_the_reason(
    given: LlmMedia, changes: dict[str, Any], why: str
) -> None:
    told = f"[attached: {given.mime_type}; its content is not shown{why}]"

    assert await filled(said("", given), **changes) == (said(told),)


async def test_a_damaged_content_does_not_end_the_conversation() -> None:
    class Damaged(StandInShelf):
        async def read(
            self, handle: str, *, start: int = 0, end: int | None = None
        ) -> Slice | None:
            raise Internal(Code.CORRUPT_ROW, "It is not what it was.")

    (message,) = await attach_media((said("look", media(PNG, at=4)),), Damaged(), an_intake())

    told = "its content is not shown: it is damaged in the store"
    assert message == said(f"look\n[attached: image/png; {told}]")


async def test_the_newest_are_sent_where_there_is_no_room_for_all() -> None:
    older = said("first", media(OTHER, at=5))
    newer = said("second", media(PNG, at=6))

    first, second = await filled(older, newer, most=1)
    assert second == said("second", shown(PNG, at=6))
    assert first.media == ()
    assert first.text.endswith("; its content is not shown: a request has at most 1, the newest]")

    first, second = await filled(older, newer, total=len(PNG))
    assert (first.media, second.media) == ((), (shown(PNG, at=6),))


async def test_the_result_of_a_tool_stays_what_the_tool_returned() -> None:
    text = f'{{"ref":"{media_handle(PNG)}"}}'
    result = LlmMessage(role="tool", text=text, call_id="c1", media=(media(PNG, at=len(text)),))

    assert await filled(result) == (
        LlmMessage(role="tool", text=text, call_id="c1", media=(shown(PNG, at=len(text)),)),
    )
    assert describe_media([result]) == (LlmMessage(role="tool", text=text, call_id="c1"),)


@pytest.mark.parametrize("shelf", [None, StandInShelf()])
async def test_without_a_shelf_or_eyes_everything_is_words(shelf: StandInShelf | None) -> None:
    message = said("look", media(PNG, at=4, name="a.png"), media(OTHER, at=4))

    intake = None if shelf else an_intake()
    assert await attach_media((message,), shelf, intake) == (
        said(
            "look\n[attached: a.png, image/png; its content is not shown]\n"
            "[attached: image/png; its content is not shown]"
        ),
    )


def a_picture(sequence: int, content: bytes, turn: int = 1) -> Message:
    part = Media(mime_type="image/png", ref=media_handle(content), byte_length=len(content))
    return a_row(sequence, Role.USER, Text(text="What is this?"), part, turn=turn)


async def asked(llm: ScriptedLlm, *history: Message, **changes: Any) -> list[LlmRequest]:
    """Play a turn and return what the models were asked."""
    shelf = StandInShelf()
    for content in (PNG, OTHER):
        await shelf.keep(content, mime_type="image/png")
    stage = Stage(llm, changes.pop("toolbox", None))
    turn = stage.turn(*history, **{"models": (a_seeing(),), "shelf": shelf, **changes})
    batches = await stage.play(turn)
    assert batches[-1][-1] == Outcome(stop_reason=StopReason.STOP)
    return llm.requests


async def test_a_request_holds_the_bytes_and_the_next_turn_still_does() -> None:
    history = [a_picture(1, PNG), assistant(2, "A cat."), user(3, "Sure?", turn=2)]

    (request,) = await asked(ScriptedLlm(says("Yes.")), *history, turn=2)

    assert request.messages == (
        said("What is this?", shown(PNG, at=13)),
        LlmMessage(role="assistant", text="A cat."),
        said("Sure?"),
    )


async def test_each_model_of_the_chain_is_sent_what_it_takes() -> None:
    blind = model_of("other:blind")
    llm = ScriptedLlm([Failed(kind=FailureKind.AUTH, message="No.", status=401)], says("A cat."))

    first, second = await asked(llm, a_picture(1, PNG), models=(a_seeing(), blind))

    assert [message.media for message in first.messages] == [(shown(PNG, at=13),)]
    words = "What is this?\n[attached: image/png; its content is not shown]"
    assert second.messages == (said(words),)


@pytest.mark.parametrize(
    ("kind", "status"), [(FailureKind.BAD_REQUEST, 400), (FailureKind.TOO_LONG, 413)]
)
async def test_a_request_that_was_refused_is_made_once_more_in_words(
    kind: FailureKind, status: int
) -> None:
    refused = [Failed(kind=kind, message="No.", status=status)]
    calls = looks("c1")
    llm = ScriptedLlm(refused, calls, says("Well."))

    first, second, third = await asked(llm, a_picture(1, PNG))

    why = "the provider rejected a request with it"
    words = f"What is this?\n[attached: image/png; its content is not shown: {why}]"
    assert [message.media for message in first.messages] == [(shown(PNG, at=13),)]
    assert second.messages == (said(words),)
    # For the rest of the turn, because it would be refused again.
    assert third.messages[0] == said(words)


async def test_the_record_says_what_was_refused_and_no_later_turn_tries_it_again() -> None:
    refused = [Failed(kind=FailureKind.BAD_REQUEST, message="No.", status=400)]
    stage = Stage(ScriptedLlm(refused, says("Well.")))
    shelf = StandInShelf()
    for content in (PNG, OTHER):
        await shelf.keep(content, mime_type="image/png")
    turn = stage.turn(a_picture(1, PNG), models=(a_seeing(),), shelf=shelf)

    batches = await stage.play(turn)

    rows = [draft for batch in batches for draft in batch if isinstance(draft, MessageDraft)]
    notice = Notice(code=NoticeCode.MEDIA_REFUSED, text=MEDIA_REFUSED)
    assert [row.parts for row in rows] == [(notice,), (Text(text="Well."),)]
    history = [
        a_picture(1, PNG),
        a_row(2, Role.SYSTEM, notice),
        assistant(3, "Well."),
        a_picture(4, OTHER, turn=2),
    ]
    (request,) = await asked(ScriptedLlm(says("A dog.")), *history, turn=2)
    words = f"What is this?\n[attached: image/png; its content is not shown: {REFUSED}]"
    # What was attached since is tried: nobody has refused it.
    assert request.messages == (
        said(words),
        LlmMessage(role="assistant", text="Well."),
        said("What is this?", shown(OTHER, at=13)),
    )


async def test_what_a_tool_drew_is_hidden_as_well_once_it_was_refused() -> None:
    drawn = {"mimeType": "image/png", "ref": media_handle(PNG)}
    result = ToolResult(call_id=CallId("c1"), name="look", status=ResultStatus.OK, result=drawn)
    history = [
        user(1, "Draw."),
        a_row(2, Role.TOOL_CALL, ToolCall(id=CallId("c1"), name="look", arguments={})),
        a_row(3, Role.TOOL_RESULT, result),
        a_row(4, Role.SYSTEM, Notice(code=NoticeCode.MEDIA_REFUSED, text=MEDIA_REFUSED)),
        assistant(5, "Well."),
        user(6, "And?", turn=2),
    ]

    (request,) = await asked(ScriptedLlm(says("No.")), *history, turn=2)

    assert [message.media for message in request.messages] == [()] * 5


async def test_a_refusal_that_words_do_not_help_is_not_put_down_to_what_was_attached() -> None:
    refused = [Failed(kind=FailureKind.BAD_REQUEST, message="No.", status=400)]
    stage = Stage(ScriptedLlm(refused, refused))
    shelf = StandInShelf()
    await shelf.keep(PNG, mime_type="image/png")

    batches = await stage.play(stage.turn(a_picture(1, PNG), models=(a_seeing(),), shelf=shelf))

    assert len(stage.llm.requests) == 2
    assert not [draft for batch in batches for draft in batch if isinstance(draft, MessageDraft)]


@pytest.mark.parametrize("is_sent", [True, False])
async def test_a_refusal_of_words_is_the_end_as_ever(is_sent: bool) -> None:
    refused = [Failed(kind=FailureKind.BAD_REQUEST, message="No.", sent=is_sent)]
    stage = Stage(ScriptedLlm(refused))
    turn = stage.turn(user(1, "Hello"), models=(a_seeing(),), shelf=StandInShelf())

    batches = await stage.play(turn)

    assert len(stage.llm.requests) == 1
    outcome = batches[-1][-1]
    assert isinstance(outcome, Outcome)
    assert outcome.stop_reason is StopReason.ERROR
    assert sum(isinstance(each, StepFailed) for batch in batches for each in batch) == 1


async def test_what_a_tool_drew_is_seen_in_the_next_step() -> None:
    shelf = StandInShelf()
    handle = await shelf.keep(PNG, mime_type="image/png")
    drawn = {"mimeType": "image/png", "ref": handle}
    toolbox = StandInToolbox({"look": StandInTool(acts=lambda _: drawn)})

    _, second = await asked(
        ScriptedLlm(looks("c1"), says("A cat.")), user(1, "Draw."), toolbox=toolbox, shelf=shelf
    )

    result = second.messages[-1]
    assert (result.role, result.media) == ("tool", (shown(PNG, at=len(result.text)),))
