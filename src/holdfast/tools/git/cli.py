"""Runs git so that it starts nothing else: no hook, filter, pager, helper or signer."""

import os
from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.domain.text import visible
from holdfast.domain.tools import ResultCode
from holdfast.process.child import ChildNotStarted, ChildOrder
from holdfast.process.executables import Executable, executables, readable_for
from holdfast.process.launcher import CommandResult, Launcher
from holdfast.process.sandbox import Bounds, Confinement
from holdfast.tools.process_context import ProcessContext
from holdfast.tools.tool import ToolFailure

TIME_LIMIT: Final = 60.0
_PROCESSES: Final = 512
# Git's usual file modes, because other users of a shared repository must read new objects.
_UMASK: Final = 0o022
_ENVIRONMENT: Final[Mapping[str, str]] = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_ASKPASS": "",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_EDITOR": ":",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_PROTOCOL_FROM_USER": "0",
    "GIT_SSH_COMMAND": "false",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C.UTF-8",
}
# Repeated on the command line, where they override the repository's configuration.
_SETTINGS: Final = (
    *("advice.addIgnoredFile=false", "advice.detachedHead=false", "commit.gpgSign=false"),
    *(f"core.attributesFile={os.devnull}", f"core.excludesFile={os.devnull}"),
    *("core.fsmonitor=false", f"core.hooksPath={os.devnull}", "core.pager=cat"),
    *("core.sshCommand=false", "core.untrackedCache=false", "credential.helper="),
    *("diff.ignoreSubmodules=all", "gc.auto=0", "gpg.program=false", "log.showSignature=false"),
    *("maintenance.auto=false", "protocol.allow=never", "status.submoduleSummary=false"),
    "submodule.recurse=false",
)
_ERROR_LONGEST: Final = 2_000


class Git:
    """Runs git in one workspace."""

    def __init__(self, launcher: Launcher, program: Executable, context: ProcessContext) -> None:
        self.context = context
        self._launcher = launcher
        self._program = program
        self._readable = (
            *(context.roots if context.is_jailed else ("/",)),
            *readable_for(program, path=(), roots=()),
        )

    async def __call__(
        self,
        *words: str,
        variables: Mapping[str, str],
        folder: str,
        readable: Sequence[str] = (),
        writable: Sequence[str] = (),
    ) -> CommandResult:
        """Run git; `variables` locate the repository, and an empty one is unset."""
        context = self.context
        settings = [word for each in _SETTINGS for word in ("-c", each)]
        basis = {"HOME": context.scratch, "PATH": os.pathsep.join(context.path)}
        values = {**basis, "TMPDIR": context.scratch, **_ENVIRONMENT, **variables}
        order = ChildOrder(
            argv=("git", "--no-pager", *settings, *words),
            program=self._program.path,
            program_identity=self._program.identity,
            folder=folder,
            environment={key: each for key, each in values.items() if each or key not in variables},
            confinement=Confinement(
                readable=(*self._readable, *readable, folder),
                writable=tuple(writable),
                executable=executables(self._program.real),
                hidden=context.hidden,
                bounds=Bounds(processes=_PROCESSES),
            ),
            umask=_UMASK,
        )
        try:
            finished = await self._launcher.run(order, time_limit=TIME_LIMIT)
        except ChildNotStarted as refused:
            raise ToolFailure(ResultCode.UNAVAILABLE, f"git cannot run here: {refused}.") from None
        if finished.timed_out:
            raise ToolFailure(ResultCode.TIMEOUT, f"git took more than {TIME_LIMIT:g} seconds.")
        return finished

    async def config(
        self,
        *options: str,
        variables: Mapping[str, str],
        folder: str,
        readable: Sequence[str] = (),
    ) -> list[tuple[str, str, str | None]]:
        """Return scope, key and value of every setting; `options` are global options of git."""
        listing = ("config", "--includes", "--null", "--show-scope", "--list")
        found = await self(
            *options, *listing, variables=variables, folder=folder, readable=readable
        )
        records = nul_records(git_output(found))
        pairs = zip(records[::2], (each.partition("\n") for each in records[1::2]), strict=True)
        return [(scope, key, value if mark else None) for scope, (key, mark, value) in pairs]


def nul_records(finished: CommandResult) -> list[str]:
    """Return the NUL-terminated records of git's output."""
    listed = finished.output.whole()
    if listed is None:
        raise ToolFailure(ResultCode.TOO_LARGE, "There are too many files for one call.")
    return [os.fsdecode(each) for each in listed.split(b"\0") if each]


def git_output(finished: CommandResult) -> CommandResult:
    """Return the result; raise `ToolFailure` if git failed."""
    if finished.exit_code:
        words = visible(finished.stderr.strip() or finished.stdout.strip())
        raise ToolFailure(ResultCode.FAILED, f"git failed: {words[:_ERROR_LONGEST]}")
    return finished
