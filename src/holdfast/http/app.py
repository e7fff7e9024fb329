"""The application: its routes, and what stands before and behind them."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.domain.errors import HoldfastError
from holdfast.http.errors import failed, not_found, wrong_method
from holdfast.http.guard import Guard

HEALTH_SECONDS: Final = 2.0

Probe = Callable[[], Awaitable[object]]


def application(probe: Probe) -> Guard:
    """Return the application; `probe` raises while the store cannot be written."""

    async def health(_: Request) -> Response:
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                await probe()
        except (HoldfastError, TimeoutError):
            # Nothing about the reason: anybody on this machine may ask.
            return _json({"status": "unavailable"}, 503)
        return _json({"status": "ok"}, 200)

    app = Starlette(
        routes=[Route("/healthz", health, methods=["GET"])],
        exception_handlers={404: not_found, 405: wrong_method, Exception: failed},
    )
    # A path is what it is: no answer sends the caller to a neighbour.
    app.router.redirect_slashes = False
    # Around all of it and not among its middleware: answers to our own faults pass it too.
    return Guard(app)


def _json(content: object, status: int) -> Response:
    return Response(
        json.dumps(content, separators=(",", ":")), status, media_type="application/json"
    )
