"""Tokens: create, list, revoke and authenticate them, and exchange browser sign-in codes.

The surfaces enforce scopes. The file of the local token is read and written by the implementation
of `TokenFile`.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Final, Protocol

from msgspec.structs import replace

from holdfast.domain.errors import Code, Denied, HoldfastError, Invalid, LimitReached, NotFound
from holdfast.domain.ids import LOCAL_OWNER, AgentId, Owner, TokenId
from holdfast.domain.secrets import Secret
from holdfast.domain.text import require_text
from holdfast.domain.tokens import (
    Caller,
    Scope,
    SignInCode,
    Token,
    TokenKind,
    caller_of,
    hash_token,
    is_secret,
)
from holdfast.ports.store import Brief, Store, Tx
from holdfast.ports.system import Clock
from holdfast.services.stamping import IdFactory

LIFE_LONGEST: Final = timedelta(days=3_650)
CODE_LIFE: Final = timedelta(minutes=10)
PAGE_LIFE: Final = timedelta(days=30)
Remember = Callable[[str, Secret], None]


class TokenFile(Protocol):
    """The file beside the store that holds the secret of the local token."""

    async def read(self) -> str | None:
        """Return the secret; `None` without a file. Refuses a file that other users can read."""
        ...

    async def put(self, secret: str, *, instead_of: str | None) -> str:
        """Replace a secret (compare-and-swap) and return the one that the file holds now.

        If another process was faster, that is the other process's secret.
        """
        ...

    async def home_id(self) -> str:
        """Return the id of this home among all that share a store; created once.

        Empty if the store has one home.
        """
        ...


class Tokens:
    """Authentication tokens."""

    def __init__(
        self, store: Store, clock: Clock, id_factory: IdFactory, file: TokenFile, remember: Remember
    ) -> None:
        """`remember` registers a secret with the scrubber."""
        self._store = store
        self._clock = clock
        self._id_factory = id_factory
        self._file = file
        self._remember = remember
        self._known = TokenCache(clock)
        self._sign_in_limit = SignInRateLimit(clock)

    async def create(
        self,
        owner: Owner,
        name: str,
        scope: Scope,
        expires_after: timedelta | None = None,
        *,
        agents: tuple[AgentId, ...] = (),
        tools: tuple[str, ...] = (),
    ) -> tuple[Token, str]:
        """Create a token; return it with its secret, which cannot be retrieved later.

        With the scope `tools` it may be bound to the ids of agents and the names of tools.
        """
        require_text(name, field="name", shortest=1, longest=255)
        if (agents or tools) and scope is not Scope.TOOLS:
            raise Invalid(
                Code.INVALID_INPUT,
                f"Only a token with the scope tools can be bound to agents or tools, not {scope}.",
                {"field": "scope"},
            )
        if expires_after is not None and not timedelta() < expires_after <= LIFE_LONGEST:
            raise Invalid(
                Code.INVALID_INPUT,
                f"The lifetime of a token must be above 0 and at most {LIFE_LONGEST.days} days.",
                {"field": "expires_after"},
            )
        token = replace(
            self._new(owner, name, scope, TokenKind.ISSUED, expires_after),
            agents=agents,
            tools=tools,
        )
        secret = self._id_factory.secret()
        await self._store.write(lambda tx: tx.tokens.add(token, hash_token(secret)))
        return token, secret

    async def list(self, owner: Owner) -> tuple[Token, ...]:
        """Return the owner's tokens, oldest first, including revoked and expired ones."""
        return tuple(await self._store.read(lambda tx: tx.tokens.of_owner(owner)))

    async def list_all(self) -> tuple[Token, ...]:
        """Return the tokens of all owners; only for callers with direct access to the store."""
        return tuple(await self._store.read(lambda tx: tx.tokens.all()))

    async def revoke(self, owner: Owner, token_id: str) -> Token:
        """Revoke a token, effective at once in this process and within seconds in others.

        A no-op on a token that is already revoked.
        """

        async def work(tx: Tx) -> Token:
            token = await tx.tokens.by_id(owner, TokenId(token_id))
            if token is None:
                raise NotFound(
                    Code.TOKEN_NOT_FOUND,
                    "There is no such token; `holdfast token list` shows all.",
                )
            return token if token.revoked_at else await self._revoke(tx, token)

        token = await self._store.write(work, urgent=True)
        # After the commit, because a lookup before it would cache the old token again.
        self._known.forget()
        return token

    async def ensure_local(self) -> tuple[Token, str]:
        """Make the token file and the store agree on the local token; return it.

        Without a file, or if its token has ended, a new secret is created and the old one revoked.
        A secret unknown to the store is adopted, because the store may have been restored from a
        backup. Local tokens of other homes stay valid.
        """
        secret = await self._file.read()
        while (token := await self._local(secret)) is None:
            secret = await self._file.put(self._id_factory.secret(), instead_of=secret)
        assert secret is not None  # noqa: S101 — for the type checker: a token has a secret
        self._remember("token", Secret(secret))
        self._known.forget()
        return token, secret

    async def learn_local(self) -> None:
        """Register the local secret with the scrubber, if there is one; ignores errors."""
        with suppress(HoldfastError):
            if secret := await self._file.read():
                self._remember("token", Secret(secret))

    async def resolve(self, secret: str) -> Caller:
        """Return the caller of a secret; unknown, expired and revoked ones get the same error."""
        token = None
        if is_secret(secret):
            digest = hash_token(secret)
            token = await self._known.ask(digest, lambda: self._look_up(digest))
        if token is None or not token.is_live(self._clock.now()):
            raise Denied(
                Code.UNAUTHENTICATED,
                "Send a valid token as `Authorization: Bearer TOKEN`; the server's own is in "
                "the file `token` of its home folder, and `holdfast token create` creates "
                "others.",
            )
        return caller_of(token)

    async def still_valid(self, caller: Caller) -> bool:
        """Return whether a caller may continue; cheap, as every stream calls it each second."""

        async def look() -> Token | None:
            return await self._store.read(
                Brief(lambda tx: tx.tokens.by_id(caller.owner, caller.token_id))
            )

        token = await self._known.ask(caller.token_id, look)
        is_valid = (
            token is not None
            and token.is_live(self._clock.now())
            and token.scope.allows(caller.scope)
        )
        if not is_valid:
            # The cache entry by digest may be older than this result.
            self._known.forget()
        return is_valid

    async def sign_in_code(self, owner: Owner, scope: Scope) -> str:
        """Return a single-use sign-in code for a browser, valid for ten minutes."""
        now = self._clock.now()
        code = SignInCode(owner=owner, scope=scope, expires_at=now + CODE_LIFE)
        secret = self._id_factory.secret()

        async def work(tx: Tx) -> None:
            await tx.tokens.forget_codes(now)
            await tx.tokens.add_code(code, hash_token(secret))

        await self._store.write(work)
        return secret

    async def exchange(self, code: str) -> tuple[Token, str]:
        """Exchange a sign-in code for a page token; of two concurrent callers one succeeds.

        Rate limit: after ten wrong codes in a minute all codes are refused for a while.
        """
        with self._sign_in_limit.counted():
            if not is_secret(code):
                raise _spent()
            secret = self._id_factory.secret()
            token = await self._store.write(lambda tx: self._exchange(tx, code, secret))
        return token, secret

    async def _exchange(self, tx: Tx, code: str, secret: str) -> Token:
        now = self._clock.now()
        taken = await tx.tokens.take_code(hash_token(code))
        if taken is None or taken.expires_at <= now:
            raise _spent()
        await tx.tokens.forget(now - PAGE_LIFE)
        token = self._new(taken.owner, "page", taken.scope, TokenKind.PAGE, PAGE_LIFE)
        await tx.tokens.add(token, hash_token(secret))
        return token

    async def _local(self, secret: str | None) -> Token | None:
        """Return the live token of the file's secret; `None` if a new secret is needed."""
        if secret is None:
            return None
        digest = hash_token(secret)
        home = await self._file.home_id()

        async def work(tx: Tx) -> Token | None:
            found = await tx.tokens.by_digest(digest)
            if found is not None:
                is_good = found.kind is TokenKind.LOCAL and found.is_live(self._clock.now())
                return await self._claim(tx, found, home) if is_good else None
            await self._end_local(tx, home)
            name = f"local {home}".strip()
            token = self._new(LOCAL_OWNER, name, Scope.ADMIN, TokenKind.LOCAL)
            token = replace(token, home=home)
            await tx.tokens.add(token, digest)
            return token

        return await self._store.write(work)

    async def _claim(self, tx: Tx, token: Token, home: str) -> Token:
        """Bind the token to this home, because the file with its secret is here."""
        if token.home == home or not home:
            return token
        await self._end_local(tx, home)
        claimed = replace(token, home=home)
        await tx.tokens.save(claimed)
        return claimed

    async def _end_local(self, tx: Tx, home: str) -> None:
        """Revoke the local token of this home; in a store of one home, every local token."""
        for old in await tx.tokens.local():
            if not home or old.home == home:
                await self._revoke(tx, old)

    async def _look_up(self, digest: bytes) -> Token | None:
        token = await self._store.read(lambda tx: tx.tokens.by_digest(digest))
        now = self._clock.now()
        if token is None or not token.is_live(now) or not token.is_use_due(now):
            return token
        # Best effort: on a full disk the caller must still be able to log in and delete data.
        with suppress(HoldfastError):
            await self._store.write(lambda tx: _note_use(tx, token, now))
        return token

    async def _revoke(self, tx: Tx, token: Token) -> Token:
        ended = replace(token, revoked_at=self._clock.now())
        await tx.tokens.save(ended)
        return ended

    def _new(
        self,
        owner: Owner,
        name: str,
        scope: Scope,
        kind: TokenKind,
        life: timedelta | None = None,
    ) -> Token:
        now = self._clock.now()
        return Token(
            id=TokenId(self._id_factory.new()),
            owner=owner,
            name=name,
            scope=scope,
            kind=kind,
            created_at=now,
            expires_at=None if life is None else now + life,
        )


async def _note_use(tx: Tx, token: Token, at: datetime) -> None:
    # Read again, because it may have been revoked since.
    current = await tx.tokens.by_id(token.owner, token.id)
    if current is not None and current.is_live(at):
        await tx.tokens.save(replace(current, last_used_at=at))


def _spent() -> Denied:
    return Denied(
        Code.UNAUTHENTICATED,
        "This sign-in link was used before, or has expired; create a new one with "
        "`holdfast token link`.",
    )


WRONG_CODES_MOST: Final = 10
WINDOW_MS: Final = 60_000


class SignInRateLimit:
    """Counts the wrong sign-in codes of the last minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wrong: deque[int] = deque()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count an attempt unless it succeeds or fails for another reason than a wrong code."""
        now = self._clock.lease_clock_ms()
        while self._wrong and now - self._wrong[0] >= WINDOW_MS:
            self._wrong.popleft()
        if len(self._wrong) >= WRONG_CODES_MOST:
            raise _too_many(self._wrong[0] + WINDOW_MS - now)
        # Counted before the result is known, so that concurrent attempts cannot bypass the limit.
        self._wrong.append(now)
        try:
            yield
        except Denied:
            raise
        except BaseException:
            self._take_back(now)
            raise
        self._take_back(now)

    def _take_back(self, at: int) -> None:
        # It may have expired already, if the exchange took more than a minute.
        with suppress(ValueError):
            self._wrong.remove(at)


def _too_many(wait_ms: int) -> LimitReached:
    seconds = ceil(wait_ms / 1000)
    return LimitReached(
        Code.SIGN_IN_LIMIT,
        f"Too many wrong sign-in codes; try again in {seconds} s.",
        {"retry_after": seconds},
    )


FRESH_MS: Final = 1_000
LONGEST_MS: Final = 2_000
# Per dictionary, so that guessed secrets evict other guesses and never a valid token.
CACHED_TOKENS_MOST: Final = 1_024
Key = bytes | str


@dataclass(slots=True)
class _CachedToken:
    """A cached lookup with its time; `is_asked` while a refresh is running."""

    token: Token | None
    at: int
    is_asked: bool = False


class TokenCache:
    """Short-lived cache of token lookups, by digest of a secret or by token id."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: dict[Key, _CachedToken] = {}
        self._missing: dict[Key, _CachedToken] = {}
        self._changes = 0

    async def ask(self, key: Key, look: Callable[[], Awaitable[Token | None]]) -> Token | None:
        """Return the cached token of a key, or call `look`."""
        now, changes = self._clock.lease_clock_ms(), self._changes
        answer = self._found.get(key) or self._missing.get(key)
        if answer is not None:
            # Others use the stale entry during a refresh, to avoid a stampede of a thousand
            # streams.
            longest = LONGEST_MS if answer.is_asked else FRESH_MS
            if now - answer.at < longest:
                return answer.token
            answer.is_asked = True
        token = await look()
        # A result read before a change is returned, but not cached.
        if changes == self._changes:
            if answer is not None and _rights(answer.token) != _rights(token):
                # Changed by another process, so the entry under its other key is stale as well.
                self.forget()
            self._keep(key, _CachedToken(token, now))
        return token

    def forget(self) -> None:
        """Drop all entries, because a token has changed."""
        self._changes += 1
        self._found.clear()
        self._missing.clear()

    def _keep(self, key: Key, answer: _CachedToken) -> None:
        for answers in (self._found, self._missing):
            answers.pop(key, None)
        answers = self._missing if answer.token is None else self._found
        if len(answers) >= CACHED_TOKENS_MOST:
            # Evict the oldest; a refreshed entry is put back at the end.
            del answers[next(iter(answers))]
        answers[key] = answer


def _rights(token: Token | None) -> tuple[object, ...] | None:
    return (token.scope, token.revoked_at, token.expires_at) if token is not None else None
