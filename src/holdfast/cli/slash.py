"""What a person can type behind a slash: one registry for help, completion and execution."""

import difflib
from typing import Final

from holdfast.cli import slash_work
from holdfast.cli.output import local_time
from holdfast.cli.session_verbs import forked
from holdfast.cli.slashes import Slash, Talk, WrongArgumentError, number, require_nothing
from holdfast.cli.transcript import last_turns, lines_of_turns
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.errors import Code, NotFound
from holdfast.domain.sessions import Status

SHOWN_TURNS: Final = 20


async def obey(talk: Talk, line: str) -> bool:
    """Do what a line with a slash says; tell whether the chat is left.

    What is unknown or wrong is answered here with one line and never sent to the agent.
    """
    word, _, argument = line[1:].strip().partition(" ")
    found = BY_NAME.get(word.lower())
    if found is None:
        nearest = difflib.get_close_matches(word.lower(), BY_NAME, n=1, cutoff=0.0)[0]
        talk.printer.warn(
            f"There is no /{word}; did you mean /{nearest}? To send it as text, write //{word}."
        )
        return False
    try:
        return await found.run(talk, argument.strip())
    except WrongArgumentError:
        talk.printer.warn(f"It is written {found.usage}.")
        return False


async def _help(talk: Talk, argument: str) -> bool:
    require_nothing(argument)
    width = max(len(each.usage) for each in REGISTRY)
    for each in REGISTRY:
        talk.printer.line(f"{each.usage:<{width}}  {each.help}")
    talk.printer.line(f"{'//text':<{width}}  send /text as it stands")
    return False


async def _exit(_: Talk, argument: str) -> bool:
    require_nothing(argument)
    return True


async def _end(talk: Talk, argument: str) -> bool:
    require_nothing(argument)
    return await _close(talk, Status.COMPLETED)


async def _cancel(talk: Talk, argument: str) -> bool:
    require_nothing(argument)
    if await talk.conversation.interrupt():
        return False
    return await _close(talk, Status.CANCELLED)


async def _close(talk: Talk, status: Status) -> bool:
    conversation = talk.conversation
    holdfast = conversation.holdfast
    await holdfast.sessions.close(holdfast.owner, conversation.session_id, status=status)
    # Nobody follows between turns, so the event that says it is not seen here.
    conversation.is_over = True
    return True


async def _history(talk: Talk, argument: str) -> bool:
    most = number(argument) if argument else SHOWN_TURNS
    session = await talk.conversation.session()
    for line in lines_of_turns(await last_turns(talk.conversation.holdfast, session, most)):
        talk.printer.line(line)
    return False


async def _status(talk: Talk, argument: str) -> bool:
    require_nothing(argument)
    session = await talk.conversation.session()
    talk.printer.line(
        f"{session.id}  {session.status}, {session.settled} turns, "
        f"{session.message_count} messages, {session.usage.input} tokens in and "
        f"{session.usage.output} out, since {local_time(session.created_at)}"
    )
    return False


async def _fork(talk: Talk, argument: str) -> bool:
    conversation = talk.conversation
    holdfast = conversation.holdfast
    at = await _last_row(talk, number(argument)) if argument else None
    fork = await forked(holdfast, conversation.session_id, at=at)
    talk.printer.line(f"This is session {fork.id} now; {conversation.session_id} stays as it is.")
    conversation.move_to(fork)
    return False


async def _last_row(talk: Talk, turn: int) -> int:
    """Return the number of the last message of a turn."""
    session = await talk.conversation.session()
    for past in await last_turns(talk.conversation.holdfast, session, None):
        if past.number == turn:
            return past.messages[-1].sequence
    raise NotFound(
        Code.MESSAGE_NOT_FOUND, f"There is no turn {turn}; /history shows those there are."
    )


REGISTRY: Final = (
    Slash("help", "/help", "show the commands", _help),
    Slash("exit", "/exit", "leave; the session stays open", _exit),
    Slash("end", "/end", "close the session as completed and leave", _end),
    Slash(
        "cancel",
        "/cancel",
        "stop the turn; without one, cancel the session",
        _cancel,
    ),
    Slash("history", "/history [N]", "show the last N turns, 20 by itself", _history),
    Slash("status", "/status", "show where the session stands", _status),
    Slash("cost", "/cost", "show what the session has cost, by model", slash_work.cost),
    Slash(
        "mode",
        f"/mode [{'|'.join(ApprovalMode)}]",
        "show or change what is asked about",
        slash_work.mode,
        tuple(ApprovalMode),
    ),
    Slash(
        "approvals", "/approvals", "show what was asked, and what was allowed", slash_work.approvals
    ),
    Slash("calls", "/calls", "show what the agent did", slash_work.calls),
    Slash("compact", "/compact", "sum up what came before the last answer", slash_work.compact),
    Slash("fork", "/fork [TURN]", "go on in a new session, from the end of a turn", _fork),
    Slash(
        "export",
        "/export [FILE] [--force]",
        "write the session out, as sessions export does",
        slash_work.export,
    ),
    Slash("doctor", "/doctor", "check the home and the store", slash_work.doctor),
)
BY_NAME: Final = {each.name: each for each in REGISTRY}
