"""Two clients in one session: each stops what it has asked itself, and hears everything once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.api import Holdfast
from holdfast.domain.events import TurnEnded
from holdfast.domain.ids import SessionId
from tests.acp.editor import Editor, Frame, editor_of, house_for, is_question, selected, words
from tests.acp.server.test_edges import Wrapped
from tests.acp.server.test_prompts import SLOW, asked_of
from tests.houses import news_until, payloads, played, script, texts

pytestmark = pytest.mark.anyio

CALL = {"name": "write_file", "arguments": {"path": "a.txt", "content": "hi\n"}}


class Shared:
    """A session in which a first client's turn waits for an answer, and a second client."""

    def __init__(self, house: Holdfast, session: str, first: Editor, second: Editor) -> None:
        self.house = house
        self.session = session
        self.first = first
        self.second = second
        self.asked = 0
        self._question: Frame = {}

    async def begin(self) -> None:
        """Have the first client's turn wait for an answer."""
        self.asked = await self.say(self.first, "go")
        self._question = await self.first.until(is_question)

    async def say(self, editor: Editor, text: str) -> int:
        """Begin a prompt, and return its id."""
        return await editor.begin("session/prompt", sessionId=self.session, prompt=words(text))

    async def queued(self, editor: Editor, text: str, *, count: int) -> int:
        """Begin a prompt, and return its id when so many messages are written."""
        asked = await self.say(editor, text)
        await asked_of(self.house, self.session, count)
        return asked

    async def cancel(self, editor: Editor) -> None:
        """Cancel what a client has asked."""
        await editor.send(method="session/cancel", params={"sessionId": self.session})

    async def go_on(self) -> Frame:
        """Answer the question of the first turn, and return the first client's answer."""
        await self.first.send(id=self._question["id"], **selected("allow_once"))
        return await self.first.reply(self.asked)

    async def ends(self) -> list[str]:
        """Wait until all is played, and return how each turn has ended."""
        await played(self.house, SessionId(self.session))
        page = await self.house.events.list(self.house.owner, SessionId(self.session))
        return [each.stop_reason for each in payloads(page.items) if isinstance(each, TurnEnded)]


def stop_of(answer: Frame) -> Any:
    """Return the stop reason that a client was told."""
    return answer["result"]["stopReason"]


@asynccontextmanager
async def shared(home: Path, desk: Path, model: str) -> AsyncIterator[Shared]:
    """Have two clients in one session; the turn of the first one waits."""
    async with (
        house_for(home, desk, default_model=model) as house,
        editor_of(house) as first,
        editor_of(house) as second,
    ):
        for editor in (first, second):
            editor.answer = lambda _: None
            await editor.meet()
        both = Shared(house, await first.opened(desk), first, second)
        params = {"sessionId": both.session, "cwd": str(desk), "mcpServers": []}
        await second.call("session/resume", **params)
        await both.begin()
        yield both


def three_answers(folder: Path) -> str:
    """Return a model whose first turn makes a call that is asked about."""
    return script(folder, {"tool_calls": [CALL]}, {"text": "one"}, {"text": "two"})


@pytest.mark.parametrize("how", ["ends", "closes"])
async def test_who_leaves_stops_nobody_elses_turn_and_what_it_said_is_answered(
    home: Path, desk: Path, tmp_path: Path, how: str
) -> None:
    async with shared(home, desk, three_answers(tmp_path)) as both:
        leaving = both.second
        queued = await both.queued(leaving, "also", count=3)
        if how == "ends":
            leaving.writer.close()
        else:
            await leaving.begin("session/close", sessionId=both.session)
        left = await leaving.reply(queued)
        stayed = await both.go_on()
        ends = await both.ends()
        rows = texts(await played(both.house, SessionId(both.session)))

    assert (stop_of(left), stop_of(stayed), ends) == ("cancelled", "end_turn", ["stop", "stop"])
    assert rows[-2:] == [("assistant", "one"), ("assistant", "two")]


async def test_a_cancel_without_a_prompt_of_ones_own_stops_nothing(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    async with shared(home, desk, three_answers(tmp_path)) as both:
        await both.cancel(both.second)
        # What comes behind it is answered: by then it was heard.
        await both.second.call("session/list")
        stayed = await both.go_on()

        assert (stop_of(stayed), await both.ends()) == ("end_turn", ["stop"])


async def test_a_cancel_is_answered_at_once_and_stops_its_own_turn_when_that_begins(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    async with shared(home, desk, three_answers(tmp_path)) as both:
        queued = await both.queued(both.second, "also", count=3)
        await both.cancel(both.second)
        stopped = await both.second.reply(queued)
        stayed = await both.go_on()

        assert (stop_of(stopped), stop_of(stayed)) == ("cancelled", "end_turn")
        assert await both.ends() == ["stop", "aborted"]


@pytest.mark.parametrize("who", ["the other client", "the same client"])
async def test_a_turn_that_was_given_up_is_played_for_who_has_spoken_in_it_too(
    home: Path, desk: Path, tmp_path: Path, who: str
) -> None:
    async with shared(home, desk, three_answers(tmp_path)) as both:
        given_up = await both.queued(both.second, "also", count=3)
        await both.cancel(both.second)
        stopped = await both.second.reply(given_up)
        editor = both.first if who == "the other client" else both.second
        wanted = await both.queued(editor, "and this", count=4)
        stayed = await both.go_on()
        played_on = await editor.reply(wanted)

        answers = [stop_of(each) for each in (stopped, stayed, played_on)]
        assert answers == ["cancelled", "end_turn", "end_turn"]
        assert await both.ends() == ["stop", "stop"]


async def test_who_leaves_a_turn_that_others_have_asked_too_leaves_it_to_them(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    asks = {"tool_calls": [CALL]}
    model = script(tmp_path, asks, {"text": "one"}, asks, {"text": "two"})
    async with shared(home, desk, model) as both:
        theirs = await both.queued(both.second, "also", count=3)
        ours = await both.queued(both.first, "me too", count=4)
        await both.go_on()
        question = await both.first.until(is_question)
        both.second.writer.close()
        left = await both.second.reply(theirs)
        await both.first.send(id=question["id"], **selected("allow_once"))
        stayed = await both.first.reply(ours)

        assert (stop_of(left), stop_of(stayed)) == ("cancelled", "end_turn")
        assert await both.ends() == ["stop", "stop"]


async def test_a_cancel_stops_the_running_turn_that_others_have_asked_too(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    """Whoever sees a turn of its own go wrong can stop it, whoever else is in it."""
    asks = {"tool_calls": [CALL]}
    async with shared(home, desk, script(tmp_path, asks, {"text": "one"}, asks)) as both:
        theirs = await both.queued(both.second, "also", count=3)
        ours = await both.queued(both.first, "me too", count=4)
        await both.go_on()
        await both.first.until(is_question)
        await both.cancel(both.second)

        replies = [await both.second.reply(theirs), await both.first.reply(ours)]
        assert [stop_of(each) for each in replies] == ["cancelled", "cancelled"]


async def test_a_prompt_is_taken_back_without_the_one_before_it(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    async with shared(home, desk, three_answers(tmp_path)) as both:
        queued = await both.queued(both.first, "also", count=3)
        await both.first.send(method="$/cancel_request", params={"requestId": queued})
        taken_back = await both.first.reply(queued)
        stayed = await both.go_on()

        assert (taken_back["error"]["code"], stop_of(stayed)) == (-32800, "end_turn")
        assert await both.ends() == ["stop", "aborted"]


async def test_a_prompt_that_is_taken_back_while_it_is_written_is_stopped(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    async with house_for(home, desk, default_model=script(tmp_path, SLOW)) as house:
        is_written = asyncio.Event()

        async def send(session_id: SessionId, content: Any, *, id: str | None = None) -> Any:
            await house.send(session_id, content, id=id)
            is_written.set()
            await asyncio.Event().wait()

        async with editor_of(Wrapped(house, send=send)) as editor:
            await editor.meet()
            session = await editor.opened(desk)
            asked = await editor.begin("session/prompt", sessionId=session, prompt=words("go"))
            await is_written.wait()
            await editor.send(method="$/cancel_request", params={"requestId": asked})

            assert (await editor.reply(asked))["error"]["code"] == -32800
            news = payloads(await news_until(house, SessionId(session), TurnEnded))
            assert news[-1].stop_reason == "aborted"


@pytest.mark.parametrize("how", ["load", "resume"])
async def test_two_who_pick_a_session_up_at_once_hear_its_news_once(
    home: Path, desk: Path, tmp_path: Path, how: str
) -> None:
    model = script(tmp_path, {"text": "one"}, {"text": "two"})
    async with house_for(home, desk, default_model=model) as house, editor_of(house) as editor:
        await editor.meet()
        session = await editor.opened(desk)
        await editor.prompt(session, "1")
        params = {"sessionId": session, "cwd": str(desk), "mcpServers": []}
        both = [await editor.begin(f"session/{how}", **params) for _ in range(2)]
        for number in both:
            assert "result" in await editor.reply(number)
        editor.frames.clear()

        await editor.prompt(session, "2")

        told = [each["content"]["text"] for each in editor.updates() if "content" in each]
        assert told == ["two"]


async def test_a_session_that_is_closed_while_it_is_picked_up_is_closed(
    home: Path, desk: Path
) -> None:
    async with house_for(home, desk) as house, editor_of(house) as editor:
        await editor.meet()
        session = await editor.opened(desk)
        await editor.begin("session/load", sessionId=session, cwd=str(desk), mcpServers=[])
        await editor.call("session/close", sessionId=session)

        error = (await editor.prompt(session, "hi"))["error"]
        assert error["message"] == "Open the session first, with session/new, load or resume."


async def test_what_is_said_while_a_session_is_picked_up_again_is_told_once(
    home: Path, desk: Path
) -> None:
    async with house_for(home, desk) as house:
        pending: list[str] = []
        was_told = asyncio.Event()

        async def get(owner: Any, session_id: SessionId) -> Any:
            found = await house.sessions.get(owner, session_id)
            if pending:
                await house.send(session_id, pending.pop())
                await was_told.wait()
            return found

        wrapped = Wrapped(house, sessions=Wrapped(house.sessions, get=get))
        async with editor_of(wrapped) as editor:
            await editor.meet()
            session = await editor.opened(desk)
            await editor.prompt(session, "hello")
            editor.frames.clear()
            pending.append("What is 2+3?")
            params = {"sessionId": session, "cwd": str(desk), "mcpServers": []}
            resuming = await editor.begin("session/resume", **params)
            await editor.until(lambda frame: "2+3 = 5" in str(frame))
            was_told.set()
            assert "result" in await editor.reply(resuming)
            await editor.prompt(session, "What is 3+4?")

            told = [each["content"]["text"] for each in editor.updates() if "content" in each]
            assert [text[:12] for text in told] == ["What is 2+3?", "2+3 = 5", "3+4 = 7"]
