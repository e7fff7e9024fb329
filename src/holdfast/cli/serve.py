"""`holdfast serve`: the server in the foreground, until Ctrl-C or SIGTERM."""

import asyncio
import json
import logging
import os
import secrets
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast import __version__
from holdfast.cli.commands import command
from holdfast.cli.output import Printer

if TYPE_CHECKING:
    import socket

    from holdfast.bootstrap import Holdfast

log = logging.getLogger(__name__)

CARD_NAME: Final = "server.json"


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Where to listen."""

    host: Annotated[
        str, typer.Option(metavar="HOST", help="The address to listen on; this machine's only.")
    ] = "127.0.0.1"
    port: Annotated[
        int, typer.Option(metavar="PORT", help="The port to listen on; 0 takes any free one.")
    ] = 8765


def serve(printer: Printer, wanted: ServeOptions) -> None:
    """Run the server.

    It plays every turn that waits, whoever sent it, and answers on a port of this machine. Ctrl-C
    or SIGTERM stops it; turns that run then go on with the next start.
    """
    from holdfast.http.server import listen, loop_factory

    # A bad file is refused before a port is taken, and the port before any turn is woken.
    printer.settings.load()
    with (
        listen(wanted.host, wanted.port) as listener,
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        runner.run(_serve(printer, listener))


async def _serve(printer: Printer, listener: "socket.socket") -> None:
    from holdfast.cli.opening import opened
    from holdfast.http.app import application
    from holdfast.http.server import serve as serve_http
    from holdfast.http.server import url_of

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Before the house is opened: a signal that comes meanwhile stops it in order.
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with opened(printer, "all") as holdfast:
        card = _card(url_of(listener))
        with _shown(holdfast.config.home / CARD_NAME, card):
            await serve_http(
                application(lambda: probe(holdfast)),
                listener,
                ready=lambda: _announce(printer, card),
                stop=stop,
            )
    printer.remark("Stopped; open turns go on with the next start.")


async def probe(holdfast: "Holdfast") -> None:
    """Raise unless the store can be written: an empty transaction takes the writer's lock."""

    async def nothing(_: object) -> None:
        return None

    await holdfast.store.write(nothing)


def _card(url: str) -> dict[str, Any]:
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"url": url, "pid": os.getpid(), "started_at": at}


@contextmanager
def _shown(path: Path, card: dict[str, Any]) -> Iterator[None]:
    """Keep the server's card in the home while it runs, whole or not at all."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(draft, flags, 0o600), "w") as file:
        file.write(json.dumps(card) + "\n")
    os.replace(draft, path)
    try:
        yield
    finally:
        # Another server of the same home may have put its own card there.
        with suppress(OSError, ValueError):
            if json.loads(path.read_text()) == card:
                path.unlink()


def _announce(printer: Printer, card: dict[str, Any]) -> None:
    if printer.is_json:
        printer.document(card)
    else:
        printer.line(f"Holdfast {__version__} listens on {card['url']}")
        home = os.environ.get("HOLDFAST_HOME")
        # As it can be pasted: the command may not be on the other terminal's path.
        chat = f"{f'HOLDFAST_HOME={shlex.quote(home)} ' if home else ''}{sys.argv[0]} chat"
        printer.line(f"Chat in another terminal with `{chat}`; stop with Ctrl-C.")
    sys.stdout.flush()


def register(app: typer.Typer) -> None:
    """Put the command into the command line."""
    command(app, "serve", ServeOptions)(serve)
