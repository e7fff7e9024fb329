"""Tokens: who calls, what they may do, and what their secrets look like.

Of a secret only the digest is kept. Where it is kept, and for how long an answer about it is
believed, is not decided here.
"""

import base64
import hashlib
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from msgspec import Struct

from holdfast.domain.errors import Code, Denied
from holdfast.domain.ids import Owner, TokenId

SECRET_BITS: Final = 256
# A use is noted no finer than this, so that asking costs a write once in an hour.
USE_PRECISION: Final = timedelta(hours=1)

_PREFIX: Final = "hf_"
_SECRET: Final = re.compile(r"hf_[A-Za-z0-9_-]{43}")


class Scope(StrEnum):
    """What a token may do; each contains the one before."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"

    def allows(self, needed: "Scope") -> bool:
        """Tell whether this is enough where `needed` is asked for."""
        return _REACH[self] >= _REACH[needed]


_REACH: Final[Mapping[Scope, int]] = {Scope.READ: 1, Scope.WRITE: 2, Scope.ADMIN: 3}


class TokenKind(StrEnum):
    """How a token came to be: beside the store, by a command, by signing in to the page."""

    LOCAL = "local"
    ISSUED = "issued"
    PAGE = "page"


class Token(Struct, frozen=True, kw_only=True):
    """A credential without its secret; one that has ended stays as it is.

    `home` names the home of a local token where several homes share a store.
    """

    id: TokenId
    owner: Owner
    name: str
    scope: Scope
    kind: TokenKind
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    home: str = ""

    def is_live(self, at: datetime) -> bool:
        """Tell whether the token opens anything at an instant."""
        return self.revoked_at is None and (self.expires_at is None or at < self.expires_at)

    def is_use_due(self, at: datetime) -> bool:
        """Tell whether a use is worth being noted."""
        return self.last_used_at is None or at - self.last_used_at >= USE_PRECISION


class SignInCode(Struct, frozen=True, kw_only=True):
    """What a one-time link stands for."""

    owner: Owner
    scope: Scope
    expires_at: datetime


class Caller(Struct, frozen=True, kw_only=True):
    """Who asks, as far as a token tells; a browser sends `is_cookie` ones by itself."""

    owner: Owner
    scope: Scope
    token_id: TokenId
    is_cookie: bool = False

    def require(self, needed: Scope) -> None:
        """Refuse what the token does not reach."""
        if not self.scope.allows(needed):
            raise Denied(
                Code.FORBIDDEN,
                f"This needs the scope {needed}, and the token has {self.scope}; "
                f"`holdfast token create NAME --scope {needed}` makes one that reaches.",
                {"needed": needed.value, "scope": self.scope.value},
            )


def caller_of(token: Token) -> Caller:
    """Return who asks with a token."""
    return Caller(
        owner=token.owner,
        scope=token.scope,
        token_id=token.id,
        is_cookie=token.kind is TokenKind.PAGE,
    )


def secret_of(randomness: int) -> str:
    """Return the secret of so many random bits."""
    octets = randomness.to_bytes(SECRET_BITS // 8, "big")
    return _PREFIX + base64.urlsafe_b64encode(octets).rstrip(b"=").decode()


def is_secret(text: str) -> bool:
    """Tell whether a text has the shape of our secrets."""
    return _SECRET.fullmatch(text) is not None


def digest_of(secret: str) -> bytes:
    """Return what is kept of a secret.

    Whoever looks for it compares digests, so the time that takes tells nothing of the secret.
    """
    # Without salt and stretching: of 256 random bits there is no list that could be tried.
    return hashlib.sha256(secret.encode()).digest()
