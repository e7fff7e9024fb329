"""Authentication: bearer token or session cookie, CSRF check, and model visibility.

Host check and security headers are `security.py`.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from holdfast.domain.errors import Code, Denied
from holdfast.domain.models import Model
from holdfast.domain.tokens import Caller, Scope
from holdfast.http.requests import Request
from holdfast.http.routing import Route
from holdfast.services.tokens import Tokens

COOKIE: Final = "holdfast"
# Values of `Sec-Fetch-Site` for requests that no foreign page has caused.
_SAME_SITE_VALUES: Final = frozenset({"none", "same-origin"})
# Body fields that name models, and the provider whose models are files of this machine.
MODEL_FIELDS: Final = ("default_model_id", "fallback_model_ids", "model_id")
_SCRIPTED_PROVIDER: Final = "scripted"
# Not a valid secret, so that a missing token gets the same error as a wrong one.
_NO_SECRET: Final = ""


class Authenticator:
    """Identifies the caller of a request, or refuses it."""

    def __init__(self, tokens: Tokens, origins: frozenset[str]) -> None:
        """`origins` are those of the web UI, exactly as a browser sends them."""
        self._tokens = tokens
        self._origins = origins

    async def authenticate(self, request: Request) -> Caller:
        """Return the caller; a token in a header takes precedence over a cookie."""
        if "authorization" in request.headers:
            return await self._tokens.resolve(_bearer(request.headers["authorization"]))
        caller = await self._tokens.resolve(read_cookie(request.headers))
        # Another kind of token in the cookie would bypass the CSRF check of cookie requests.
        return caller if caller.is_cookie else await self._tokens.resolve(_NO_SECRET)

    def require_same_origin(self, request: Request, route: Route, caller: Caller) -> None:
        """Refuse cross-site requests (CSRF)."""
        require_same_site(request.headers, self._origins)
        # A browser attaches the cookie by itself, so the request must prove that the web UI sent
        # it.
        is_delicate = caller.is_cookie and (route.changes or route.is_stream)
        is_shown = "origin" in request.headers or _site(request.headers) == "same-origin"
        if is_delicate and not is_shown:
            raise _cross_site_error()


def require_allowed_models(caller: Caller, body: Any) -> None:
    """Refuse a body whose model is a file of this machine, unless the caller is an admin."""
    for field in _model_fields(body.__class__):
        given = getattr(body, field)
        refs = given if isinstance(given, tuple) else (given,)
        if any(
            isinstance(ref, str) and ref.partition(":")[0] == _SCRIPTED_PROVIDER for ref in refs
        ):
            caller.require(Scope.ADMIN)


@cache
def _model_fields(kind: Any) -> tuple[str, ...]:
    """Return which fields of a body may name models."""
    return tuple(field for field in MODEL_FIELDS if hasattr(kind, field))


def can_see_model(caller: Caller, model: Model) -> bool:
    """Return whether a caller may see a model: file names are visible to admins only."""
    return model.provider != _SCRIPTED_PROVIDER or caller.scope.allows(Scope.ADMIN)


def require_same_site(headers: Mapping[str, str], origins: frozenset[str]) -> None:
    """Refuse a request that the browser marks as sent by a foreign page."""
    origin = headers.get("origin")
    if _site(headers) not in _SAME_SITE_VALUES or (origin is not None and origin not in origins):
        raise _cross_site_error()


def _site(headers: Mapping[str, str]) -> str:
    # Clients other than browsers do not send it and need not.
    return headers.get("sec-fetch-site", "none")


def _bearer(header: str) -> str:
    scheme, _, secret = header.partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else _NO_SECRET


def read_cookie(headers: Mapping[str, str]) -> str:
    """Return the value of the session cookie; empty if it is missing or ambiguous."""
    pairs = (each.partition("=") for each in headers.get("cookie", "").split(";"))
    found = [value.strip() for name, _, value in pairs if name.strip() == COOKIE]
    # Of two cookies, one was set by another server of this machine.
    return found[0] if len(found) == 1 else _NO_SECRET


def _cross_site_error() -> Denied:
    return Denied(
        Code.FOREIGN_ORIGIN,
        "Requests from other web sites are refused; use the server's own page, or send a token.",
    )
