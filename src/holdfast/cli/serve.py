"""`holdfast serve`: the server in the foreground, until Ctrl-C or SIGTERM."""

import asyncio
import gc
import logging
import os
import random
import secrets
import shlex
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast import __version__
from holdfast.cli.cards import CARD_NAME, Card
from holdfast.cli.commands import command
from holdfast.cli.output import Printer

if TYPE_CHECKING:
    import socket

    from holdfast.app import Holdfast
    from holdfast.cli.workers import Duty
    from holdfast.http.assembly import Door
    from holdfast.http.guests import Guest
    from holdfast.http.server import Exposure

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Where to listen, and who may."""

    host: Annotated[str, typer.Option(metavar="HOST", help="The address to listen on.")] = (
        "127.0.0.1"
    )
    port: Annotated[
        int, typer.Option(metavar="PORT", help="The port to listen on; 0 takes any free one.")
    ] = 8765
    workers: Annotated[
        int, typer.Option(metavar="N", min=1, max=64, help="How many processes share the work.")
    ] = 1
    name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST[:PORT]",
            help="A further name under which the server is asked for; may be repeated.",
        ),
    ] = None
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate, to speak TLS.")
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate's private key.")
    ] = None
    behind_proxy: Annotated[
        bool,
        typer.Option(
            "--behind-proxy",
            help="Something before Holdfast speaks TLS, so it may listen beyond this machine.",
        ),
    ] = False


def serve(printer: Printer, wanted: ServeOptions) -> int:
    """Run the server.

    It plays every turn that waits, whoever sent it, and answers on a port of this machine. Ctrl-C
    or SIGTERM stops it; turns that run then go on with the next start.
    """
    return listening(printer, wanted)


def listening(printer: Printer, wanted: ServeOptions, *, is_for_mcp: bool = False) -> int:
    """Serve until told to stop; where it is done for MCP, say what its clients need."""
    from holdfast.cli.store import forward
    from holdfast.cli.workers import share
    from holdfast.http.guard import names_of
    from holdfast.http.server import Exposure, listen, loop_factory

    # A bad file is refused before a port is taken, and the port before any turn is woken.
    config = printer.settings.load()
    exposure = Exposure(
        certificate=wanted.tls_cert,
        private_key=wanted.tls_key,
        is_behind_proxy=wanted.behind_proxy,
    )
    exposure.context()
    names_of(wanted.port, wanted.name or ())

    with listen(wanted.host, wanted.port, exposure) as listener:
        # Behind the port: a second server that is refused it has changed nothing.
        if done := forward(config):
            printer.remark(f"The store was brought up to this program: {', '.join(done)}.")
        # The one who can be told to stop, also where others do the work.
        pid = os.getpid()

        def work(duty: "Duty") -> None:
            post = Post(listener, exposure, tuple(wanted.name or ()), pid, duty, is_for_mcp)
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(_serve(printer, post))

        return share(work, wanted.workers)


@dataclass(frozen=True)
class Post:
    """Where one process of the server stands, and what it has to do there."""

    listener: "socket.socket"
    exposure: "Exposure"
    names: tuple[str, ...]
    pid: int
    duty: "Duty"
    is_for_mcp: bool = False

    def door(self, guest: "Guest") -> "Door":
        """Return how the server is reached, and who answers beside it."""
        from holdfast.http.assembly import Door
        from holdfast.http.server import address_of

        return Door(
            port=self.listener.getsockname()[1],
            names=(*self.names, *address_of(self.listener)),
            has_tls=self.exposure.is_secure,
            is_behind_proxy=self.exposure.is_behind_proxy,
            version=__version__,
            name=secrets.token_hex(6),
            luck=random.random,
            guest=guest,
        )


async def _serve(printer: Printer, post: Post) -> None:
    from holdfast.cli.opening import opened_here
    from holdfast.http.assembly import application
    from holdfast.http.server import serve as serve_http
    from holdfast.http.server import url_of
    from holdfast.mcp.endpoint import Endpoint
    from holdfast.services.background_tasks import Background

    # Before the house is opened: a signal that comes meanwhile stops it in order.
    stop = _told_to_stop(post.duty)
    async with (
        opened_here(printer, "all") as holdfast,
        Background() as keeping,
        Endpoint(holdfast, __version__) as guest,
    ):
        card = Card(holdfast.config.home, url_of(post.listener, post.exposure))
        card.form["pid"] = post.pid
        other = card.claim()
        keeping.start(card.keep())
        await holdfast.tokens.ensure_local()
        link = await _link(holdfast) if post.duty.is_herald else ""
        app = application(holdfast, holdfast.store.require_writable, post.door(guest))
        _spare_the_collector()

        def announce() -> None:
            if post.duty.is_herald:
                more = {"mcp": f"{card.form['url']}/mcp"} if post.is_for_mcp else {}
                _announce(printer, card.form | {"sign_in": link} | more, other)

        try:
            await serve_http(app, post.listener, ready=announce, stop=stop, exposure=post.exposure)
        finally:
            card.withdraw()
    if post.duty.is_herald:
        printer.remark("Stopped; open turns go on with the next start.")


def _spare_the_collector() -> None:
    """Have the collector look only at what is made from now on."""
    # What stands by now stands until the end; to walk through it again and again takes a tenth of
    # the time that a turn takes.
    gc.collect()
    gc.freeze()


def _told_to_stop(duty: "Duty") -> asyncio.Event:
    """Return what is set when somebody wants the server to stop, or its parent is gone."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if duty.lifeline is not None:
        loop.add_reader(duty.lifeline, stop.set)
    return stop


async def _link(holdfast: "Holdfast") -> str:
    from holdfast.domain.ids import LOCAL_OWNER
    from holdfast.domain.tokens import Scope

    code = await holdfast.tokens.sign_in_code(LOCAL_OWNER, Scope.ADMIN)
    return f"/sign-in?code={code}"


def _announce(printer: Printer, card: dict[str, Any], other: dict[str, Any] | None) -> None:
    if printer.is_json:
        printer.document(card)
    else:
        printer.line(f"Holdfast {__version__} listens on {card['url']}")
        printer.line(f"Sign in to the page, once: {card['url']}{card['sign_in']}")
        home = os.environ.get("HOLDFAST_HOME")
        # As it can be pasted: the command may not be on the other terminal's path.
        chat = f"{f'HOLDFAST_HOME={shlex.quote(home)} ' if home else ''}{sys.argv[0]} chat"
        if "mcp" in card:
            printer.line(f"MCP is at {card['mcp']}; the token is in the home's file `token`.")
        printer.line(f"Chat in another terminal with `{chat}`; stop with Ctrl-C.")
    sys.stdout.flush()
    # One of our own may have been faster.
    if other is not None and other.get("pid") != card["pid"]:
        printer.remark(
            f"Another server of this home listens on {other.get('url')}; {CARD_NAME} names that "
            "one as long as it runs."
        )


def register(app: typer.Typer) -> None:
    """Put the command into the command line."""
    command(app, "serve", ServeOptions, only_here=True)(serve)
