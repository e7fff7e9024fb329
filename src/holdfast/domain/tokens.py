"""Tokens: the caller, its scope, and the format of token secrets.

Only the digest of a secret is stored. Where it is stored, and how long a lookup is cached, is not
decided here.
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
from holdfast.domain.ids import AgentId, Owner, TokenId

SECRET_BITS: Final = 256
# Resolution of the last use, so that a token causes at most one write per hour.
USE_PRECISION: Final = timedelta(hours=1)

_PREFIX: Final = "hf_"
_SECRET: Final = re.compile(r"hf_[A-Za-z0-9_-]{43}")


class Scope(StrEnum):
    """What a token may do: `admin` includes `write`, which includes `read` and `tools`.

    With `tools` a client sees and answers the calls that it is asked to run, and nothing else.
    """

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
    TOOLS = "tools"

    def allows(self, needed: "Scope") -> bool:
        """Return whether this scope includes `needed`."""
        return needed in _REACH[self]


_REACH: Final[Mapping[Scope, frozenset[Scope]]] = {
    Scope.READ: frozenset({Scope.READ}),
    Scope.WRITE: frozenset({Scope.READ, Scope.WRITE, Scope.TOOLS}),
    Scope.ADMIN: frozenset(Scope),
    Scope.TOOLS: frozenset({Scope.TOOLS}),
}


class TokenKind(StrEnum):
    """How a token was created: with the store, by a command, or by signing in to the web page."""

    LOCAL = "local"
    ISSUED = "issued"
    PAGE = "page"


class Token(Struct, frozen=True, kw_only=True):
    """A token without its secret; an expired or revoked one is still stored.

    `home` identifies the home of a local token if several homes share a store. With `agents` or
    `tools` it reaches only calls of those agents, or of tools with those names.
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
    agents: tuple[AgentId, ...] = ()
    tools: tuple[str, ...] = ()

    def is_live(self, at: datetime) -> bool:
        """Return whether the token is valid at a time."""
        return self.revoked_at is None and (self.expires_at is None or at < self.expires_at)

    def is_use_due(self, at: datetime) -> bool:
        """Return whether a use must be recorded."""
        return self.last_used_at is None or at - self.last_used_at >= USE_PRECISION


class SignInCode(Struct, frozen=True, kw_only=True):
    """The grant behind a one-time sign-in link."""

    owner: Owner
    scope: Scope
    expires_at: datetime


class Caller(Struct, frozen=True, kw_only=True):
    """The authenticated caller; `is_cookie` marks browser credentials, which need CSRF checks."""

    owner: Owner
    scope: Scope
    token_id: TokenId
    is_cookie: bool = False
    agents: tuple[AgentId, ...] = ()
    tools: tuple[str, ...] = ()

    @property
    def is_bound(self) -> bool:
        """Return whether the token reaches the calls of some agents or tools only."""
        return bool(self.agents or self.tools)

    def reaches(self, agent_id: AgentId, tool: str) -> bool:
        """Return whether the token reaches the calls of a tool of an agent."""
        is_agent = not self.agents or agent_id in self.agents
        return is_agent and (not self.tools or tool in self.tools)

    def require(self, needed: Scope) -> None:
        """Refuse the request if the token's scope is too small."""
        if not self.scope.allows(needed):
            raise Denied(
                Code.FORBIDDEN,
                f"This requires the scope {needed}, but the token has {self.scope}; create "
                f"one with `holdfast token create NAME --scope {needed}`.",
                {"needed": needed.value, "scope": self.scope.value},
            )


def caller_of(token: Token) -> Caller:
    """Return the caller that a token authenticates."""
    return Caller(
        owner=token.owner,
        scope=token.scope,
        token_id=token.id,
        is_cookie=token.kind is TokenKind.PAGE,
        agents=token.agents,
        tools=token.tools,
    )


def secret_of(randomness: int) -> str:
    """Return the token secret made of the given random bits."""
    octets = randomness.to_bytes(SECRET_BITS // 8, "big")
    return _PREFIX + base64.urlsafe_b64encode(octets).rstrip(b"=").decode()


def is_secret(text: str) -> bool:
    """Return whether a text has the format of a token secret."""
    return _SECRET.fullmatch(text) is not None


def hash_token(secret: str) -> bytes:
    """Return the stored digest of a secret.

    Lookups compare digests, so a timing attack reveals nothing about the secret.
    """
    # No salt or key stretching, because 256 random bits cannot be guessed or precomputed.
    return hashlib.sha256(secret.encode()).digest()
