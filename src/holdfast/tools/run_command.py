"""`run_command`: one program from the allowlist, without a shell, confined to the session's scope.

The allowlist is matched word by word, never against joined text. An approval covers the contents of
the scripts that a call names.
"""

import errno
import hashlib
import json
import os
import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import pairwise
from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from holdfast.domain.text import is_encodable, visible
from holdfast.domain.tools import Effect, Grant, ResultCode, ToolClass
from holdfast.ports.tools import RequestedCall, ToolWorkspace
from holdfast.process.cancellation import run_in_thread
from holdfast.process.child import ChildNotStarted, ChildOrder
from holdfast.process.environment import is_below
from holdfast.process.executables import Executable, find_executable
from holdfast.process.launcher import CommandResult, Launcher
from holdfast.process.supervisor.path_survey import ASIDE
from holdfast.tools.git.listed_command import HardenedCall, harden, names_git
from holdfast.tools.process_context import ProcessContext, ProcessSettings, process_context_of
from holdfast.tools.tool import CallPlan, LocalTool, ToolFailure

Words = tuple[str, ...]


def has_entries(grants: Sequence[Grant]) -> bool:
    """Return whether the grants can allow any command."""
    return bool(grants) and all(grant.commands or grant.command_globs for grant in grants)


def is_allowed(grants: Sequence[Grant], call: Words) -> bool:
    """Return whether every grant allows the call."""
    return bool(call and grants) and all(_grant_allows(grant, call) for grant in grants)


def _grant_allows(grant: Grant, call: Words) -> bool:
    if any(split_entry(entry) == call for entry in grant.commands):
        return True
    return any(_glob_allows(split_entry(entry), call) for entry in grant.command_globs)


def split_entry(entry: str) -> Words:
    """Split an entry into words; empty if its quotes do not match."""
    try:
        return tuple(shlex.split(entry))
    except ValueError:
        return ()


def _glob_allows(patterns: Words, call: Words) -> bool:
    # The configuration refuses these patterns too, but a grant may come from another source.
    if not patterns or set("*?") & set(patterns[0]) or "**" in patterns[:-1]:
        return False
    if patterns[-1] == "**":
        patterns, call = patterns[:-1], call[: len(patterns) - 1]
    return len(patterns) == len(call) and all(map(word_matches, patterns, call))


def word_matches(pattern: str, word: str) -> bool:
    """Return whether the pattern matches the whole word; `*` is any text, `?` one character.

    Backtracking only to the last star avoids exponential run time.
    """
    at = here = 0
    star, resume = -1, 0
    while here < len(word):
        if at < len(pattern) and pattern[at] == "*":
            star, resume = at, here
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", word[here]):
            at += 1
            here += 1
        elif star >= 0:
            resume += 1
            at, here = star + 1, resume
        else:
            return False
    return not pattern[at:].strip("*")


Word = Annotated[str, Meta(max_length=(128 << 10) - 1)]
_SHOWN_LONGEST: Final = 300
_INSPECTED_MOST: Final = 4_096
_UNPROTECTED: Final = (
    "protected paths (.env, .git, …) are in its reach: this system has no mount namespaces"
)
# Error messages of programs that try to write a covered path.
_COVERED: Final = ("Read-only file system", "EROFS", "Device or resource busy", "EBUSY")
# The plan of a call, reused by its act in the same task. Planning twice would allow the target to
# be replaced in between (TOCTOU).
_planned: Final[ContextVar[tuple["CommandArguments", ChildOrder]]] = ContextVar("planned command")


class CommandArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `run_command` takes."""

    command: Annotated[str, Meta(min_length=1, max_length=4096)]
    args: Annotated[tuple[Word, ...], Meta(max_length=4096)] = ()
    timeout_s: Annotated[int, Meta(ge=1, le=600)] = 60

    def __post_init__(self) -> None:
        if any(each.isspace() for each in self.command):
            raise ValueError("A command must be one word: put arguments in args")
        if not all("\x00" not in word and is_encodable(word) for word in self.call):
            raise ValueError("A word of a command must not contain NUL or a lone surrogate")

    @property
    def call(self) -> tuple[str, ...]:
        """Return all words of the call."""
        return (self.command, *self.args)


def command_tools(settings: ProcessSettings, launcher: Launcher) -> tuple[LocalTool[Any], ...]:
    """Return the tools that run commands."""
    commands = _Commands(settings, launcher)
    return (
        LocalTool(
            name="run_command",
            description=(
                "Run one allowed program in the working directory and return its exit code and"
                " output. There is no shell: put each argument into args, unquoted."
            ),
            arguments=CommandArguments,
            effect=lambda _: Effect.UNSAFE,
            plan=commands.plan,
            act=commands.act,
            is_available=lambda workspace: has_entries(workspace.grants),
        ),
    )


class _Commands:
    def __init__(self, settings: ProcessSettings, launcher: Launcher) -> None:
        self._settings = settings
        self._launcher = launcher

    async def plan(self, workspace: ToolWorkspace, arguments: CommandArguments) -> CallPlan:
        if not is_allowed(workspace.grants, arguments.call):
            raise _not_allowed(arguments.call)
        context, program = await run_in_thread(lambda _: self._find_program(workspace, arguments))
        run = HardenedCall(argv=arguments.call, environment={})
        if names_git(arguments.call):
            run = await harden(arguments.call, program, context, self._launcher)
        scripts = await run_in_thread(lambda _: scripts_of(arguments.call, program, context))
        order = ChildOrder(
            argv=run.argv,
            program=program.path,
            program_identity=program.identity,
            folder=context.folder,
            folder_identity=context.folder_identity,
            environment={**context.environment, **run.environment},
            confinement=replace(context.confinement(program), executable=run.executable),
        )
        _planned.set((arguments, order))
        is_protected = (await self._launcher.means()).mounts or self._settings.allows_unprotected
        question = _question(run.argv, program, context, scripts)
        return CallPlan(
            # Without covers, the command may write files that other programs run later.
            tool_class=ToolClass.PROCESS if is_protected else ToolClass.SENSITIVE_WRITE,
            targets=(*_targets(program, context), *_more_targets(run, scripts)),
            question="\n".join(question if is_protected else [*question, _UNPROTECTED]),
            preview={"command": question[0]},
            memory=f"process:{json.dumps(arguments.call)}",
        )

    async def act(
        self, _: ToolWorkspace, arguments: CommandArguments, __: RequestedCall
    ) -> dict[str, Any]:
        planned, order = _planned.get((None, None))
        if order is None or planned != arguments:
            raise ToolFailure(
                ResultCode.TARGET_CHANGED, "The call was not planned; request it again."
            )
        try:
            finished = await self._launcher.run(order, time_limit=arguments.timeout_s)
        except ChildNotStarted as refused:
            raise start_failure(refused, arguments.command) from None
        result = {
            "exit_code": finished.exit_code,
            "stdout": finished.stdout,
            "stderr": finished.stderr,
            "duration_ms": finished.duration_ms,
            "timed_out": finished.timed_out,
        }
        notices = list(_notices(finished, order.folder))
        return result | ({"notices": notices} if notices else {})

    def _find_program(
        self, workspace: ToolWorkspace, arguments: CommandArguments
    ) -> tuple[ProcessContext, Executable]:
        context = process_context_of(workspace, self._settings)
        program = find_executable(arguments.command, path=context.path, folder=context.folder)
        if program is None:
            raise ToolFailure(
                ResultCode.UNAVAILABLE,
                f"{visible(arguments.command)} is allowed, but the program does not exist here.",
            )
        return context, program


def format_call(call: tuple[str, ...]) -> str:
    """Return the words of a call on one line, quoted, with invisible characters escaped."""
    return " ".join(_quote(visible(word)) for word in call)


def start_failure(refused: ChildNotStarted, command: str) -> ToolFailure:
    """Return the failure of a call whose process did not start."""
    if refused.stage.endswith("-changed"):
        return ToolFailure(
            ResultCode.TARGET_CHANGED,
            "The program or the working directory has changed since the approval; "
            "request the call again.",
        )
    if refused.stage == "survey":
        return ToolFailure(
            ResultCode.UNAVAILABLE,
            "The workspace cannot be searched for protected paths, so the command was not run or"
            f" its new files were not checked: {refused.reason}. Make the folder readable.",
        )
    if refused.stage != "start":
        return ToolFailure(
            ResultCode.UNAVAILABLE, f"The process could not be sandboxed here: {refused}."
        )
    if refused.problem == errno.E2BIG:
        return ToolFailure(ResultCode.TOO_LARGE, "The arguments are too long for one command.")
    return ToolFailure(
        ResultCode.FAILED, f"{visible(command)} cannot be started: {refused.reason}."
    )


def _not_allowed(call: tuple[str, ...]) -> ToolFailure:
    line = visible(shlex.join(call))
    entry = line if len(line) <= _SHOWN_LONGEST else f"{line[:_SHOWN_LONGEST]}…"
    return ToolFailure(
        ResultCode.COMMAND_NOT_ALLOWED,
        "This exact command is not allowed. To allow it, add it to "
        f"[chat].allowed_commands (or to the agent's allowed commands): {entry}",
    )


def _notices(finished: CommandResult, folder: str) -> Iterator[str]:
    """Yield notices for the model about protected paths that the command met."""
    for path in finished.moved_aside:
        name = visible(os.path.relpath(path, folder))
        yield (
            f"{name} is protected from commands: the file this command created there was "
            f"renamed, in the same folder, to a name that ends in {ASIDE}."
        )
    said = finished.stdout[-_INSPECTED_MOST:] + finished.stderr[-_INSPECTED_MOST:]
    if finished.exit_code and any(each in said for each in _COVERED):
        yield (
            "Some paths are read-only for commands: .git for all commands but git, and "
            "files that are executed later, such as Makefile and package.json. To make "
            "the latter writable for commands, the user adds their names to "
            "[chat].command_writes."
        )


def _targets(program: Executable, context: ProcessContext) -> tuple[str, ...]:
    return (
        f"program={program.real}",
        f"program_identity={program.identity}",
        f"folder={context.folder}",
        f"folder_identity={context.folder_identity}",
        f"environment={context.environment_hash()}",
        f"network={context.has_network}",
        f"jail={context.is_jailed}",
    )


class Script(Struct, frozen=True, kw_only=True):
    """A file that determines what a command does, with a fingerprint of its content."""

    path: str
    fingerprint: str


def _more_targets(run: HardenedCall, scripts: tuple[Script, ...]) -> Iterator[str]:
    """Yield further targets of the approval; empty for most calls."""
    for script in scripts:
        yield f"script={_on_one_line(script.path)} {script.fingerprint}"
    if run.environment:
        # The overrides depend on the repository configuration, so a change to it changes the
        # target.
        yield f"git={json.dumps([run.argv, run.environment], sort_keys=True)}"


def _question(
    call: tuple[str, ...], program: Executable, context: ProcessContext, scripts: tuple[Script, ...]
) -> list[str]:
    lines = [
        format_call(call),
        f"program: {visible(program.real)}",
        f"in: {visible(context.folder)}",
    ]
    lines += ["with the network"] if context.has_network else []
    lines += [f"file: {_on_one_line(script.path)}" for script in scripts]
    foreign = [word for word in call if not word.isascii()]
    # Homoglyphs: letters of other alphabets can look like ASCII, so these words are escaped.
    lines += [f"not plain ASCII: {json.dumps(word)}" for word in foreign]
    return lines


def _on_one_line(path: str) -> str:
    text = path.encode("utf-8", "backslashreplace").decode()
    return visible(text).replace("\n", "\\n")


def _quote(word: str) -> str:
    escaped = word.replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


# Larger files are identified by inode and times instead of their content.
_READ_MOST: Final = 64 << 20
_PIECE: Final = 1 << 20
_MAKE: Final = ("GNUmakefile", "makefile", "Makefile")
_NODE: Final = ("package.json", ".npmrc", ".yarnrc.yml", ".pnpmfile.cjs", "bunfig.toml")
_PYTHON: Final = ("pyproject.toml", "setup.py", "setup.cfg")
_PYTEST: Final = ("conftest.py", "pytest.ini", "tox.ini", *_PYTHON)
_GRADLE: Final = (
    *("build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts"),
    *("gradle.properties", "gradle/wrapper/gradle-wrapper.properties"),
)
_COMPOSE: Final = (
    *("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"),
    *("Dockerfile", "Containerfile"),
)
# Files that a program reads implicitly, in its folder and in folders named by arguments.
_ENTRY_POINTS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("make", "gmake", "bmake"), _MAKE),
    **dict.fromkeys(("npm", "npx", "yarn", "pnpm", "pnpx", "bun", "bunx"), _NODE),
    **dict.fromkeys(("pytest", "py.test"), _PYTEST),
    **dict.fromkeys(("pip", "uv", "poetry", "pdm", "hatch", "flit"), _PYTHON),
    **dict.fromkeys(("gradle", "gradlew"), _GRADLE),
    **dict.fromkeys(("mvn", "mvnw"), ("pom.xml", ".mvn/jvm.config", ".mvn/maven.config")),
    **dict.fromkeys(("docker", "podman", "docker-compose"), _COMPOSE),
    **dict.fromkeys(("task", "go-task"), ("Taskfile.yml", "Taskfile.yaml")),
    **dict.fromkeys(("bundle", "bundler"), ("Gemfile", "Rakefile")),
    "just": ("justfile", "Justfile", ".justfile"),
    "cargo": ("Cargo.toml", "build.rs", ".cargo/config.toml", ".cargo/config"),
    "cmake": ("CMakeLists.txt", "CMakePresets.json"),
    "ctest": ("CTestTestfile.cmake",),
    "ninja": ("build.ninja",),
    "meson": ("meson.build",),
    "tox": ("tox.ini", *_PYTHON),
    "nox": ("noxfile.py",),
    "rake": ("Rakefile", "rakefile", "Rakefile.rb", "rakefile.rb"),
    "ant": ("build.xml",),
    "composer": ("composer.json",),
    "deno": ("deno.json", "deno.jsonc"),
    "mix": ("mix.exs",),
    "sbt": ("build.sbt",),
    "pre-commit": (".pre-commit-config.yaml",),
    "lefthook": ("lefthook.yml", "lefthook.yaml"),
}


def scripts_of(
    call: tuple[str, ...], program: Executable, context: ProcessContext
) -> tuple[Script, ...]:
    """Return the scripts of a call with their current fingerprints; reads the files."""
    left = _READ_MOST
    found = []
    for path in dict.fromkeys(_candidates(call, program, context)):
        script, read = _script(path, left)
        left -= read
        found += [script] if script is not None else []
    return tuple(found)


def _candidates(
    call: tuple[str, ...], program: Executable, context: ProcessContext
) -> Iterator[str]:
    if any(is_below(program.real, root) for root in context.roots):
        yield program.real
    folders = [context.folder]
    for word in _values(call[1:]):
        path = os.path.join(context.folder, word)
        if os.path.isdir(path):
            folders.append(path)
        yield path
    # Every word counts, because a command may run another: `env make`, `python -m pytest`.
    for name in dict.fromkeys(os.path.basename(word) for word in call):
        for folder in folders:
            yield from (os.path.join(folder, each) for each in _ENTRY_POINTS.get(name, ()))
    for option, module in pairwise(call):
        if option == "-m":
            below = os.path.join(context.folder, *module.split("."))
            yield from (f"{below}.py", f"{below}/__main__.py", f"{below}/__init__.py")


def _values(words: tuple[str, ...]) -> Iterator[str]:
    """Yield possible paths: each word, and the value of each `option=value`."""
    for word in words:
        yield word
        _, sign, value = word.partition("=")
        if sign:
            yield value


def _script(path: str, most: int) -> tuple[Script | None, int]:
    """Return a regular file with its fingerprint, and the number of bytes read."""
    real = os.path.realpath(path)
    try:
        descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    # Missing or unreadable: the command cannot read it either.
    except (OSError, ValueError):
        return None, 0
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None, 0
        if found.st_size > most:
            times = (found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            return Script(path=real, fingerprint=f"{found.st_dev}:{found.st_ino}:{times}"), 0
        digest, size = hashlib.sha256(), 0
        while size <= most and (piece := os.read(descriptor, _PIECE)):
            digest.update(piece)
            size += len(piece)
        return Script(path=real, fingerprint=digest.hexdigest()), size
    finally:
        os.close(descriptor)
