"""Conversing at a terminal: line by line, with commands behind a slash."""

import asyncio
import sys
from typing import Any, Final

from holdfast import __version__
from holdfast.cli.conversation import Conversation
from holdfast.cli.output import Printer
from holdfast.cli.prompts import PressedError, Prompt
from holdfast.cli.slash import REGISTRY, SHOWN_TURNS, obey
from holdfast.cli.slashes import Talk
from holdfast.cli.stream import first_model, known_models
from holdfast.cli.transcript import last_turns, lines_of_turns
from holdfast.domain.agents import LlmRuntime
from holdfast.domain.errors import Code, HoldfastError

_THEIRS: Final = "Another process plays this turn; reading along (Ctrl-C stops it)."


async def talk(
    printer: Printer, conversation: Conversation, *, resumed: str | None, whole: bool
) -> int:
    """Converse until the person leaves; a chat that was left ends with 0."""
    # At the prompt Ctrl-C is a key that is asked about; as a signal it would make us leave.
    conversation.signals.has_prompt = True
    await _greet(printer, conversation)
    if resumed is not None:
        await _recall(printer, conversation, None if whole else SHOWN_TURNS)
    prompt = Prompt([f"/{each.name}" for each in REGISTRY])
    talk_of = Talk(printer, conversation)
    presses = 0
    while not conversation.has_finished():
        try:
            line = await _next_line(prompt, conversation)
        except PressedError:
            presses += 1
            if presses == 2:
                break
            printer.remark("Ctrl-C again, or Ctrl-D, leaves.")
            continue
        presses = 0
        # Left at a question that somebody else's turn had asked.
        if conversation.has_finished():
            break
        if line is None or await _is_last(talk_of, line):
            break
    _part(printer, conversation)
    return 0


async def _next_line(prompt: Prompt, conversation: Conversation) -> str | None:
    """Return what is typed; a question that comes up meanwhile goes first, and the line waits."""
    while not conversation.has_finished():
        typing = asyncio.create_task(prompt.line())
        watching = asyncio.create_task(conversation.until_asked())
        try:
            await asyncio.wait({typing, watching}, return_when=asyncio.FIRST_COMPLETED)
            # What cannot be watched can still be talked to, and then says itself what is wrong.
            if typing.done() or watching.exception() is not None:
                return await typing
        finally:
            await _stopped(typing, watching)
        await conversation.join()
    return None


async def _stopped(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    # Until the prompt has put the terminal back, nothing can be written to it.
    await asyncio.wait(tasks)


async def _is_last(talk_of: Talk, line: str) -> bool:
    """Do what a line says; an error is told, and the conversation goes on."""
    try:
        if not line.strip():
            return False
        if line.startswith("/") and not line.startswith("//"):
            return await obey(talk_of, line)
        await talk_of.conversation.say(line.removeprefix("/"))
    except HoldfastError as error:
        talk_of.printer.warn(f"holdfast: {error.message}")
        # Closed from elsewhere: there is nothing more to say here until it is resumed.
        talk_of.conversation.is_over = error.code is Code.SESSION_CLOSED
    return False


async def _greet(printer: Printer, conversation: Conversation) -> None:
    session = await conversation.session()
    holdfast = conversation.holdfast
    model = first_model(session, await known_models(holdfast), holdfast.config.default_model)
    # An agent with a program of its own chooses its own model.
    asked = f", model {model}" if isinstance(session.agent.runtime, LlmRuntime) else ""
    printer.remark(
        f"Holdfast {__version__}, agent {session.agent.slug}{asked}, session {session.id}\n"
        "/help shows the commands, Ctrl-C stops an answer, Ctrl-D leaves."
    )


async def _recall(printer: Printer, conversation: Conversation, most: int | None) -> None:
    """Print the past, then play the turn that was left open or waits."""
    session = await conversation.session()
    for line in lines_of_turns(await last_turns(conversation.holdfast, session, most)):
        printer.line(line)
    # Before the remark, which goes to stderr and would overtake it.
    sys.stdout.flush()
    if session.turn > session.settled:
        printer.remark(_THEIRS if conversation.is_theirs else "A turn was left open; it goes on.")
        await conversation.settle(session.turn)
    else:
        # It may have been ended since the session was picked up.
        await conversation.catch_up()


def _part(printer: Printer, conversation: Conversation) -> None:
    if conversation.is_over:
        printer.remark(f"Session {conversation.session_id} is closed and saved.")
    else:
        if conversation.is_left:
            printer.remark("The question waits; `holdfast approvals list` shows it.")
        printer.remark(
            f"Session {conversation.session_id} is saved; "
            f"`holdfast chat --resume {conversation.session_id}` goes on."
        )
