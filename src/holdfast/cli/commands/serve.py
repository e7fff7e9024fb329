"""`holdfast serve`: the server in the foreground, in one process or several sharing a socket."""

import asyncio
import gc
import logging
import os
import random
import secrets
import select
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

import typer

from holdfast import __version__
from holdfast.api import LocalHoldfast
from holdfast.cli.command import command, run_on_loop
from holdfast.cli.commands.store import migrate_forward
from holdfast.cli.connect import open_local
from holdfast.cli.errors import exit_code, translate_error
from holdfast.cli.options import flag, option
from holdfast.cli.output import Printer
from holdfast.cli.server_file import SERVER_FILE, ServerFile
from holdfast.domain.ids import LOCAL_OWNER
from holdfast.domain.tokens import Scope
from holdfast.http import server as http_server
from holdfast.http.app import AppOptions, create_app
from holdfast.http.mcp_mount import McpHandler
from holdfast.http.security import server_names
from holdfast.http.server import Exposure, address_of, listen, url_of
from holdfast.mcp.http_transport import McpEndpoint
from holdfast.services.background_tasks import Background
from holdfast.wiring import preload

app = typer.Typer()


log = logging.getLogger(__name__)
# Restart delay, doubled each time a worker dies at once: it must not be restarted in a tight loop.
REST_SECONDS: Final = 1.0
REST_MOST: Final = 32.0
# A worker that fails so early would fail again, so the whole server stops.
YOUNG_SECONDS: Final = 10.0
_STOPS: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class WorkerRole:
    """Role of a worker: whether it reports for all, and the pipe that shows its parent is alive."""

    is_first: bool
    lifeline: int | None = None


WorkerMain = Callable[[WorkerRole], None]


def run_workers(work: WorkerMain, number: int) -> int:
    """Run the server in several processes until they are stopped; one runs without a parent.

    Returns an exit code: that of a worker that could not start, else 0.
    """
    if number == 1:
        work(WorkerRole(is_first=True))
        return 0
    # Before any thread or event loop exists, because neither survives a fork.
    pool = _WorkerPool(work)
    for index in range(number):
        pool.add(index, is_first=index == 0)
    return pool.watch()


@dataclass(frozen=True)
class _Worker:
    """Position and start time of a worker process, and how often it died at once before."""

    index: int
    since: float
    failures: int


class _WorkerPool:
    """The worker processes by pid."""

    def __init__(self, work: WorkerMain) -> None:
        self._work = work
        self._children: dict[int, _Worker] = {}
        self._is_stopping = False
        self._lifeline, self._held = os.pipe()
        for each in _STOPS:
            signal.signal(each, self._stop)

    def add(self, index: int, *, is_first: bool = False, failures: int = 0) -> None:
        """Start a worker, unless the pool is stopping."""
        # Signals are blocked until the pid is recorded: otherwise the worker would miss a stop
        # (race).
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        try:
            if self._is_stopping:
                return
            number = os.fork()
            if number == 0:
                self._be_child(WorkerRole(is_first, self._lifeline))
            self._children[number] = _Worker(index, time.monotonic(), failures)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)

    def watch(self) -> int:
        """Wait for the workers; restart one that dies unexpectedly."""
        code = 0
        while self._children:
            number, status = os.wait()
            child = self._children.pop(number, None)
            if child is None or self._is_stopping:
                continue
            ended = os.waitstatus_to_exitcode(status)
            is_young = time.monotonic() - child.since < YOUNG_SECONDS
            failures = child.failures + 1 if is_young else 0
            delay = restart_delay(failures)
            fields = {"worker": child.index, "code": ended, "restart_seconds": delay}
            log.error("a worker exited", extra={"fields": fields})
            if ended > 0 and is_young:
                code = ended
                self._stop(signal.SIGTERM, None)
            else:
                # Returns at once when the pool is stopped meanwhile.
                select.select([self._lifeline], (), (), delay)
                self.add(child.index, failures=failures)
        os.close(self._lifeline)
        os.close(self._held)
        return code

    def _be_child(self, role: WorkerRole) -> None:
        code = 0
        try:
            os.close(self._held)
            for each in _STOPS:
                signal.signal(each, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
            self._work(role)
        # Any exception: no code of the parent may run in the child after this.
        except BaseException as error:  # noqa: BLE001
            reported = translate_error(error)
            log.error(reported.message)
            code = exit_code(reported)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            # Not `sys.exit`: the parent's resources must not be closed by the child.
            os._exit(code)

    def _stop(self, number: int, _: FrameType | None) -> None:
        self._is_stopping = True
        # Readable for all that wait: the workers, and this process before a restart.
        with suppress(OSError):
            os.write(self._held, b"\n")
        for child in tuple(self._children):
            # Race: one may have been reaped just before.
            with suppress(ProcessLookupError):
                os.kill(child, number)


def restart_delay(failures: int) -> float:
    """Return the seconds before a restart, after so many early deaths in a row."""
    return min(REST_SECONDS * 2.0 ** max(failures - 1, 0), REST_MOST)


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Where to listen, and who may."""

    host: Annotated[str, option("HOST", "The address to listen on.")] = "127.0.0.1"
    port: Annotated[int, option("PORT", "The port to listen on; 0 picks a free one.")] = 8765
    workers: Annotated[int, option("N", "The number of worker processes.", min=1, max=64)] = 1
    name: Annotated[
        list[str] | None,
        option(
            "HOST[:PORT]", "An additional host name of the server, for the Host check; repeatable."
        ),
    ] = None
    tls_cert: Annotated[Path | None, option("FILE", "The TLS certificate.")] = None
    tls_key: Annotated[Path | None, option("FILE", "The private key of the certificate.")] = None
    behind_proxy: Annotated[
        bool,
        flag(
            "A proxy in front of Holdfast terminates TLS, so it may listen on other addresses.",
            "--behind-proxy",
        ),
    ] = False


@command(app, "serve", only_here=True)
def serve(printer: Printer, options: ServeOptions) -> int:
    """Run the server.

    It runs all waiting turns and serves HTTP on a port of this machine. Ctrl-C or SIGTERM stops it;
    running turns continue at the next start.
    """
    return serve_http(printer, options)


def serve_http(printer: Printer, options: ServeOptions, *, is_for_mcp: bool = False) -> int:
    """Serve until stopped; for MCP, print what its clients need."""
    # Files are validated before the port is taken, and the port is taken before any turn runs.
    config = printer.settings.load()
    exposure = Exposure(
        certificate=options.tls_cert,
        private_key=options.tls_key,
        is_behind_proxy=options.behind_proxy,
    )
    exposure.context()
    server_names(options.port, options.name or ())

    with listen(options.host, options.port, exposure) as listener:
        # After the port is taken: a second server that fails there must not migrate the store.
        if done := migrate_forward(config):
            printer.remark(f"Migrated the store: {', '.join(done)}.")
        if (notice := printer.settings.unnamed_model()) is not None:
            printer.remark(notice)
        # Before workers are forked, so that they share the memory and the first turn does not wait.
        preload()
        # The process to signal for a stop, even if workers do the work.
        pid = os.getpid()

        def work(role: WorkerRole) -> None:
            process = ServerProcess(
                listener, exposure, tuple(options.name or ()), pid, role, is_for_mcp
            )
            run_on_loop(_serve(printer, process))

        return run_workers(work, options.workers)


@dataclass(frozen=True)
class ServerProcess:
    """One process of the server: its address, role and options."""

    listener: socket.socket
    exposure: Exposure
    names: tuple[str, ...]
    pid: int
    role: WorkerRole
    is_for_mcp: bool = False

    def app_options(self, mcp_handler: McpHandler) -> AppOptions:
        """Return how the server is reached, and its MCP handler."""
        return AppOptions(
            port=self.listener.getsockname()[1],
            names=(*self.names, *address_of(self.listener)),
            has_tls=self.exposure.is_secure,
            is_behind_proxy=self.exposure.is_behind_proxy,
            version=__version__,
            name=secrets.token_hex(6),
            jitter=random.random,
            mcp_handler=mcp_handler,
        )


async def _serve(printer: Printer, process: ServerProcess) -> None:
    # Before the store is opened, so that a signal during opening causes an orderly stop.
    stop = _stop_event(process.role)
    async with (
        open_local(printer, "all") as holdfast,
        Background() as keeping,
        McpEndpoint(holdfast, __version__) as mcp_handler,
    ):
        server_file = ServerFile(holdfast.config.home, url_of(process.listener, process.exposure))
        server_file.form["pid"] = process.pid
        other = server_file.claim()
        keeping.start(server_file.keep())
        await holdfast.tokens.ensure_local()
        link = await _sign_in_link(holdfast) if process.role.is_first else ""
        app = create_app(
            holdfast, holdfast.store.require_writable, process.app_options(mcp_handler)
        )
        _freeze_garbage_collector()

        def announce() -> None:
            if process.role.is_first:
                more = {"mcp": f"{server_file.form['url']}/mcp"} if process.is_for_mcp else {}
                _announce(printer, server_file.form | {"sign_in": link} | more, other)

        try:
            await http_server.serve(
                app, process.listener, ready=announce, stop=stop, exposure=process.exposure
            )
        finally:
            server_file.withdraw()
    if process.role.is_first:
        printer.remark("Stopped; open turns continue at the next start.")


def _freeze_garbage_collector() -> None:
    """Exclude existing objects from garbage collection."""
    # They live until the end; scanning them again and again takes a tenth of a turn's time.
    gc.collect()
    gc.freeze()


def _stop_event(role: WorkerRole) -> asyncio.Event:
    """Return an event that is set when the server must stop or its parent has died."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if role.lifeline is not None:
        loop.add_reader(role.lifeline, stop.set)
    return stop


async def _sign_in_link(holdfast: LocalHoldfast) -> str:
    code = await holdfast.tokens.sign_in_code(LOCAL_OWNER, Scope.ADMIN)
    return f"/sign-in?code={code}"


def _announce(printer: Printer, server_file: dict[str, Any], other: dict[str, Any] | None) -> None:
    if printer.is_json:
        printer.document(server_file)
    else:
        printer.line(f"Holdfast {__version__} listens on {server_file['url']}")
        printer.line(
            f"Sign in with this link, valid once: {server_file['url']}{server_file['sign_in']}"
        )
        home = os.environ.get("HOLDFAST_HOME")
        # Can be pasted: the command may not be on the PATH of the other terminal.
        chat = f"{f'HOLDFAST_HOME={shlex.quote(home)} ' if home else ''}{sys.argv[0]} chat"
        if "mcp" in server_file:
            printer.line(
                f"MCP is at {server_file['mcp']}; the token is in the file `token` of the "
                "home folder."
            )
        printer.line(f"Chat in another terminal with `{chat}`; stop with Ctrl-C.")
    sys.stdout.flush()
    # Another worker of this server may have written the file first.
    if other is not None and other.get("pid") != server_file["pid"]:
        printer.remark(
            f"Another server of this home folder listens on {other.get('url')}; "
            f"{SERVER_FILE} names that one while it runs."
        )
