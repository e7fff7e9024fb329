"""`holdfast serve`: the server in the foreground, until Ctrl-C or SIGTERM."""

import asyncio
import logging
import os
import shlex
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast import __version__
from holdfast.cli.cards import CARD_NAME, Card
from holdfast.cli.commands import command
from holdfast.cli.output import Printer

if TYPE_CHECKING:
    import socket

    from holdfast.bootstrap import Holdfast

log = logging.getLogger(__name__)


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
    from holdfast.services.background import Background

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Before the house is opened: a signal that comes meanwhile stops it in order.
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with opened(printer, "all") as holdfast, Background() as keeping:
        card = Card(holdfast.config.home, url_of(listener))
        other = card.claim()
        keeping.start(card.keep())
        try:
            await serve_http(
                application(lambda: probe(holdfast)),
                listener,
                ready=lambda: _announce(printer, card.form, other),
                stop=stop,
            )
        finally:
            card.withdraw()
    printer.remark("Stopped; open turns go on with the next start.")


async def probe(holdfast: "Holdfast") -> None:
    """Raise unless the store can be written: an empty transaction takes the writer's lock."""

    async def nothing(_: object) -> None:
        return None

    await holdfast.store.write(nothing)


def _announce(printer: Printer, card: dict[str, Any], other: dict[str, Any] | None) -> None:
    if printer.is_json:
        printer.document(card)
    else:
        printer.line(f"Holdfast {__version__} listens on {card['url']}")
        home = os.environ.get("HOLDFAST_HOME")
        # As it can be pasted: the command may not be on the other terminal's path.
        chat = f"{f'HOLDFAST_HOME={shlex.quote(home)} ' if home else ''}{sys.argv[0]} chat"
        printer.line(f"Chat in another terminal with `{chat}`; stop with Ctrl-C.")
    sys.stdout.flush()
    if other is not None:
        printer.remark(
            f"Another server of this home listens on {other.get('url')}; {CARD_NAME} names that "
            "one as long as it runs."
        )


def register(app: typer.Typer) -> None:
    """Put the command into the command line."""
    command(app, "serve", ServeOptions)(serve)
