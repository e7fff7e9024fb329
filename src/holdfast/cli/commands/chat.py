"""`holdfast chat`: open a session, or pick one up, and converse in it."""

import asyncio
import dataclasses
from typing import TYPE_CHECKING

import typer

from holdfast.cli.approval_policy import attendance_policy
from holdfast.cli.command import command
from holdfast.cli.options import ChatOptions, InputForm, ResumeOptions
from holdfast.cli.output import Printer
from holdfast.domain.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.cli.chat.conversation import ChatConversation, SignalHandler
    from holdfast.cli.chat.screen import ChatScreen
    from holdfast.domain.messages import Message


async def chat(printer: Printer, chat_options: ChatOptions) -> int:
    """Converse with an agent.

    Everything is saved as it happens. At a terminal, Ctrl-C stops the answer and Ctrl-D leaves;
    /help shows more. Before an agent changes something you are asked; in a pipe nobody can be, so
    it is not done unless --yes-to says so. With --json, stdout is one JSON event for each line. An
    unattended chat ends with the code of its last turn.
    """
    from holdfast.cli.chat.conversation import SignalHandler
    from holdfast.cli.chat.stdin import read_all
    from holdfast.domain.messages import Text, require_sendable

    # Before anything is opened: what cannot be said must not leave an empty session.
    said = read_all() if chat_options.prompt == "-" else chat_options.prompt
    if said is not None:
        require_sendable((Text(text=said),))
    signals = SignalHandler()
    try:
        with signals:
            return await _converse(printer, chat_options, said, signals)
    except asyncio.CancelledError:
        # Cancelled by somebody else than the person: not ours to swallow.
        if not signals.is_leaving:
            raise
        return _exit_code_when_left(printer)


async def chat_resume(printer: Printer, chat_options: ResumeOptions) -> int:
    """Pick a session up again.

    Prints its last turns, plays a turn that was left open, then converses; the same as
    `chat --resume`.
    """
    options = ChatOptions(
        resume=chat_options.resume,
        prompt=chat_options.prompt,
        all=chat_options.all,
        cwd=chat_options.cwd,
        yes_to=chat_options.yes_to,
    )
    return await chat(printer, options)


async def _converse(
    printer: Printer, chat_options: ChatOptions, said: str | None, signals: "SignalHandler"
) -> int:
    from holdfast.cli.chat.session import open_conversation, require_resumable_options
    from holdfast.cli.connect import connect

    require_resumable_options(chat_options)
    policy = attendance_policy(printer, chat_options.yes_to)
    is_typed = said is None and chat_options.input is InputForm.TEXT
    policy = dataclasses.replace(policy, converses=is_typed and policy.asks)
    incoming = None
    if not policy.converses:
        incoming = await _incoming(printer, chat_options, said)
    # By the configuration's own rule, which names the key that would have to be edited.
    flags = {"chat.fs_scope": chat_options.fs_scope}
    async with connect(printer, "own", policy=policy, flags=flags) as holdfast:
        conversation = await open_conversation(printer, holdfast, chat_options, signals, policy)
        if incoming is None:
            # Here, because only who types needs what reads keys.
            from holdfast.cli.chat.repl import run_repl

            return await run_repl(
                printer, conversation, resumed=chat_options.resume, whole=chat_options.all
            )
        if chat_options.input is InputForm.NDJSON:
            from holdfast.cli.chat.stdin import send_each

            try:
                await send_each(conversation, incoming)
            except Invalid:
                await _delete_unused(conversation, is_new=chat_options.resume is None)
                raise
            return _code(conversation)
        return await _send_all(conversation, incoming)


async def _delete_unused(conversation: "ChatConversation", *, is_new: bool) -> None:
    """Remove a session that was opened for what could not be said."""
    session = await conversation.session()
    if is_new and not session.message_count:
        holdfast = conversation.holdfast
        await holdfast.sessions.delete(holdfast.owner, session.id)


async def _incoming(
    printer: Printer, chat_options: ChatOptions, said: str | None
) -> "AsyncIterator[str]":
    """Return what will be said; a new session without anything to say is refused."""
    from holdfast.cli.chat.stdin import input_messages, read_lines

    # A turn that was left open is reason enough; and a program may have nothing to say yet.
    if chat_options.input is InputForm.NDJSON or (chat_options.resume is not None and said is None):
        return read_lines()
    # A program may want to see its session opened before it says something.
    return await input_messages(said, patient=not printer.is_json)


async def _send_all(conversation: "ChatConversation", incoming: "AsyncIterator[str]") -> int:
    """Say one thing, or each line of stdin, and end with the code of the last turn."""
    # That it was opened or resumed is news too, also where nothing is said.
    await conversation.catch_up()
    session = await conversation.session()
    if session.turn > session.settled:
        await _send_during_turn(conversation, session.turn, incoming)
    else:
        # It may have been ended between the two lines above.
        await conversation.catch_up()
    if not conversation.has_finished():
        async for text in incoming:
            await conversation.say(text)
            if conversation.has_finished():
                break
    return _code(conversation)


def _code(conversation: "ChatConversation") -> int:
    from holdfast.cli.errors import EXIT_CODES, INTERRUPTED, turn_code
    from holdfast.domain.errors import Conflict

    if conversation.is_left:
        return _exit_code_when_left(conversation.screen)
    if conversation.signals.is_leaving:
        return INTERRUPTED
    # Closed from elsewhere, so not all of it may have been said or answered.
    if conversation.is_over:
        return EXIT_CODES[Conflict]
    return turn_code(conversation.last) if conversation.last is not None else 0


async def _send_during_turn(
    conversation: "ChatConversation", turn: int, incoming: "AsyncIterator[str]"
) -> None:
    """Show an open turn to its end; what is said meanwhile is on disk before that, and comes next.

    The answer to a new message belongs behind what was left open.
    """
    saying = asyncio.create_task(_queue_next(conversation, turn, incoming))
    try:
        await conversation.settle(turn)
        message = None if conversation.has_finished() else await saying
    finally:
        saying.cancel()
        await asyncio.wait([saying])
    if message is not None and message.turn > turn:
        await conversation.settle(message.turn, own=True)


async def _queue_next(
    conversation: "ChatConversation", turn: int, incoming: "AsyncIterator[str]"
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


def _exit_code_when_left(aside: "Printer | ChatScreen") -> int:
    from holdfast.cli.errors import INTERRUPTED

    aside.remark("Left; what was said is saved, and an open turn goes on when it is resumed.")
    return INTERRUPTED


def register(app: typer.Typer) -> None:
    """Put the command, and the other name of its --resume, into the command line."""
    command(app, "chat", ChatOptions)(chat)
    command(app, "chat-resume", ResumeOptions)(chat_resume)
