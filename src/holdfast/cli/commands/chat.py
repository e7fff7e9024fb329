"""`holdfast chat`: open or resume a session, and converse in it."""

import asyncio
import dataclasses
from typing import TYPE_CHECKING

import typer

from holdfast.cli.approval_policy import attendance_policy
from holdfast.cli.command import command
from holdfast.cli.options import ChatOptions, InputForm, ResumeOptions
from holdfast.cli.output import Printer
from holdfast.domain.errors import HoldfastError, Invalid

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.cli.chat.attachments import FileSources
    from holdfast.cli.chat.conversation import ChatConversation, SignalHandler
    from holdfast.cli.chat.screen import ChatScreen
    from holdfast.cli.chat.stdin import Content
    from holdfast.domain.messages import Message

app = typer.Typer()


@command(app, "chat")
async def chat(printer: Printer, chat_options: ChatOptions) -> int:
    """Chat with an agent.

    The session is saved as it happens. At a terminal, Ctrl-C stops the answer, Ctrl-D leaves and
    /help lists commands. An agent asks before it changes something; without a terminal such calls
    are denied unless --yes-to allows them. With --json, stdout has one JSON event per line. Without
    a terminal, the exit code is that of the last turn.
    """
    from holdfast.cli.chat.conversation import SignalHandler
    from holdfast.cli.chat.stdin import read_all
    from holdfast.domain.messages import Text, require_sendable

    # Before anything is opened: an invalid message must not leave an empty session.
    said = read_all() if chat_options.prompt == "-" else chat_options.prompt
    if said is not None:
        require_sendable((Text(text=said),))
    signals = SignalHandler()
    try:
        with signals:
            return await _converse(printer, chat_options, said, signals)
    except asyncio.CancelledError:
        # Cancelled by other code than our signal handler: must not be swallowed.
        if not signals.is_leaving:
            raise
        return _exit_code_when_left(printer)


@command(app, "chat-resume")
async def chat_resume(printer: Printer, chat_options: ResumeOptions) -> int:
    """Resume a session.

    Prints the last turns, completes an interrupted turn, then continues the chat; same as `chat
    --resume`.
    """
    options = ChatOptions(
        resume=chat_options.resume,
        prompt=chat_options.prompt,
        all=chat_options.all,
        cwd=chat_options.cwd,
        attach=chat_options.attach,
        yes_to=chat_options.yes_to,
    )
    return await chat(printer, options)


async def _converse(
    printer: Printer, chat_options: ChatOptions, text: str | None, signals: "SignalHandler"
) -> int:
    from holdfast.cli.chat.attachments import FileSources
    from holdfast.cli.chat.session import (
        open_conversation,
        require_resumable_options,
        unnamed_model,
    )
    from holdfast.cli.connect import connect

    require_resumable_options(chat_options)
    policy = attendance_policy(printer, chat_options.yes_to)
    is_typed = text is None and chat_options.input is InputForm.TEXT
    policy = dataclasses.replace(policy, converses=is_typed and policy.asks)
    incoming = None
    if not policy.converses:
        incoming = await _read_messages(printer, chat_options, text)
    flags = {"chat.fs_scope": chat_options.fs_scope}
    # The configuration's own rule is used, because its error names the key to edit; a server
    # decides about its own folders.
    config = printer.settings.load(None if policy.is_remote else flags)
    async with connect(printer, "own", policy=policy) as holdfast:
        conversation = await open_conversation(printer, holdfast, chat_options, signals, policy)
        if incoming is None:
            # Imported here, because only an interactive chat needs prompt_toolkit.
            from holdfast.cli.chat.repl import run_repl

            return await run_repl(
                printer,
                conversation,
                config,
                resumed=chat_options.resume,
                whole=chat_options.all,
            )
        if (notice := await unnamed_model(printer, conversation)) is not None:
            printer.remark(notice)
        if chat_options.input is InputForm.NDJSON:
            from holdfast.cli.chat.stdin import read_lines, send_each

            try:
                await send_each(conversation, read_lines())
            except Invalid:
                await _delete_unused(conversation, is_new=chat_options.resume is None)
                raise
            return _code(conversation)
        if text is not None and (chat_options.attach or "@" in text):
            config = printer.settings.load(None if policy.is_remote else flags)
            sources = FileSources(config, is_remote=policy.is_remote)
            incoming = await _with_files(conversation, chat_options, text, sources)
        return await _send_all(conversation, incoming, has_message=text is not None)


async def _with_files(
    conversation: "ChatConversation", options: ChatOptions, text: str, sources: "FileSources"
) -> "AsyncIterator[Content]":
    """Return the only message with its files; refuse one with a file that cannot be attached."""
    from holdfast.cli.chat.stdin import single_message

    session = await conversation.session()
    try:
        files = await asyncio.to_thread(sources.read_given, options.attach or ())
        # The text of stdin is sent unchanged: `@` may have another meaning there.
        if options.prompt != "-":
            files += await asyncio.to_thread(sources.read_named, text, session, is_strict=True)
        return single_message(await conversation.store_files(text, files, session))
    except HoldfastError:
        await _delete_unused(conversation, is_new=options.resume is None)
        raise


async def _delete_unused(conversation: "ChatConversation", *, is_new: bool) -> None:
    """Delete a new session whose first message was refused."""
    session = await conversation.session()
    if is_new and not session.message_count:
        holdfast = conversation.holdfast
        await holdfast.sessions.delete(holdfast.owner, session.id)


async def _read_messages(
    printer: Printer, chat_options: ChatOptions, text: str | None
) -> "AsyncIterator[Content]":
    """Return the messages to send; refuse a new session without any."""
    from holdfast.cli.chat.stdin import input_messages, read_lines

    # An unfinished turn needs no message, and a program may send its first one later.
    if chat_options.input is InputForm.NDJSON or (chat_options.resume is not None and text is None):
        return read_lines()
    # A program may wait for the opening event before it sends a message.
    return await input_messages(text, patient=not printer.is_json)


async def _send_all(
    conversation: "ChatConversation", incoming: "AsyncIterator[Content]", *, has_message: bool
) -> int:
    """Send one message, or each line of stdin; return the exit code of the last turn."""
    # With a message at hand and no open turn, the stream of its turn shows all that came before.
    if not has_message or not conversation.idle.is_set():
        await _show_open_turn(conversation, incoming)
    if not conversation.has_finished():
        async for text in incoming:
            await conversation.say(text)
            if conversation.has_finished():
                break
    return _code(conversation)


async def _show_open_turn(
    conversation: "ChatConversation", incoming: "AsyncIterator[Content]"
) -> None:
    """Show what happened so far, and an open turn to its end."""
    # The opening or resuming event is shown, even if nothing is sent.
    await conversation.catch_up()
    session = await conversation.session()
    if session.turn > session.settled:
        await _send_during_turn(conversation, session.turn, incoming)
    else:
        # The session may have been closed between the two lines above (race).
        await conversation.catch_up()


def _code(conversation: "ChatConversation") -> int:
    from holdfast.cli.errors import EXIT_CODES, INTERRUPTED, turn_code
    from holdfast.domain.errors import Conflict

    if conversation.is_left:
        return _exit_code_when_left(conversation.screen)
    if conversation.signals.is_leaving:
        return INTERRUPTED
    # Closed by another client, so some messages may not have been sent or answered.
    if conversation.is_over:
        return EXIT_CODES[Conflict]
    return turn_code(conversation.last) if conversation.last is not None else 0


async def _send_during_turn(
    conversation: "ChatConversation", turn: int, incoming: "AsyncIterator[Content]"
) -> None:
    """Show an open turn to its end; messages sent meanwhile are stored and queued after it.

    The answer to a new message must follow the unfinished turn.
    """
    saying = asyncio.create_task(_queue_next(conversation, turn, incoming))
    try:
        await conversation.follow_turn(turn)
        message = None if conversation.has_finished() else await saying
    finally:
        saying.cancel()
        await asyncio.wait([saying])
    if message is not None and message.turn > turn:
        await conversation.follow_turn(message.turn, own=True)


async def _queue_next(
    conversation: "ChatConversation", turn: int, incoming: "AsyncIterator[Content]"
) -> "Message | None":
    text = await anext(incoming, None)
    if text is None:
        return None
    await conversation.wait_for_start(turn)
    message = await conversation.send(text)
    if conversation.runs_elsewhere:
        conversation.screen.remark(
            "Another process is running a turn of this session; your message is saved "
            "and runs next."
        )
    return message


def _exit_code_when_left(aside: "Printer | ChatScreen") -> int:
    from holdfast.cli.errors import INTERRUPTED

    aside.remark(
        "Left the chat; the session is saved, and an open turn continues when it is resumed."
    )
    return INTERRUPTED
