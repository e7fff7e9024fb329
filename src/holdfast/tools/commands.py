"""`run_command`: one program from the list, without a shell, confined to the session's scope.

Which calls are on the list is `allowlists.py`; how a process is started is `launcher.py`.
"""

import errno
import json
import os
import shlex
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from holdfast.domain.text import is_encodable, visible
from holdfast.domain.tools import Effect, ResultCode, ToolClass
from holdfast.ports import RequestedCall, ToolWorkspace
from holdfast.tools.allowlists import has_entries, is_allowed
from holdfast.tools.children import NotStarted, Order
from holdfast.tools.launcher import Finished, Launcher
from holdfast.tools.listed_git import HardenedCall, hardened, names_git
from holdfast.tools.programs import Program, find_program
from holdfast.tools.scripts import Script, scripts_of
from holdfast.tools.supervisor.wards import ASIDE
from holdfast.tools.surroundings import ProcessSettings, Surroundings, surroundings_of
from holdfast.tools.threads import in_thread
from holdfast.tools.tool import Aim, Tool, ToolTrouble

Word = Annotated[str, Meta(max_length=(128 << 10) - 1)]

_SHOWN_LONGEST: Final = 300
_LOOKED_AT: Final = 4_096
_UNPROTECTED: Final = (
    "protected paths (.env, .git, …) are in its reach: this system has no mount namespaces"
)
# What programs say when they meet a cover.
_COVERED: Final = ("Read-only file system", "EROFS", "Device or resource busy", "EBUSY")

# What the plan of a call found, for the act that follows it in the same task: between looking
# twice something else could have been put there.
_planned: Final[ContextVar[tuple["CommandArguments", Order]]] = ContextVar("planned command")


class CommandArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `run_command` takes."""

    command: Annotated[str, Meta(min_length=1, max_length=4096)]
    args: Annotated[tuple[Word, ...], Meta(max_length=4096)] = ()
    timeout_s: Annotated[int, Meta(ge=1, le=600)] = 60

    def __post_init__(self) -> None:
        if any(each.isspace() for each in self.command):
            raise ValueError("A command is one word: put arguments in args")
        if not all("\x00" not in word and is_encodable(word) for word in self.call):
            raise ValueError("A word of a command holds neither NUL nor half a character")

    @property
    def call(self) -> tuple[str, ...]:
        """Return all words of the call."""
        return (self.command, *self.args)


def command_tools(settings: ProcessSettings, launcher: Launcher) -> tuple[Tool[Any], ...]:
    """Return the tools that run commands."""
    commands = _Commands(settings, launcher)
    return (
        Tool(
            name="run_command",
            description=(
                "Run one allowed program in the working directory and return its exit code and"
                " output. There is no shell: put each argument into args, unquoted."
            ),
            arguments=CommandArguments,
            effect=lambda _: Effect.UNSAFE,
            plan=commands.plan,
            act=commands.act,
            is_available=lambda place: has_entries(place.grants),
        ),
    )


class _Commands:
    def __init__(self, settings: ProcessSettings, launcher: Launcher) -> None:
        self._settings = settings
        self._launcher = launcher

    async def plan(self, place: ToolWorkspace, arguments: CommandArguments) -> Aim:
        if not is_allowed(place.grants, arguments.call):
            raise _not_allowed(arguments.call)
        around, program = await in_thread(lambda _: self._found(place, arguments))
        run = HardenedCall(argv=arguments.call, environment={})
        if names_git(arguments.call):
            run = await hardened(arguments.call, program, around, self._launcher)
        scripts = await in_thread(lambda _: scripts_of(arguments.call, program, around))
        order = Order(
            argv=run.argv,
            program=program.path,
            program_identity=program.identity,
            folder=around.folder,
            folder_identity=around.folder_identity,
            environment={**around.environment, **run.environment},
            confinement=replace(around.confinement(program), executable=run.executable),
        )
        _planned.set((arguments, order))
        is_protected = (await self._launcher.means()).mounts or self._settings.allows_unprotected
        question = _question(run.argv, program, around, scripts)
        return Aim(
            # It may write what runs later, and nothing here keeps it from doing so.
            tool_class=ToolClass.PROCESS if is_protected else ToolClass.SENSITIVE_WRITE,
            targets=(*_targets(program, around), *_more_targets(run, scripts)),
            question="\n".join(question if is_protected else [*question, _UNPROTECTED]),
            preview={"command": question[0]},
            memory=f"process:{json.dumps(arguments.call)}",
        )

    async def act(
        self, _: ToolWorkspace, arguments: CommandArguments, __: RequestedCall
    ) -> dict[str, Any]:
        planned, order = _planned.get((None, None))
        if order is None or planned != arguments:
            raise ToolTrouble(ResultCode.TARGET_CHANGED, "The call was not planned; ask again.")
        try:
            finished = await self._launcher.run(order, time_limit=arguments.timeout_s)
        except NotStarted as refused:
            raise not_started(refused, arguments.command) from None
        result = {
            "exit_code": finished.exit_code,
            "stdout": finished.stdout,
            "stderr": finished.stderr,
            "duration_ms": finished.duration_ms,
            "timed_out": finished.timed_out,
        }
        notices = list(_notices(finished, order.folder))
        return result | ({"notices": notices} if notices else {})

    def _found(
        self, place: ToolWorkspace, arguments: CommandArguments
    ) -> tuple[Surroundings, Program]:
        around = surroundings_of(place, self._settings)
        program = find_program(arguments.command, path=around.path, folder=around.folder)
        if program is None:
            raise ToolTrouble(
                ResultCode.UNAVAILABLE,
                f"{visible(arguments.command)} is allowed, but there is no such program here.",
            )
        return around, program


def shown(call: tuple[str, ...]) -> str:
    """Return all words of a call on one line, each in quotes, with nothing that hides."""
    return " ".join(_quoted(visible(word)) for word in call)


def not_started(refused: NotStarted, command: str) -> ToolTrouble:
    """Return what a call is told whose process did not start."""
    if refused.stage.endswith("-changed"):
        return ToolTrouble(
            ResultCode.TARGET_CHANGED,
            "The program or the working directory has changed since it was allowed; ask again.",
        )
    if refused.stage != "start":
        return ToolTrouble(
            ResultCode.UNAVAILABLE, f"The process could not be confined here: {refused}."
        )
    if refused.problem == errno.E2BIG:
        return ToolTrouble(ResultCode.TOO_LARGE, "The arguments are too long for one command.")
    return ToolTrouble(
        ResultCode.FAILED, f"{visible(command)} cannot be started: {refused.reason}."
    )


def _not_allowed(call: tuple[str, ...]) -> ToolTrouble:
    line = visible(shlex.join(call))
    entry = line if len(line) <= _SHOWN_LONGEST else f"{line[:_SHOWN_LONGEST]}…"
    return ToolTrouble(
        ResultCode.COMMAND_NOT_ALLOWED,
        "This command, word by word, is not on the list. Whoever wants it to run adds it to "
        f"[chat].allowed_commands (or to the agent's allowed commands): {entry}",
    )


def _notices(finished: Finished, folder: str) -> Iterator[str]:
    """Yield what the model has to know about protected paths that the command met."""
    for path in finished.moved_aside:
        name = visible(os.path.relpath(path, folder))
        yield (
            f"{name} is protected from commands: what this one put there was renamed to"
            f" {name}{ASIDE}."
        )
    said = finished.stdout[-_LOOKED_AT:] + finished.stderr[-_LOOKED_AT:]
    if finished.exit_code and any(each in said for each in _COVERED):
        yield (
            "Some paths are read-only for commands: .git for all but git itself, and files that"
            " run later, such as Makefile and package.json. Those of the second kind may be"
            " written by commands once the user adds their names to [chat].command_writes."
        )


def _targets(program: Program, around: Surroundings) -> tuple[str, ...]:
    return (
        f"program={program.real}",
        f"program_identity={program.identity}",
        f"folder={around.folder}",
        f"folder_identity={around.folder_identity}",
        f"environment={around.environment_hash()}",
        f"network={around.has_network}",
        f"jail={around.is_jailed}",
    )


def _more_targets(run: HardenedCall, scripts: tuple[Script, ...]) -> Iterator[str]:
    """Yield what else decides what a call does; nothing for most calls."""
    for script in scripts:
        yield f"script={_on_one_line(script.path)} {script.fingerprint}"
    if run.environment:
        # Where the configuration of a repository has changed, so have the overrides.
        yield f"git={json.dumps([run.argv, run.environment], sort_keys=True)}"


def _question(
    call: tuple[str, ...], program: Program, around: Surroundings, scripts: tuple[Script, ...]
) -> list[str]:
    lines = [shown(call), f"program: {visible(program.real)}", f"in: {visible(around.folder)}"]
    lines += ["with the network"] if around.has_network else []
    lines += [f"file: {_on_one_line(script.path)}" for script in scripts]
    foreign = [word for word in call if not word.isascii()]
    # Letters of other alphabets can look like ours; here every one is spelled out.
    lines += [f"not plain ASCII: {json.dumps(word)}" for word in foreign]
    return lines


def _on_one_line(path: str) -> str:
    text = path.encode("utf-8", "backslashreplace").decode()
    return visible(text).replace("\n", "\\n")


def _quoted(word: str) -> str:
    escaped = word.replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
