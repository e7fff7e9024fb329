"""How a conversation at a terminal begins and ends: a greeting, the past, and how to come back."""

import sys
from typing import TYPE_CHECKING, Final

from holdfast import __version__
from holdfast.cli.live.drawing import LivePage
from holdfast.cli.live.meter import Meter
from holdfast.cli.screen import TextScreen
from holdfast.cli.stream import first_model, known_models
from holdfast.cli.transcript import last_turns, lines_of_turns
from holdfast.config.models import DEFAULT_MODELS
from holdfast.domain.agents import LlmRuntime
from holdfast.domain.models import OFFLINE, model_of

if TYPE_CHECKING:
    from holdfast.cli.conversation import Conversation
    from holdfast.cli.output import Printer

_THEIRS: Final = "Another process plays this turn; reading along (Ctrl-C stops it)."
_OPEN: Final = "A turn was left open; it goes on."


async def greet(printer: "Printer", conversation: "Conversation") -> None:
    """Say who answers, and where to begin."""
    session = await conversation.session()
    model = await _model(conversation)
    # An agent with a program of its own chooses its own model.
    is_asked = isinstance(session.agent.runtime, LlmRuntime)
    asked = f", model {model}" if is_asked else ""
    printer.remark(
        f"Holdfast {__version__}, agent {session.agent.slug}{asked}\nSession {session.id}\n"
        "/help shows the commands, Ctrl-C stops an answer, Ctrl-D leaves."
    )
    is_unset = model == OFFLINE == conversation.holdfast.config.default_model
    # A server's keys are set where it runs, by whoever runs it.
    if is_asked and is_unset and printer.settings.server is None:
        printer.remark(_guidance())


async def recall(printer: "Printer", conversation: "Conversation", most: int | None) -> None:
    """Print the past, and say what becomes of a turn that was left open or waits."""
    session, screen = await conversation.session(), conversation.screen
    page = screen.page if isinstance(screen, TextScreen) else None
    past = await last_turns(conversation.holdfast, session, most)
    if isinstance(page, LivePage):
        for turn in past:
            page.past(turn)
    else:
        for line in lines_of_turns(past):
            printer.line(line)
    # Before the remark, which goes to stderr and would overtake it.
    sys.stdout.flush()
    if session.turn > session.settled:
        printer.remark(_THEIRS if conversation.is_theirs else _OPEN)


async def meter_of(conversation: "Conversation") -> Meter:
    """Return what counts along, knowing where the session stands."""
    holdfast = conversation.holdfast
    models = {each.id: each for each in await holdfast.models.list()}
    meter = Meter(models, await _model(conversation))
    await meter.recall(holdfast, await conversation.session())
    return meter


def part(printer: "Printer", conversation: "Conversation") -> None:
    """Say that all is saved, and how to go on."""
    if conversation.is_over:
        printer.remark(f"Session {conversation.session_id} is closed and saved.")
        return
    if conversation.is_left:
        printer.remark("The question waits; `holdfast approvals list` shows it.")
    elif not conversation.is_calm.is_set():
        printer.remark("A turn is left open; it goes on when the session is resumed.")
    printer.remark(
        f"Session {conversation.session_id} is saved; "
        f"`holdfast chat --resume {conversation.session_id}` goes on."
    )


async def _model(conversation: "Conversation") -> str:
    holdfast = conversation.holdfast
    models = await known_models(holdfast)
    return first_model(await conversation.session(), models, holdfast.config.default_model)


def _guidance() -> str:
    """Say how a real model is reached, where nobody has chosen one."""
    usual = next(iter(DEFAULT_MODELS.values()))
    first, *others = [model_of(ref).provider for ref in DEFAULT_MODELS.values()]
    return (
        "No key of a provider is set, so the built-in offline model answers.\n"
        f"For a real one: `holdfast key set {first}` (or {', '.join(others)}), then\n"
        f"`holdfast chat --model {usual}`; HOLDFAST_MODEL keeps the choice."
    )
