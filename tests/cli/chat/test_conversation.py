"""A conversation: what ends a wait, and what a signal does."""

import asyncio
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from holdfast import SessionRequest, open_holdfast
from holdfast.api import Holdfast
from holdfast.cli.chat.conversation import ChatConversation, SignalHandler
from holdfast.cli.chat.screen import TextScreen
from holdfast.cli.options import GlobalOptions
from holdfast.cli.output import Printer
from holdfast.domain.errors import NotFound
from holdfast.domain.events import Gap
from holdfast.domain.sessions import Status, StopReason
from tests.cli.chat.test_repl import press_when_running, running
from tests.stand_ins import PATIENCE

pytestmark = pytest.mark.anyio

SLOW = "[{text: never, delay_ms: 60000}]"


async def begun(
    holdfast: Holdfast, signals: SignalHandler, model: str | None = None
) -> ChatConversation:
    """Open a session and return a conversation in it."""
    session = await holdfast.open("holdfast", SessionRequest(model=model))
    screen = TextScreen(Printer(GlobalOptions()), holdfast)
    return ChatConversation(holdfast, session, screen, signals)


async def test_a_turn_is_followed_to_its_end(holdfast: Holdfast) -> None:
    with SignalHandler() as signals:
        conversation = await begun(holdfast, signals)
        await conversation.say("What is 1+1?")

    session = await conversation.session()
    assert conversation.last is not None
    assert conversation.last.stop_reason is StopReason.STOP
    assert conversation.cursor == session.last_event


async def test_the_end_of_a_turn_among_pruned_numbers_is_found(
    holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SignalHandler() as signals:
        conversation = await begun(holdfast, signals)
        await conversation.say("What is 1+1?")
        last = (await conversation.session()).last_event

        async def only_a_gap(*_: object, **__: object) -> object:
            yield Gap(from_sequence=1, to_sequence=last)
            await asyncio.Event().wait()

        monkeypatch.setattr(type(holdfast), "follow", only_a_gap)
        conversation.cursor = 0
        async with asyncio.timeout(PATIENCE):
            await conversation.follow_turn(1)

    assert conversation.cursor == last


async def test_a_session_that_is_closed_while_it_is_waited_for_is_over(
    quiet: Holdfast, capsys: pytest.CaptureFixture[str]
) -> None:
    with SignalHandler() as signals:
        conversation = await begun(quiet, signals)
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(conversation.say("anybody?"))
            await sent(quiet, conversation)
            await quiet.sessions.close(quiet.owner, conversation.session_id)
            await waiting

    assert conversation.is_over


async def test_a_session_that_is_deleted_while_it_is_waited_for_is_not_found(
    quiet: Holdfast,
) -> None:
    with SignalHandler() as signals:
        conversation = await begun(quiet, signals)
        waiting = asyncio.ensure_future(conversation.say("anybody?"))
        await sent(quiet, conversation)
        await quiet.sessions.delete(quiet.owner, conversation.session_id)

        with pytest.raises(NotFound):
            await asyncio.wait_for(waiting, PATIENCE)


async def test_a_turn_that_has_not_begun_cannot_be_stopped_and_that_is_said(
    quiet: Holdfast,
) -> None:
    remarks = []

    class Pressing(TextScreen):
        def show_waiting(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)

        def remark(self, text: str) -> None:
            remarks.append(text)
            os.kill(os.getpid(), signal.SIGINT)

    async def leave() -> bool:
        with SignalHandler() as signals:
            conversation.signals = signals
            try:
                await conversation.say("anybody?")
            except asyncio.CancelledError:
                return signals.is_leaving
        return False

    conversation = await begun(quiet, SignalHandler())
    conversation.screen = Pressing(Printer(GlobalOptions()), quiet)

    assert await asyncio.wait_for(asyncio.ensure_future(leave()), PATIENCE)
    assert remarks == ["The turn has not started yet; press Ctrl-C again to leave it waiting."]
    assert (await conversation.session()).turn == 1


async def test_sigterm_in_a_turn_stops_it_and_leaves(
    holdfast: Holdfast, script: Callable[[str], str]
) -> None:
    with SignalHandler() as signals:
        conversation = await begun(holdfast, signals, script(SLOW))
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
            tasks.create_task(press_when_running(holdfast, conversation.session_id, signal.SIGTERM))
            await conversation.say("slow")

    assert signals.is_leaving
    assert conversation.last is not None
    assert conversation.last.stop_reason is StopReason.ABORTED


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_leaves_a_turn_that_is_only_read_along_and_the_turn_goes_on(
    holdfast: Holdfast, script: Callable[[str], str], number: signal.Signals
) -> None:
    session = await holdfast.open("holdfast", SessionRequest(model=script(SLOW)))
    await holdfast.send(session.id, "slow")

    async def read_along() -> bool:
        with SignalHandler() as signals:
            screen = TextScreen(Printer(GlobalOptions()), holdfast)
            try:
                await ChatConversation(holdfast, session, screen, signals).follow_turn(1)
            except asyncio.CancelledError:
                return signals.is_leaving
        return False

    async with asyncio.timeout(PATIENCE):
        left, _ = await asyncio.gather(
            read_along(), press_when_running(holdfast, session.id, number)
        )

    assert left
    now = await holdfast.sessions.get(holdfast.owner, session.id)
    assert (now.status, now.settled) == (Status.RUNNING, 0)


async def test_a_person_at_the_prompt_can_stop_a_turn_of_somebody_else(
    holdfast: Holdfast, script: Callable[[str], str]
) -> None:
    session = await holdfast.open("holdfast", SessionRequest(model=script(SLOW)))
    await holdfast.send(session.id, "slow")
    with SignalHandler() as signals:
        signals.has_prompt = True
        screen = TextScreen(Printer(GlobalOptions()), holdfast)
        conversation = ChatConversation(holdfast, session, screen, signals)
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
            tasks.create_task(press_when_running(holdfast, session.id))
            await conversation.follow_turn(1)

    assert conversation.last is not None
    assert conversation.last.stop_reason is StopReason.ABORTED


async def test_sigterm_leaves_our_turn_waiting_behind_one_of_somebody_else(
    holdfast: Holdfast, script: Callable[[str], str]
) -> None:
    session = await holdfast.open("holdfast", SessionRequest(model=script(SLOW)))
    await holdfast.send(session.id, "theirs")
    await running(holdfast, session.id)

    class Killing(TextScreen):
        def show_waiting(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    async def say() -> bool:
        with SignalHandler() as signals:
            screen = Killing(Printer(GlobalOptions()), holdfast)
            try:
                await ChatConversation(holdfast, session, screen, signals).say("ours")
            except asyncio.CancelledError:
                return signals.is_leaving
        return False

    assert await asyncio.wait_for(asyncio.ensure_future(say()), PATIENCE)
    now = await holdfast.sessions.get(holdfast.owner, session.id)
    assert (now.status, now.settled, now.turn) == (Status.RUNNING, 0, 2)


async def test_what_is_to_come_next_waits_until_the_turn_before_it_has_begun(
    quiet: Holdfast, home: Path
) -> None:
    conversation = await begun(quiet, SignalHandler())
    await conversation.send("first")

    waiting = asyncio.ensure_future(conversation.wait_for_start(1))
    # Some news that is not the beginning of a turn.
    await conversation.send("first, too")
    is_early = (await asyncio.wait([waiting], timeout=0.05))[0]
    async with open_holdfast(home), asyncio.timeout(PATIENCE):
        await waiting
        message = await conversation.send("second")

    assert not is_early
    assert message.turn == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_outside_a_turn_a_signal_leaves(
    number: signal.Signals, request: pytest.FixtureRequest
) -> None:
    # A run in the background may have been started with the signal ignored.
    request.addfinalizer(partial(signal.signal, number, signal.getsignal(number)))
    signal.signal(number, signal.default_int_handler)

    async def wait() -> bool:
        with SignalHandler() as signals:
            os.kill(os.getpid(), number)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return signals.is_leaving
        return False

    assert await asyncio.wait_for(asyncio.ensure_future(wait()), PATIENCE)


async def test_a_closed_terminal_can_be_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with SignalHandler() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)

    assert not signals.is_leaving


async def test_at_a_prompt_a_late_ctrl_c_is_not_taken_for_leaving() -> None:
    seen = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, seen.set)
    with SignalHandler() as signals:
        signals.has_prompt = True
        os.kill(os.getpid(), signal.SIGINT)
        # Signals are taken in their order: when the second was seen, the first was too.
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(seen.wait(), PATIENCE)
    asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)

    assert not signals.is_leaving


async def test_the_handler_of_before_is_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with SignalHandler():
        assert signal.getsignal(signal.SIGINT) is not before

    assert signal.getsignal(signal.SIGINT) is before


async def sent(holdfast: Holdfast, conversation: ChatConversation) -> None:
    """Return when the message of the conversation is on disk."""
    async for item in holdfast.follow(conversation.session_id):
        if "MessageAppended" in type(getattr(item, "payload", None)).__name__:
            return
