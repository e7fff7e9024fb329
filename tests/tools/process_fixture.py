"""A place to run processes at: a folder, a scratch, a user's home, and what is granted there."""

import asyncio
import atexit
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.domain.messages import ResultStatus
from holdfast.domain.tools import FsTier, Grant
from holdfast.ports.tools import CallOutcome, PlannedCall, RequestedCall, Slice, ToolWorkspace
from holdfast.process.child import ChildOrder
from holdfast.process.launcher import Launcher
from holdfast.process.sandbox import Bounds, Confinement, Means
from holdfast.tools.git.tools import git_tools
from holdfast.tools.process_context import ProcessSettings
from holdfast.tools.run_command import command_tools
from holdfast.tools.toolbox import LocalToolbox

PYTHON = sys.executable
NAMES = ("run_command", "git_status", "git_commit")


@cache
def known_means() -> Means:
    """Find out once what this system can do."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(Launcher().means())).result()


class NothingKept:
    """A shelf for calls that keep nothing."""

    async def keep(self, content: bytes, *, mime_type: str = "text/plain") -> str:
        raise AssertionError("nothing is kept here")

    async def read(self, handle: str, *, start: int = 0, end: int | None = None) -> Slice | None:
        return None


class Workbench:
    """The tools that start processes, at a place of their own."""

    def __init__(self, root: Path, *, launcher: Launcher | None = None) -> None:
        self.work, self.scratch, self.user = root / "work", root / "scratch", root / "user"
        self.hidden = root / "holdfast"
        for folder in (self.work, self.scratch, self.user, self.hidden):
            folder.mkdir(exist_ok=True)
        self.launcher = launcher or Launcher(known_means())
        self.means = Means()
        self.grants: tuple[Grant, ...] = (Grant(),)
        self.environment: dict[str, str] = {"PATH": os.environ["PATH"], "HOME": str(self.user)}
        self.command_env: tuple[str, ...] = ()
        self.extra_roots: tuple[str, ...] = ()
        self.command_writes: tuple[str, ...] = ()
        self.bounds = Bounds()
        self.allows_unprotected = False

    def allow(
        self,
        *commands: str | Sequence[str],
        globs: Sequence[str] = (),
        domains: Sequence[str] = (),
        tier: FsTier = FsTier.SANDBOXED,
    ) -> None:
        """Grant these commands and no others; one given as words is quoted."""
        lines = (each if isinstance(each, str) else shlex.join(each) for each in commands)
        grant = Grant(
            fs=tier, commands=tuple(lines), command_globs=tuple(globs), domains=tuple(domains)
        )
        self.grants = (grant,)

    @property
    def place(self) -> ToolWorkspace:
        """Return where calls act."""
        return ToolWorkspace(
            session="ses_1",
            working_dir=str(self.work),
            scratch=str(self.scratch),
            grants=self.grants,
            tools=frozenset(NAMES),
            shelf=NothingKept(),
        )

    @property
    def toolbox(self) -> LocalToolbox:
        """Return the tools, built anew, because they keep nothing."""
        settings = ProcessSettings(
            environment=self.environment,
            command_env=self.command_env,
            extra_roots=self.extra_roots,
            hidden=(str(self.hidden),),
            command_writes=self.command_writes,
            bounds=self.bounds,
            allows_unprotected=self.allows_unprotected,
        )
        return LocalToolbox(
            (*command_tools(settings, self.launcher), *git_tools(settings, self.launcher))
        )

    async def plan(self, tool: str, **arguments: Any) -> PlannedCall | CallOutcome:
        """Plan a call."""
        asked = RequestedCall(id="call_1", name=tool, arguments=arguments, idempotency_key="key_1")
        return await self.toolbox.plan(self.place, asked)

    async def call(self, tool: str, **arguments: Any) -> CallOutcome:
        """Plan a call and run it, as if somebody agreed."""
        planned = await self.plan(tool, **arguments)
        if isinstance(planned, CallOutcome):
            return planned
        return await self.toolbox.run(self.place, planned)

    async def run(self, command: str, *args: str, **options: Any) -> dict[str, Any]:
        """Allow exactly this command, run it and return its result."""
        if not any(grant.commands or grant.command_globs for grant in self.grants):
            self.allow((command, *args))
        done = await self.call("run_command", command=command, args=list(args), **options)
        assert done.status is ResultStatus.OK, done
        assert isinstance(done.result, dict)
        return done.result

    async def script(self, source: str, **options: Any) -> dict[str, Any]:
        """Run a piece of Python."""
        return await self.run(PYTHON, "-c", source, **options)

    def git(self, *words: str, folder: Path | None = None, env: Mapping[str, str] = {}) -> str:
        """Run plain git, as a user would."""
        run = subprocess.run(
            ["git", *words],
            cwd=folder or self.work,
            env={**self.environment, "GIT_CONFIG_NOSYSTEM": "1", **env},
            capture_output=True,
            text=True,
            check=True,
        )
        return run.stdout

    def repository(self, files: Mapping[str, str] | None = None) -> None:
        """Make the folder a repository with one commit of these files, by a known user."""
        (self.user / ".gitconfig").write_text(USER)
        made = _repository(tuple((files or {"a.txt": "one\n"}).items()))
        shutil.copytree(made, self.work, dirs_exist_ok=True)
        # What the index knows of the files is true of those that were copied.
        self.git("update-index", "--refresh")


USER = "[user]\n\tname = Ada\n\temail = ada@example.com\n"


@cache
def _repository(files: tuple[tuple[str, str], ...]) -> Path:
    """Make a repository once, to be copied: git starts five times for it."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-repository-"))
    atexit.register(shutil.rmtree, folder)
    bench = Workbench(folder)
    (bench.user / ".gitconfig").write_text(USER)
    bench.git("init", "--quiet", "--initial-branch=main", "--template=")
    for name in ("hooks", "info"):
        (bench.work / ".git" / name).mkdir()
    for name, content in files:
        (bench.work / name).parent.mkdir(parents=True, exist_ok=True)
        (bench.work / name).write_text(content)
    bench.git("add", "--all")
    bench.git("commit", "--quiet", "--message=first")
    return bench.work


def order(argv: Sequence[str], folder: Path, **more: Any) -> ChildOrder:
    """Return an order that reaches one folder."""
    confinement = Confinement(
        readable=(sys.prefix, sys.base_prefix), writable=(str(folder.resolve()),)
    )
    given = {"environment": {"PATH": "/usr/bin:/bin"}, "confinement": confinement, **more}
    return ChildOrder(argv=tuple(argv), program=argv[0], folder=str(folder), **given)


def python(source: str, folder: Path, **more: Any) -> ChildOrder:
    """Return an order that runs a piece of Python."""
    return order((PYTHON, "-I", "-c", source), folder, **more)


def marked(mark: str) -> list[int]:
    """Return the living processes whose command line holds the mark, ourselves apart."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if mark.encode() in line and state not in {"Z", "X"}:
            found.append(int(entry.name))
    return found


def codes(done: CallOutcome) -> tuple[str, str]:
    """Return status and code of a call."""
    return done.status, done.error.code if done.error else ""
