"""The edges of a conversation: before it begins, behind a server, when nobody listens any more."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.acp.rpc.framing import ConnectionLost
from holdfast.acp.server.client_session import ClientApprovals
from holdfast.acp.server.notifications import replay_cursor
from holdfast.acp.server.updates import UpdateTranslator
from holdfast.api import Holdfast
from holdfast.client import connect
from holdfast.client.remote import RemoteMcpServers
from holdfast.domain.approvals import Approval, ApprovalState, Decision
from holdfast.domain.errors import Code, Conflict, NotFound
from holdfast.domain.events import Event, Gap, StepEnded, StepStarted, TurnEnded, TurnStarted
from holdfast.domain.ids import LOCAL_OWNER, EventId, SessionId
from holdfast.domain.messages import Media, Text
from holdfast.domain.queries import Page
from holdfast.domain.sessions import SessionContext, SessionRequest, Status
from tests.acp.editor import editor_of, here, house_for, is_question, words
from tests.acp.server.test_prompts import PICTURE, SLOW
from tests.cli.remote_server import serve
from tests.houses import news_until, played, script
from tests.stand_ins import asked, streamed

pytestmark = pytest.mark.anyio


class Wrapped:
    """A house of which the test has changed something."""

    def __init__(self, house: Any, **changed: Any) -> None:
        self._house = house
        self.__dict__.update(changed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._house, name)


async def test_nothing_is_done_before_the_handshake_and_nothing_unknown_behind_it(
    home: Path, desk: Path
) -> None:
    async with house_for(home, desk) as house, editor_of(house) as editor:
        early = await editor.call("session/new", cwd=str(desk), mcpServers=[])
        await editor.meet()
        unknown = await editor.call("session/fork", sessionId="x")

        assert early["error"] == {
            "code": -32600,
            "message": "Call initialize first.",
            "data": {"code": "invalid_input", "message": "Call initialize first."},
        }
        assert unknown["error"]["code"] == -32601


async def test_servers_that_a_house_does_not_take_are_told_once(home: Path, desk: Path) -> None:
    mine = {"name": "mine", "command": "true", "args": [], "env": []}
    async with (
        house_for(home, desk) as house,
        editor_of(Wrapped(house, mcp_servers=RemoteMcpServers())) as editor,
    ):
        await editor.meet()
        session = await editor.opened(desk, mcpServers=[mine])
        counts = []
        for _ in range(2):
            editor.frames.clear()
            await editor.prompt(session, "hello")
            counts.append(str(editor.updates()).count("cannot be attached over the network: mine."))
        assert counts == [1, 0]


async def test_behind_a_server_everything_is_as_it_is_here(home: Path, desk: Path) -> None:
    with serve(home, AGENT_WORKSPACE_ROOT=str(desk)) as server:
        async with house_for(home, desk) as near:
            place = SessionContext(working_dir=str(desk))
            session = (await near.open(request=SessionRequest(context=place))).id
            ref = await near.media.keep(near.owner, session, PICTURE, mime_type="image/png")
            parts = (Text(text="look"), Media(mime_type="image/png", ref=ref))
            await near.send(session, parts)
            await played(near, session)
        async with (
            connect(server.url, server.secret) as house,
            editor_of(house, goes_on=True) as editor,
        ):
            await editor.meet()
            editor.frames.clear()
            await editor.call("session/load", sessionId=session, cwd=str(desk), mcpServers=[])
            shown = [each["content"] for each in editor.updates()]
            data = base64.b64encode(PICTURE).decode()
            assert shown[1] == {"type": "image", "data": data, "mimeType": "image/png"}
            assert (await editor.prompt(session, "hi"))["result"]["stopReason"] == "end_turn"
            picture = {"type": "image", "data": data, "mimeType": "image/png"}
            answer = await editor.call("session/prompt", sessionId=session, prompt=[picture])
            assert answer["result"]["stopReason"] == "end_turn"
            sent = [row for row in await house.read(SessionId(session)) if row.role == "user"]
            assert isinstance(sent[-1].parts[0], Media)
            assert sent[-1].parts[0].ref == ref


async def test_a_picture_that_is_gone_is_still_named(home: Path, desk: Path) -> None:
    async with here(home, desk) as (house, editor):
        session = await editor.opened(desk)
        ref = await house.media.keep(
            house.owner, SessionId(session), b"%PDF", mime_type="application/pdf"
        )
        await house.send(SessionId(session), (Media(mime_type="application/pdf", ref=ref),))
        await played(house, SessionId(session))
        editor.frames.clear()

        await editor.call("session/load", sessionId=session, cwd=str(desk), mcpServers=[])

        assert editor.updates()[0]["content"] == {
            "type": "resource_link",
            "uri": ref,
            "name": "application/pdf",
            "mimeType": "application/pdf",
        }


async def test_a_client_that_reads_no_more_does_not_keep_its_turn_from_its_end(
    home: Path, desk: Path
) -> None:
    async with house_for(home, desk) as house, editor_of(house) as editor:
        await editor.meet()
        session = await editor.opened(desk)
        editor.answer = lambda _: None
        prompt = {"sessionId": session, "prompt": words("write a.txt: hi")}
        await editor.begin("session/prompt", **prompt)
        await editor.until(is_question)
        editor.deafen()
        (asked,) = (await house.approvals.list(house.owner, SessionId(session))).items
        await answered(house, asked, ApprovalState.ALLOWED)
        await played(house, SessionId(session))
    assert (desk / "a.txt").exists()


async def answered(house: Any, asked: Approval, state: ApprovalState) -> None:
    """Answer a question from elsewhere."""
    answer = Decision(state=state, by="terminal")
    await house.approvals.answer(house.owner, asked.session_id, asked.id, answer)


async def test_a_prompt_whose_end_was_forgotten_is_answered_all_the_same(
    home: Path, desk: Path
) -> None:
    async with house_for(home, desk) as house:

        async def follow(session_id: SessionId, *, after: int = 0) -> AsyncIterator[Event | Gap]:
            news = await news_until(house, session_id, TurnEnded)
            yield Gap(from_sequence=1, to_sequence=news[-1].sequence)
            await asyncio.Event().wait()

        async with editor_of(Wrapped(house, follow=follow)) as editor:
            await editor.meet()
            session = await editor.opened(desk)
            assert (await editor.prompt(session, "hi"))["result"]["stopReason"] == "end_turn"


async def test_news_that_break_off_fail_the_prompt_and_are_followed_again(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    """Whatever breaks them: a fault of ours is told as one, and the next prompt goes well."""
    async with house_for(home, desk) as house:
        faults: list[Exception] = [
            RuntimeError("a fault of the test"),
            Conflict(Code.STORE_CLOSED, "closed"),
        ]

        def follow(session_id: SessionId, *, after: int = 0) -> AsyncIterator[Event | Gap]:
            return broken(faults.pop()) if faults else house.follow(session_id, after=after)

        async with editor_of(Wrapped(house, follow=follow)) as editor:
            await editor.meet()
            session = await editor.opened(desk)
            codes = []
            for _ in range(2):
                codes.append((await editor.prompt(session, "hi"))["error"]["data"]["code"])
            assert codes == ["store_closed", "internal"]
            assert (await editor.prompt(session, "hi"))["result"]["stopReason"] == "end_turn"


async def broken(fault: Exception) -> AsyncIterator[Event | Gap]:
    """Yield nothing, and fail."""
    raise fault
    yield


async def test_a_turn_that_does_not_stop_in_time_is_left_to_others(
    home: Path, desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.acp.server.agent.PARTING_SECONDS", 0.05)

    async with house_for(home, desk, default_model=script(tmp_path, SLOW)) as house:
        stuck = Wrapped(house.sessions, interrupt=lambda *_, **__: asyncio.Event().wait())
        async with editor_of(Wrapped(house, sessions=stuck)) as editor:
            await editor.meet()
            session = await editor.opened(desk)
            await editor.begin("session/prompt", sessionId=session, prompt=words("go"))
            await news_until(house, SessionId(session), StepStarted)
        found = await house.sessions.get(LOCAL_OWNER, SessionId(session))
        assert (found.turn, found.settled) == (1, 0)


async def test_a_turn_that_has_ended_before_its_message_is_known_to_be_written_is_answered(
    home: Path, desk: Path
) -> None:
    """As behind a server, where the news and the answer to a request come by two ways."""
    async with house_for(home, desk) as house:

        async def send(session_id: SessionId, content: Any, *, id: str | None = None) -> Any:
            message = await house.send(session_id, content, id=id)
            await news_until(house, session_id, TurnEnded, after=seen)
            # So that whoever follows has told it, too.
            await asyncio.sleep(0.1)
            return message

        async with editor_of(Wrapped(house, send=send)) as editor:
            await editor.meet()
            session = await editor.opened(desk)
            for _ in range(2):
                seen = (await house.sessions.get(house.owner, SessionId(session))).last_event
                assert (await editor.prompt(session, "hi"))["result"]["stopReason"] == "end_turn"


async def test_a_question_is_put_once_and_not_at_all_where_it_has_its_answer(
    home: Path, desk: Path
) -> None:
    async with here(home, desk) as (house, editor):
        session = await editor.opened(desk)
        await editor.prompt(session, "write a.txt: hi")
        (answered_one,) = (await house.approvals.list(house.owner, SessionId(session))).items
        sent: list[str] = []

        class Deaf:
            async def begin(self, method: str, _: Any) -> Any:
                sent.append(method)
                raise ConnectionLost("ended")

        asking = ClientApprovals(house, Deaf(), SessionId(session), lambda _: None)  # type: ignore[arg-type]
        for _ in range(2):
            await asking.ask(answered_one.id, UpdateTranslator("/"))
        assert sent == []
        waiting = Wrapped(house, approvals=Wrapped(house.approvals, get=found(answered_one)))
        asking = ClientApprovals(waiting, Deaf(), SessionId(session), lambda _: None)  # type: ignore[arg-type]
        for _ in range(2):
            await asking.ask(answered_one.id, UpdateTranslator("/"))
        assert sent == ["session/request_permission"]


def found(approval: Approval) -> Any:
    """Return a reading that finds the question still waiting."""

    async def get(*_: Any) -> Approval:
        return replace(approval, state=ApprovalState.WAITING)

    return get


@pytest.mark.parametrize(
    ("kinds", "cursor"),
    [
        (["turn", "step"], 1),
        (["turn", "step", "delta"], 1),
        (["turn", "step", "ended"], 3),
        (["turn"], 1),
        (["turn", "step", *["delta"] * 2_500], 1),
        (["gap", "delta"], 2),
        (["delta"], 1),
    ],
)
async def test_news_of_a_running_session_begin_before_the_text_that_streams(
    holdfast: Holdfast, kinds: list[str], cursor: int
) -> None:
    session = await holdfast.open()
    known = {
        "turn": TurnStarted(),
        "step": asked(),
        "delta": streamed("x"),
        "ended": StepEnded(step=1),
    }

    def item(number: int, kind: str) -> Event | Gap:
        if kind == "gap":
            return Gap(from_sequence=number, to_sequence=number)
        return Event(
            id=EventId("e"),
            session_id=session.id,
            sequence=number,
            at=session.created_at,
            payload=known[kind],
        )

    news = [item(number, kind) for number, kind in enumerate(kinds, start=1)]

    class Log:
        async def list(self, *_: Any, after: int, limit: int) -> Page[Event | Gap]:
            return Page(items=tuple(news[after : after + limit]))

    running = replace(session, status=Status.RUNNING, last_event=len(news))
    assert await replay_cursor(Wrapped(holdfast, events=Log()), running) == cursor
    idle = replace(running, status=Status.IDLE)
    assert await replay_cursor(Wrapped(holdfast, events=Log()), idle) == len(news)


async def test_a_picture_that_cannot_be_read_is_named(home: Path, desk: Path) -> None:
    async def gone(*_: Any) -> bytes:
        raise NotFound(Code.MEDIA_NOT_FOUND, "gone")

    async with house_for(home, desk) as house:
        wrapped = Wrapped(house, media=Wrapped(house.media, read=gone))
        async with editor_of(wrapped) as editor:
            await editor.meet()
            session = await editor.opened(desk)
            data = base64.b64encode(PICTURE).decode()
            picture = {"type": "image", "data": data, "mimeType": "image/png"}
            await editor.call("session/prompt", sessionId=session, prompt=[picture])
            editor.frames.clear()
            await editor.call("session/load", sessionId=session, cwd=str(desk), mcpServers=[])
            assert editor.updates()[0]["content"]["type"] == "resource_link"
