"""`holdfast chat`: open a session, or pick one up, and converse in it."""

import asyncio
import dataclasses
from typing import TYPE_CHECKING

import typer

from holdfast.cli.approval_policy import manner_of
from holdfast.cli.command import command
from holdfast.cli.options import ChatOptions, InputForm, ResumeOptions
from holdfast.cli.output import Printer
from holdfast.domain.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.cli.chat.conversation import Conversation, Signals
    from holdfast.cli.chat.screen import Screen
    from holdfast.domain.messages import Message


async def chat(printer: Printer, wanted: ChatOptions) -> int:
    """Converse with an agent.

    Everything is saved as it happens. At a terminal, Ctrl-C stops the answer and Ctrl-D leaves;
    /help shows more. Before an agent changes something you are asked; in a pipe nobody can be, so
    it is not done unless --yes-to says so. With --json, stdout is one JSON event for each line. An
    unattended chat ends with the code of its last turn.
    """
    from holdfast.cli.chat.conversation import Signals
    from holdfast.cli.chat.stdin import whole_input
    from holdfast.domain.messages import Text, require_sendable

    # Before anything is opened: what cannot be said must not leave an empty session.
    said = whole_input() if wanted.prompt == "-" else wanted.prompt
    if said is not None:
        require_sendable((Text(text=said),))
    signals = Signals()
    try:
        with signals:
            return await _converse(printer, wanted, said, signals)
    except asyncio.CancelledError:
        # Cancelled by somebody else than the person: not ours to swallow.
        if not signals.is_leaving:
            raise
        return _left(printer)


async def chat_resume(printer: Printer, wanted: ResumeOptions) -> int:
    """Pick a session up again.

    Prints its last turns, plays a turn that was left open, then converses; the same as
    `chat --resume`.
    """
    options = ChatOptions(
        resume=wanted.resume,
        prompt=wanted.prompt,
        all=wanted.all,
        cwd=wanted.cwd,
        yes_to=wanted.yes_to,
    )
    return await chat(printer, options)


async def _converse(
    printer: Printer, wanted: ChatOptions, said: str | None, signals: "Signals"
) -> int:
    from holdfast.cli.chat.session import begin, require_fitting
    from holdfast.cli.connect import opened

    require_fitting(wanted)
    manner = manner_of(printer, wanted.yes_to)
    is_typed = said is None and wanted.input is InputForm.TEXT
    manner = dataclasses.replace(manner, converses=is_typed and manner.asks)
    incoming = None
    if not manner.converses:
        incoming = await _incoming(printer, wanted, said)
    # By the configuration's own rule, which names the key that would have to be edited.
    flags = {"chat.fs_scope": wanted.fs_scope}
    async with opened(printer, "own", manner=manner, flags=flags) as holdfast:
        conversation = await begin(printer, holdfast, wanted, signals, manner)
        if incoming is None:
            # Here, because only who types needs what reads keys.
            from holdfast.cli.chat.repl import talk

            return await talk(printer, conversation, resumed=wanted.resume, whole=wanted.all)
        if wanted.input is InputForm.NDJSON:
            from holdfast.cli.chat.stdin import say_each

            try:
                await say_each(conversation, incoming)
            except Invalid:
                await _forget_unused(conversation, is_new=wanted.resume is None)
                raise
            return _code(conversation)
        return await _said(conversation, incoming)


async def _forget_unused(conversation: "Conversation", *, is_new: bool) -> None:
    """Remove a session that was opened for what could not be said."""
    session = await conversation.session()
    if is_new and not session.message_count:
        holdfast = conversation.holdfast
        await holdfast.sessions.delete(holdfast.owner, session.id)


async def _incoming(
    printer: Printer, wanted: ChatOptions, said: str | None
) -> "AsyncIterator[str]":
    """Return what will be said; a new session without anything to say is refused."""
    from holdfast.cli.chat.stdin import lines_of_stdin, sayings

    # A turn that was left open is reason enough; and a program may have nothing to say yet.
    if wanted.input is InputForm.NDJSON or (wanted.resume is not None and said is None):
        return lines_of_stdin()
    # A program may want to see its session opened before it says something.
    return await sayings(said, patient=not printer.is_json)


async def _said(conversation: "Conversation", incoming: "AsyncIterator[str]") -> int:
    """Say one thing, or each line of stdin, and end with the code of the last turn."""
    # That it was opened or resumed is news too, also where nothing is said.
    await conversation.catch_up()
    session = await conversation.session()
    if session.turn > session.settled:
        await _behind(conversation, session.turn, incoming)
    else:
        # It may have been ended between the two lines above.
        await conversation.catch_up()
    if not conversation.has_finished():
        async for text in incoming:
            await conversation.say(text)
            if conversation.has_finished():
                break
    return _code(conversation)


def _code(conversation: "Conversation") -> int:
    from holdfast.cli.errors import EXIT_CODES, INTERRUPTED, turn_code
    from holdfast.domain.errors import Conflict

    if conversation.is_left:
        return _left(conversation.screen)
    if conversation.signals.is_leaving:
        return INTERRUPTED
    # Closed from elsewhere, so not all of it may have been said or answered.
    if conversation.is_over:
        return EXIT_CODES[Conflict]
    return turn_code(conversation.last) if conversation.last is not None else 0


async def _behind(conversation: "Conversation", turn: int, incoming: "AsyncIterator[str]") -> None:
    """Show an open turn to its end; what is said meanwhile is on disk before that, and comes next.

    The answer to a new message belongs behind what was left open.
    """
    saying = asyncio.create_task(_put_next(conversation, turn, incoming))
    try:
        await conversation.settle(turn)
        message = None if conversation.has_finished() else await saying
    finally:
        saying.cancel()
        await asyncio.wait([saying])
    if message is not None and message.turn > turn:
        await conversation.settle(message.turn, own=True)


async def _put_next(
    conversation: "Conversation", turn: int, incoming: "AsyncIterator[str]"
) -> "Message | None":
    text = await anext(incoming, None)
    if text is None:
        return None
    await conversation.until_begun(turn)
    message = await conversation.put(text)
    if conversation.is_theirs:
        conversation.screen.remark(
            "Another process plays a turn of this session; what you said is saved and comes next."
        )
    return message


def _left(aside: "Printer | Screen") -> int:
    from holdfast.cli.errors import INTERRUPTED

    aside.remark("Left; what was said is saved, and an open turn goes on when it is resumed.")
    return INTERRUPTED


def register(app: typer.Typer) -> None:
    """Put the command, and the other name of its --resume, into the command line."""
    command(app, "chat", ChatOptions)(chat)
    command(app, "chat-resume", ResumeOptions)(chat_resume)
