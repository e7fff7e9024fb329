"""Routes of the server itself: health, metrics, OpenAPI and sign-in."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.errors import Code, Denied, HoldfastError
from holdfast.http.auth import COOKIE
from holdfast.http.metrics import MEDIA_TYPE, Metrics
from holdfast.http.responses import Response
from holdfast.http.routing import Route, RouteRequest, Routes, cacheable
from holdfast.http.security import ServerNames, require_same_site
from holdfast.http.web_ui import FOLDER, is_signed_in, page_routes

HEALTH_SECONDS: Final = 2.0
COOKIE_SECONDS: Final = 30 * 24 * 3600

Probe = Callable[[], Awaitable[object]]


class Health(Struct, frozen=True):
    """The health of the server."""

    status: str


class SignIn(Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a sign-in link."""

    code: str


def system_routes(
    probe: Probe, metrics: Metrics, description: Callable[[], bytes], names: ServerNames
) -> tuple[Route, ...]:
    """Return the routes; `probe` raises while the store cannot be written."""
    routes = Routes()

    @routes.get("/healthz", "health", {200: Health, 503: Health}, needs=None)
    async def health(_: RouteRequest[Any, None]) -> Response:
        """Return whether the server is healthy."""
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                await probe()
        except (HoldfastError, TimeoutError):
            # No reason is given, because the route is public.
            return Response(status=503, content=Health("unavailable"))
        return Response(content=Health("ok"))

    @routes.get("/metrics", "metrics", str, media_type=MEDIA_TYPE)
    async def read_metrics(_: RouteRequest[Any, None]) -> Response:
        """Return the metrics of the server as Prometheus text."""
        return Response(content=metrics.text().encode(), media_type=MEDIA_TYPE)

    @routes.get("/openapi.json", "openapi", **cacheable(dict[str, Any]))
    async def read_openapi(_: RouteRequest[Any, None]) -> Response:
        """Return the OpenAPI document."""
        return Response(content=description(), has_etag=True)

    @routes.get(
        "/sign-in",
        "sign_in",
        {303: None},
        needs=None,
        has_no_head=True,
        response_headers={303: ("location", "set-cookie")},
        errors=(Code.FOREIGN_ORIGIN, Code.SIGN_IN_LIMIT, Code.UNAUTHENTICATED),
    )
    async def sign_in(request: RouteRequest[SignIn, None]) -> Response:
        """Exchange a one-time code for the session cookie of the web UI."""
        return await exchange_sign_in_code(request, names)

    return (*routes, *page_routes(FOLDER))


async def exchange_sign_in_code(
    request: RouteRequest[SignIn, None], names: ServerNames
) -> Response:
    """Exchange the one-time code of a link for a session cookie."""
    # Before the code is checked: a foreign page must not use up the attempts (CSRF).
    require_same_site(request.headers, names.origins)
    if "prefetch" in request.headers.get("sec-purpose", ""):
        # A speculative prefetch of the browser would use up the code.
        raise Denied(
            Code.FOREIGN_ORIGIN, "Open the sign-in link directly in the browser; it works once."
        )
    try:
        _, secret = await request.holdfast.tokens.exchange(request.query.code)
    except Denied:
        # The link was opened again in a browser that is already signed in.
        if await is_signed_in(request):
            return Response(status=303, headers={"location": "/"})
        raise
    cookie = f"{COOKIE}={secret}; Path=/; Max-Age={COOKIE_SECONDS}; HttpOnly; SameSite=Strict"
    if names.is_secure(request.headers["host"]):
        cookie += "; Secure"
    return Response(status=303, headers={"location": "/", "set-cookie": cookie})
