"""Authentication: bearer token or session cookie, and model visibility.

Host, Origin and CSRF checks and the security headers are `security.py`.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from holdfast.domain.errors import Code, Denied
from holdfast.domain.models import Model
from holdfast.domain.tokens import Caller, Scope
from holdfast.http.requests import Request
from holdfast.services.tokens import Tokens

COOKIE: Final = "holdfast"
# Body fields that name models, and the provider whose models are files of this machine.
MODEL_FIELDS: Final = ("default_model_id", "fallback_model_ids", "model_id")
_SCRIPTED_PROVIDER: Final = "scripted"
# Not a valid secret, so that a missing token gets the same error as a wrong one.
_NO_SECRET: Final = ""


class Authenticator:
    """Identifies the caller of a request, or refuses it."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def authenticate(self, request: Request) -> Caller:
        """Return the caller; a token in a header takes precedence over a cookie."""
        if "authorization" in request.headers:
            return await self._tokens.resolve(_bearer(request.headers["authorization"]))
        caller = await self._tokens.resolve(read_cookie(request.headers))
        # Another kind of token in the cookie would bypass the CSRF check of cookie requests.
        return caller if caller.is_cookie else await self._tokens.resolve(_NO_SECRET)


def require_allowed_models(caller: Caller, body: Any) -> None:
    """Refuse a body whose model is a file of this machine, unless the caller is an admin."""
    for field in _model_fields(body.__class__):
        given = getattr(body, field)
        refs = given if isinstance(given, tuple) else (given,)
        if any(
            isinstance(ref, str) and ref.partition(":")[0] == _SCRIPTED_PROVIDER for ref in refs
        ):
            caller.require(Scope.ADMIN)


def require_one_of(asked: str | None, allowed: Sequence[str], field: str) -> str:
    """Return what a request asks for if its token is bound to that; the only one by default."""
    if asked is None and len(allowed) == 1:
        return allowed[0]
    if asked is None or asked not in allowed:
        raise Denied(
            Code.FORBIDDEN,
            f"The token is bound to {', '.join(allowed)}; name one of these as `{field}`.",
            {"field": field},
        )
    return asked


@cache
def _model_fields(kind: Any) -> tuple[str, ...]:
    """Return which fields of a body may name models."""
    return tuple(field for field in MODEL_FIELDS if hasattr(kind, field))


def can_see_model(caller: Caller, model: Model) -> bool:
    """Return whether a caller may see a model: file names are visible to admins only."""
    return model.provider != _SCRIPTED_PROVIDER or caller.scope.allows(Scope.ADMIN)


def _bearer(header: str) -> str:
    scheme, _, secret = header.partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else _NO_SECRET


def read_cookie(headers: Mapping[str, str]) -> str:
    """Return the value of the session cookie; empty if it is missing or ambiguous."""
    pairs = (each.partition("=") for each in headers.get("cookie", "").split(";"))
    found = [value.strip() for name, _, value in pairs if name.strip() == COOKIE]
    # Of two cookies, one was set by another server of this machine.
    return found[0] if len(found) == 1 else _NO_SECRET
