"""Conversing at a terminal, with keys that are pressed by the test."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from holdfast import RunScope, SessionRequest, __version__, open_holdfast
from holdfast.api import Holdfast
from holdfast.cli.chat.conversation import ChatConversation, SignalHandler
from holdfast.cli.chat.repl import run_repl
from holdfast.cli.chat.screen import TextScreen
from holdfast.cli.options import GlobalOptions
from holdfast.cli.output import Printer
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import Status
from tests.stand_ins import PATIENCE

pytestmark = pytest.mark.anyio

Script = Callable[[str], str]
CTRL_C, CTRL_D = "\x03", "\x04"


@asynccontextmanager
async def conversing(
    holdfast: Holdfast, model: str | None = None, turn_cap: int | None = None
) -> AsyncIterator[tuple[ChatConversation, PipeInput]]:
    """Open a session at a keyboard of the test's."""
    session = await holdfast.open("holdfast", SessionRequest(model=model, turn_cap=turn_cap))
    printer = Printer(GlobalOptions())
    with (
        create_pipe_input() as keys,
        create_app_session(keys, DummyOutput()),
        SignalHandler() as signals,
    ):
        yield ChatConversation(holdfast, session, TextScreen(printer, holdfast), signals), keys


async def talked(conversation: ChatConversation, *, resumed: str | None = None) -> int:
    """Converse until the keys that were pressed lead out."""
    async with asyncio.timeout(PATIENCE):
        config = conversation.holdfast.config
        return await run_repl(
            Printer(GlobalOptions()), conversation, config, resumed=resumed, whole=False
        )


async def said(holdfast: Holdfast, session_id: SessionId) -> list[str]:
    """Return what was sent to the agent."""
    return [row.text for row in await holdfast.read(session_id) if row.role == "user"]


async def test_what_is_typed_is_sent_and_answered(
    holdfast: Holdfast, capsys: pytest.CaptureFixture[str]
) -> None:
    async with conversing(holdfast) as (conversation, keys):
        keys.send_text(f"What is 2+3?\r\r  \r//exit\r{CTRL_D}")
        code = await talked(conversation)

    told = capsys.readouterr()
    assert code == 0
    assert told.out.startswith("2+3 = 5\n")
    assert await said(holdfast, conversation.session_id) == ["What is 2+3?", "/exit"]
    assert told.err.startswith(
        f"Holdfast {__version__}, agent holdfast, model offline:holdfast\n"
        f"Session {conversation.session_id}\n"
    )
    assert f"`holdfast chat --resume {conversation.session_id}`." in told.err


async def test_a_message_past_the_turn_cap_is_sent_only_if_the_person_says_how(
    holdfast: Holdfast, capsys: pytest.CaptureFixture[str]
) -> None:
    async with conversing(holdfast, turn_cap=1) as (conversation, keys):
        first = conversation.session_id
        keys.send_text(f"one\rtwo\r\rthree\rr\r/cap 2\rfour\rf\r/cap\r{CTRL_D}")
        code = await talked(conversation)

    told = capsys.readouterr()
    assert code == 0
    assert await said(holdfast, first) == ["one", "three"]
    assert await said(holdfast, conversation.session_id) == ["one", "three", "four"]
    assert conversation.session_id != first
    assert told.err.count("has used its 1 turns ([limits].attended_turn_cap") == 2
    assert "This session may now have 1001 turns." in told.err
    assert "Turns left in this session: 0; /cap N raises its turn cap." in told.err
    assert told.out.count("The session may have 2 turns.") == 2


async def test_the_greeting_names_the_model_that_answers(
    holdfast: Holdfast, script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    model = script("[{text: hello}]")
    async with conversing(holdfast, model) as (conversation, keys):
        keys.send_text(CTRL_D)
        await talked(conversation)

    assert f", agent holdfast, model {model}\nSession " in capsys.readouterr().err


async def test_one_ctrl_c_at_the_prompt_warns_and_two_in_a_row_leave(
    holdfast: Holdfast, capsys: pytest.CaptureFixture[str]
) -> None:
    async with conversing(holdfast) as (conversation, keys):
        keys.send_text(f"{CTRL_C}hello\r{CTRL_C}{CTRL_C}never\r")
        code = await talked(conversation)

    assert code == 0
    assert await said(holdfast, conversation.session_id) == ["hello"]
    assert capsys.readouterr().err.count("Press Ctrl-C again, or Ctrl-D, to leave.") == 2


async def test_what_is_refused_is_told_and_the_conversation_goes_on(
    holdfast: Holdfast, capsys: pytest.CaptureFixture[str]
) -> None:
    async with conversing(holdfast) as (conversation, keys):
        keys.send_text(f"a\x00b\r/fork 99\rhello\r{CTRL_D}")
        code = await talked(conversation)

    told = capsys.readouterr()
    assert code == 0
    assert "There is no turn 99; /history shows all turns.\n" in told.err
    assert (await said(holdfast, conversation.session_id))[-1] == "hello"


@pytest.mark.parametrize(
    ("command", "status"),
    [("/exit", Status.PENDING), ("/end", Status.COMPLETED), ("/cancel", Status.CANCELLED)],
)
async def test_there_are_three_ways_out(
    holdfast: Holdfast, command: str, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    async with conversing(holdfast) as (conversation, keys):
        keys.send_text(f"{command}\r")
        code = await talked(conversation)

    session = await holdfast.sessions.get(holdfast.owner, conversation.session_id)
    assert (code, session.status) == (0, status)
    ended = "is saved;" if status is Status.PENDING else "is closed and saved."
    assert ended in capsys.readouterr().err


async def test_an_unknown_command_names_the_nearest_and_is_never_sent(
    holdfast: Holdfast, capsys: pytest.CaptureFixture[str]
) -> None:
    async with conversing(holdfast) as (conversation, keys):
        keys.send_text(f"/histry\r/history many\r/help me\r/\r{CTRL_D}")
        await talked(conversation)

    told = capsys.readouterr().err
    assert "There is no /histry; did you mean /history?" in told
    assert "Usage: /history [N]." in told
    assert "Usage: /help." in told
    assert await said(holdfast, conversation.session_id) == []


async def test_commands_show_what_they_say(
    holdfast: Holdfast, capsys: pytest.CaptureFixture[str]
) -> None:
    async with conversing(holdfast) as (conversation, keys):
        keys.send_text(
            f"What is 1+1?\rWhat is 2+2?\r/HISTORY 1\r/history\r/status\r/help\r{CTRL_D}"
        )
        await talked(conversation)

    out = capsys.readouterr().out
    assert out.count("> What is 1+1?") == 1
    assert out.count("> What is 2+2?") == 2
    assert f"{conversation.session_id}  idle, 2 turns, 4 messages" in out
    assert re.search(r"^/fork \[TURN\] +fork the session at", out, re.MULTILINE)
    assert re.search(r"^//text +send /text as a message$", out, re.MULTILINE)


async def test_a_fork_goes_on_from_the_end_of_a_turn(
    holdfast: Holdfast, capsys: pytest.CaptureFixture[str]
) -> None:
    async with conversing(holdfast) as (conversation, keys):
        first = conversation.session_id
        keys.send_text(f"What is 1+1?\rWhat is 2+2?\r/fork 1\rhello\r/fork\r{CTRL_D}")
        await talked(conversation)

    last = await holdfast.sessions.get(holdfast.owner, conversation.session_id)
    assert last.forked_from is not None
    middle = last.forked_from.session_id
    assert await said(holdfast, middle) == ["What is 1+1?", "hello"]
    assert await said(holdfast, first) == ["What is 1+1?", "What is 2+2?"]
    assert f"{first} is unchanged." in capsys.readouterr().out


async def test_the_past_is_printed_and_an_open_turn_is_played(
    holdfast: Holdfast, capsys: pytest.CaptureFixture[str]
) -> None:
    async with conversing(holdfast) as (conversation, keys):
        keys.send_text(f"What is 1+1?\r{CTRL_D}")
        await talked(conversation)
        async with open_holdfast(holdfast.config.home, scope=RunScope.NONE) as elsewhere:
            await elsewhere.send(conversation.session_id, "What is 2+2?")
        await holdfast.sessions.resume(holdfast.owner, conversation.session_id)
        capsys.readouterr()
        keys.send_text(CTRL_D)
        await talked(conversation, resumed=conversation.session_id)

    told = capsys.readouterr()
    assert told.out.startswith("> What is 1+1?\n1+1 = 2\n")
    assert told.out.endswith("2+2 = 4\n")


async def test_a_session_that_is_closed_elsewhere_is_left(
    holdfast: Holdfast, capsys: pytest.CaptureFixture[str]
) -> None:
    async with conversing(holdfast) as (conversation, keys):
        await holdfast.sessions.close(holdfast.owner, conversation.session_id)
        talking = asyncio.create_task(talked(conversation))
        told = ""
        # What is typed before the news come would be refused, which is told in other words.
        while "The session was closed: completed.\n" not in told:
            await asyncio.sleep(0.01)
            told += capsys.readouterr().err
            assert not talking.done() or "was closed" in told
        keys.send_text("hello\rnever\r")
        code = await talking

    assert code == 0
    told += capsys.readouterr().err
    assert told.endswith(f"Session {conversation.session_id} is closed and saved.\n")


async def test_ctrl_c_stops_an_answer_and_the_conversation_goes_on(
    holdfast: Holdfast, script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    # What was left unanswered comes with the next message, so the later word is looked for first.
    model = script(
        "match:\n"
        "- {contains: fast, step: {text: here I am}}\n"
        "- {contains: slow, step: {text: never, delay_ms: 60000}}\n"
    )
    async with (
        conversing(holdfast, model) as (conversation, keys),
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(press_when_running(holdfast, conversation.session_id))
        keys.send_text(f"slow\rfast\r{CTRL_D}")
        code = await talked(conversation)

    told = capsys.readouterr()
    assert code == 0
    assert told.out == "here I am\n"
    assert "Stopped; the partial answer is saved." in told.err


async def press_when_running(
    holdfast: Holdfast, session_id: SessionId, number: signal.Signals = signal.SIGINT
) -> None:
    """Press Ctrl-C, or send another signal, as soon as a turn runs."""
    await running(holdfast, session_id)
    os.kill(os.getpid(), number)


async def running(holdfast: Holdfast, session_id: SessionId) -> None:
    """Return when a turn runs."""
    async for item in holdfast.follow(session_id):
        if "StepStarted" in type(getattr(item, "payload", None)).__name__:
            return
