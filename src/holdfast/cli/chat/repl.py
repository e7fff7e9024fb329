"""The interactive loop: greeting, completion, history, `@file` attachments, sending, leaving."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from prompt_toolkit.completion import Completer, Completion
from prompt_toolkit.history import History

from holdfast import __version__
from holdfast.cli.chat.attachments import FileSources, attachable_folder
from holdfast.cli.chat.conversation import ChatConversation, cancel_tasks, wait_for_first
from holdfast.cli.chat.live_page import LivePage
from holdfast.cli.chat.prompt import (
    PROMPT_SIGN,
    AnswerPrompt,
    EndPressedError,
    InterruptPressedError,
    MessagePrompt,
    PromptRegion,
    PromptSettings,
)
from holdfast.cli.chat.screen import TextScreen
from holdfast.cli.chat.session import unnamed_model
from holdfast.cli.chat.slash_commands import REGISTRY, SHOWN_TURNS, SlashContext, run_slash_command
from holdfast.cli.chat.status_line import StatusLine
from holdfast.cli.chat.transcript import last_turns, lines_of_turns
from holdfast.cli.json_stream import first_model, known_models
from holdfast.cli.output import Printer
from holdfast.config.models import DEFAULT_MODELS
from holdfast.domain.agents import LlmRuntime
from holdfast.domain.errors import Code, HoldfastError
from holdfast.domain.messages import Role
from holdfast.domain.models import OFFLINE, model_of
from holdfast.domain.queries import SessionOrder, SessionQuery
from holdfast.domain.text import clean

if TYPE_CHECKING:
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    from holdfast.api import Holdfast
    from holdfast.cli.chat.conversation import ChatConversation
    from holdfast.cli.chat.slash_commands import SlashCommand
    from holdfast.cli.output import Printer
    from holdfast.config import Config


_ENTRIES_MOST: Final = 2_000


class ChatCompleter(Completer):
    """Completes slash commands, and file names in a folder."""

    def __init__(self, registry: "Sequence[SlashCommand]", folder: str) -> None:
        self._registry = registry
        self._folder = folder

    def get_completions(
        self, document: "Document", complete_event: "CompleteEvent"
    ) -> Iterable[Completion]:
        """Yield the completions at the cursor."""
        text = document.text_before_cursor
        if text.startswith("/") and "\n" not in text:
            yield from self._commands(text)
            return
        word = text.rsplit(None, 1)[-1] if text and not text[-1].isspace() else ""
        if word.startswith("@"):
            yield from self._files(word[1:])

    def _commands(self, text: str) -> Iterator[Completion]:
        name, space, begun = text[1:].partition(" ")
        if not space:
            for each in self._registry:
                if each.name.startswith(name.lower()):
                    yield Completion(
                        f"/{each.name}", -len(text), display=each.usage, display_meta=each.help
                    )
            return
        choices = next((each.choices for each in self._registry if each.name == name.lower()), ())
        yield from (Completion(each, -len(begun)) for each in choices if each.startswith(begun))

    def _files(self, prefix: str) -> Iterator[Completion]:
        folder, _, beginning = prefix.removeprefix('"').rpartition("/")
        shown = f"{folder}/" if folder or prefix.startswith("/") else ""
        for name, is_folder in sorted(_entries(os.path.join(self._folder, shown))):
            is_hidden = name.startswith(".") and not beginning.startswith(".")
            if is_hidden or not name.startswith(beginning):
                continue
            whole = f"{shown}{name}{'/' if is_folder else ''}"
            quote = '"' if " " in whole else ""
            # A folder's quote stays open, because its name continues.
            yield Completion(f"@{quote}{whole}{'' if is_folder else quote}", -len(prefix) - 1)


def _entries(folder: str) -> Iterator[tuple[str, bool]]:
    try:
        with os.scandir(folder) as found:
            for each, _ in zip(found, range(_ENTRIES_MOST), strict=False):
                # A name with control characters cannot be typed either.
                if each.name == clean(each.name) and "\n" not in each.name:
                    yield each.name, each.is_dir()
    except OSError:
        return


SESSIONS_MOST: Final = 8
ROWS_MOST: Final = 100
LONGEST: Final = 10_000


class PromptHistory(History):
    """Lines of this conversation, then user messages of the last sessions."""

    def __init__(self, holdfast: "Holdfast") -> None:
        super().__init__()
        self._holdfast = holdfast

    async def load(self) -> AsyncGenerator[str, None]:
        """Yield the lines, the newest first; the store is read once."""
        if not self._loaded:
            self._loaded = True
            self._loaded_strings += await self._past()
        for line in self._loaded_strings:
            yield line

    def load_history_strings(self) -> Iterable[str]:
        """Return nothing: reading takes time and is done by `load`."""
        return ()

    def store_string(self, string: str) -> None:
        """Do nothing: sent messages are in the store."""

    async def _past(self) -> list[str]:
        try:
            return [line async for line in _past_messages(self._holdfast)]
        except HoldfastError:
            # The history is optional; a connection error is reported when something is sent.
            return []


async def _past_messages(holdfast: "Holdfast") -> AsyncGenerator[str, None]:
    query = SessionQuery(owner=holdfast.owner, order=SessionOrder.UPDATED_AT, limit=SESSIONS_MOST)
    last = None
    for session in (await holdfast.sessions.list(query)).items:
        rows = await holdfast.messages.list(
            holdfast.owner, session.id, before=session.message_count + 1, limit=ROWS_MOST
        )
        for row in reversed(rows.items):
            said = row.text
            if row.role is Role.USER and said != last and 0 < len(said) <= LONGEST:
                last = said
                yield said


_OTHER_PROCESS: Final = "Another process is running this turn; following it (Ctrl-C stops it)."
_UNFINISHED_TURN: Final = "Continuing an interrupted turn."


async def greet(printer: "Printer", conversation: "ChatConversation") -> None:
    """Print the agent, the model and a first hint."""
    session = await conversation.session()
    model = await _model(conversation)
    # An external agent chooses its own model.
    is_asked = isinstance(session.agent.runtime, LlmRuntime)
    model_text = f", model {model}" if is_asked else ""
    printer.remark(
        f"Holdfast {__version__}, agent {session.agent.slug}{model_text}\nSession {session.id}\n"
        "/help shows the commands, Ctrl-C stops an answer, Ctrl-D leaves."
    )
    is_unset = model == OFFLINE == (await conversation.holdfast.defaults()).model
    # A server's keys are configured where it runs.
    if is_asked and is_unset and printer.settings.server is None:
        printer.remark(_guidance())
    elif (notice := await unnamed_model(printer, conversation)) is not None:
        printer.remark(notice)


async def print_past(
    printer: "Printer", conversation: "ChatConversation", most: int | None
) -> None:
    """Print the past, and report what happens to an unfinished or queued turn."""
    session, screen = await conversation.session(), conversation.screen
    page = screen.page if isinstance(screen, TextScreen) else None
    past = await last_turns(conversation.holdfast, session, most)
    if isinstance(page, LivePage):
        for turn in past:
            page.show_past(turn)
    else:
        for line in lines_of_turns(past):
            printer.line(line)
    # Flushed before the remark, because stderr would overtake it.
    sys.stdout.flush()
    if session.turn > session.settled:
        printer.remark(_OTHER_PROCESS if conversation.runs_elsewhere else _UNFINISHED_TURN)


async def build_status_line(conversation: "ChatConversation") -> StatusLine:
    """Return the status line, initialized from the session."""
    holdfast = conversation.holdfast
    models = {each.id: each for each in await holdfast.models.list()}
    meter = StatusLine(models, await _model(conversation))
    await meter.recall(holdfast, await conversation.session())
    return meter


def print_end(printer: "Printer", conversation: "ChatConversation") -> None:
    """Print that the session is saved, and how to resume it."""
    if conversation.is_over:
        printer.remark(f"Session {conversation.session_id} is closed and saved.")
        return
    if conversation.is_left:
        printer.remark("The approval request is pending; `holdfast approvals list` shows it.")
    elif not conversation.idle.is_set():
        printer.remark("A turn is still open; it continues when the session is resumed.")
    printer.remark(
        f"Session {conversation.session_id} is saved; resume it with `holdfast chat "
        f"--resume {conversation.session_id}`."
    )


async def _model(conversation: "ChatConversation") -> str:
    holdfast = conversation.holdfast
    models = await known_models(holdfast)
    default = (await holdfast.defaults()).model
    return first_model(await conversation.session(), models, default)


def _guidance() -> str:
    """Return how to configure a model, if none was chosen."""
    usual = next(iter(DEFAULT_MODELS.values()))
    first, *others = [model_of(ref).provider for ref in DEFAULT_MODELS.values()]
    return (
        "No provider key is set, so the built-in offline model answers.\n"
        f"To use a real model: `holdfast key set {first}` (or {', '.join(others)}), "
        "then\n"
        f"`holdfast chat --model {usual}`; set HOLDFAST_MODEL to make it the default."
    )


_BOLD: Final = "1"
_NOT_STARTED: Final = "The turn has not started yet; press Ctrl-C again to leave it waiting."
_NO_TURNS: Final = (
    "This session has used its {} turns ([limits].attended_turn_cap for new sessions); the message "
    "was not sent."
)
_FEW_TURNS: Final = "Turns left in this session: {}; /cap N raises its turn cap."
_LEAVING: Final = "Leaving when the turn ends; press Ctrl-D again to leave now, with the turn open."


async def run_repl(
    printer: "Printer",
    conversation: "ChatConversation",
    config: "Config",
    *,
    resumed: str | None,
    whole: bool,
) -> int:
    """Run the conversation until the person leaves; leaving a chat exits with 0.

    `config` is that of this machine: it limits which files can be attached.
    """
    # At the prompt Ctrl-C is a key binding; as a signal it would end the chat.
    conversation.signals.has_prompt = True
    talking = _Repl(printer, conversation, config)
    # From the beginning: a followed turn can be stopped while its past is printed.
    heeding = asyncio.create_task(talking.handle_signals())
    try:
        await greet(printer, conversation)
        if resumed is not None:
            await print_past(printer, conversation, None if whole else SHOWN_TURNS)
        await talking.run(await build_status_line(conversation))
    finally:
        await cancel_tasks(heeding)
    print_end(printer, conversation)
    return 0


class _Repl:
    """A person at a terminal, and a session whose events are shown meanwhile."""

    def __init__(
        self, printer: "Printer", conversation: "ChatConversation", config: "Config"
    ) -> None:
        self._printer = printer
        self._config = config
        self._conversation = conversation
        self._is_remote = printer.settings.server is not None
        self._page: LivePage | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._is_in_vain = False
        self._presses = 0
        self._is_leaving = False

    async def run(self, meter: StatusLine) -> None:
        """Read and handle lines until the person leaves or the session is closed."""
        conversation, self._status_line = self._conversation, meter
        self._prompt = await self._new_prompt()
        self._watching = asyncio.create_task(conversation.watch())
        try:
            while not conversation.has_finished():
                try:
                    line = await self._line()
                except InterruptPressedError:
                    if self._is_last_press():
                        break
                    continue
                if conversation.has_finished() or await self._is_last(line):
                    break
        finally:
            await cancel_tasks(self._watching, self._stopping)
            conversation.screen.pause()

    async def _new_prompt(self) -> MessagePrompt:
        conversation, screen = self._conversation, self._conversation.screen
        folder = attachable_folder(await conversation.session(), is_remote=self._is_remote)
        completer, history = ChatCompleter(REGISTRY, folder), PromptHistory(conversation.holdfast)
        page = screen.page if isinstance(screen, TextScreen) else None
        if isinstance(screen, TextScreen):
            screen.meter = self._status_line
        if not isinstance(page, LivePage) or not isinstance(page.region, PromptRegion):
            return MessagePrompt(completer, history)
        self._page = page
        around = PromptSettings(
            region=page.region,
            meter=self._status_line.line,
            stop=self._stop,
            is_colored=page.is_colored,
        )
        return MessagePrompt(completer, history, around)

    async def _line(self) -> str | None:
        """Return the typed line; None when the person leaves. A question takes precedence."""
        conversation = self._conversation
        while not conversation.has_finished():
            if self._page is None:
                await wait_for_first(conversation.idle.wait(), self._watching)
            async with conversation.keyboard.for_line():
                typing = asyncio.create_task(self._prompt.line())
                ends = [conversation.idle.wait()] if self._is_leaving else []
                wanted = conversation.keyboard.is_wanted.wait()
                try:
                    await wait_for_first(typing, self._watching, wanted, *ends)
                    if typing.done():
                        return typing.result()
                finally:
                    # Until the prompt has restored the terminal, nothing can be written to it.
                    await cancel_tasks(typing)
            if self._watching.done():
                self._watching.result()
            if self._is_leaving and conversation.idle.is_set():
                break
        return None

    async def _is_last(self, line: str | None) -> bool:
        """Handle a line, and return whether to leave the chat."""
        if line is None:
            return self._may_leave()
        self._presses, self._is_leaving, self._is_in_vain = 0, False, False
        try:
            if line.startswith("/") and not line.startswith("//"):
                return await self._run_slash_command(line) and self._may_leave()
            if line.strip():
                await self._send(line)
        except HoldfastError as error:
            self._printer.warn(f"holdfast: {error.message}")
            # Closed by another client: nothing can be sent until the session is resumed.
            self._conversation.is_over = error.code is Code.SESSION_CLOSED
        return False

    async def _run_slash_command(self, line: str) -> bool:
        conversation = self._conversation
        if self._page is not None:
            self._printer.line(f"{PROMPT_SIGN}{line}", style=_BOLD)
        before = conversation.session_id
        is_left = await run_slash_command(SlashContext(self._printer, conversation), line)
        self._printer.flush()
        if conversation.session_id != before:
            await cancel_tasks(self._watching)
            if self._page is not None:
                self._page.drop_queued()
            self._watching = asyncio.create_task(conversation.watch())
        await self._status_line.recall(conversation.holdfast, await conversation.session())
        return is_left

    async def _send(self, line: str) -> None:
        conversation = self._conversation
        left = await conversation.turns_left()
        if left == 0 and not await self._continues_past_cap():
            if self._page is not None:
                self._prompt.begin_with(line)
            return
        session, text = await conversation.session(), line.removeprefix("/")
        try:
            sources = FileSources(self._config, is_remote=self._is_remote)
            files = await asyncio.to_thread(sources.read_named, text, session)
            await conversation.send(await conversation.store_files(text, files, session))
            if left:
                conversation.screen.remark(_FEW_TURNS.format(left - 1))
        except HoldfastError:
            # The line has been erased from the screen; restore it for correction.
            if self._page is not None:
                self._prompt.begin_with(line)
            raise

    async def _continues_past_cap(self) -> bool:
        """Ask what to do with a message past the turn cap; return whether it can be sent."""
        conversation = self._conversation
        cap = (await conversation.session()).turn_cap
        async with conversation.keyboard.for_question():
            conversation.screen.pause()
            self._printer.remark(_NO_TURNS.format(cap))
            try:
                answer = await AnswerPrompt().answer(
                    "r: raise the cap, f: fork, Enter: do not send? "
                )
            except (InterruptPressedError, EndPressedError):
                answer = ""
        match answer.strip().lower():
            case "r" | "raise":
                raised = await conversation.raise_cap()
                self._printer.remark(f"This session may now have {raised} turns.")
                return True
            case "f" | "fork":
                await self._run_slash_command("/fork")
                return True
            case _:
                return False

    def _may_leave(self) -> bool:
        """Return whether to leave now; a running turn is waited for once."""
        if self._conversation.is_over or self._conversation.idle.is_set() or self._is_leaving:
            return True
        self._is_leaving = True
        self._conversation.screen.remark(_LEAVING)
        return False

    def _is_last_press(self) -> bool:
        self._presses += 1
        if self._presses == 2 or not self._conversation.idle.is_set():
            return True
        self._conversation.screen.remark("Press Ctrl-C again, or Ctrl-D, to leave.")
        return False

    def _stop(self) -> bool:
        """Stop the running turn; return whether there is one that can be stopped."""
        is_under_way = self._stopping is not None and not self._stopping.done()
        if self._conversation.idle.is_set() or is_under_way or self._is_in_vain:
            return False
        self._stopping = asyncio.create_task(self._interrupt())
        return True

    async def _interrupt(self) -> None:
        screen = self._conversation.screen
        try:
            self._is_in_vain = not await self._conversation.interrupt()
        except HoldfastError as error:
            screen.remark(f"holdfast: {error.message}")
        if self._is_in_vain and not self._conversation.idle.is_set():
            screen.remark(_NOT_STARTED)

    async def handle_signals(self) -> None:
        """Stop the turn on a signal; a signal to leave takes effect after that."""
        signals = self._conversation.signals
        while True:
            with signals.turn(own=True) as stop:
                await stop.wait()
            was_in_vain = self._is_in_vain
            if not self._conversation.idle.is_set():
                await self._interrupt()
                if was_in_vain and self._is_in_vain:
                    signals.leave()
            if signals.is_leaving:
                signals.leave()
