"""Tokens: made, listed, revoked, believed; and how a browser comes to one of its own.

What a caller may do with a token is asked for at the surfaces. The file of the local token is
read and written by whoever implements `TokenFile`.
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
from holdfast.domain.ids import LOCAL_OWNER, Owner, TokenId
from holdfast.domain.secrets import Secret
from holdfast.domain.text import require_text
from holdfast.domain.tokens import (
    Caller,
    Scope,
    SignInCode,
    Token,
    TokenKind,
    caller_of,
    digest_of,
    is_secret,
)
from holdfast.ports import Brief, Clock, Store, Tx
from holdfast.services.stamping import IdFactory

LIFE_LONGEST: Final = timedelta(days=3_650)
CODE_LIFE: Final = timedelta(minutes=10)
PAGE_LIFE: Final = timedelta(days=30)
Remember = Callable[[str, Secret], None]


class TokenFile(Protocol):
    """The file beside the store that holds the secret of the local token."""

    async def read(self) -> str | None:
        """Return the secret; nothing where there is no file. Refuses one that others can read."""
        ...

    async def put(self, secret: str, *, instead_of: str | None) -> str:
        """Write a secret in the place of another and return what the file holds now.

        That is somebody else's where another process was faster.
        """
        ...

    async def home_id(self) -> str:
        """Return what identifies this home among all that share a store; made once.

        Empty where a store has one home.
        """
        ...


class Tokens:
    """Who may call, and who calls."""

    def __init__(
        self, store: Store, clock: Clock, id_factory: IdFactory, file: TokenFile, remember: Remember
    ) -> None:
        """`remember` lets the scrubber know a secret that this process holds."""
        self._store = store
        self._clock = clock
        self._mint = id_factory
        self._file = file
        self._remember = remember
        self._known = TokenCache(clock)
        self._guesses = SignInRateLimit(clock)

    async def create(
        self, owner: Owner, name: str, scope: Scope, expires_after: timedelta | None = None
    ) -> tuple[Token, str]:
        """Make a token and return it with its secret, which is told this once."""
        require_text(name, field="name", shortest=1, longest=255)
        if expires_after is not None and not timedelta() < expires_after <= LIFE_LONGEST:
            raise Invalid(
                Code.INVALID_INPUT,
                f"A token lives for more than nothing and at most {LIFE_LONGEST.days} days.",
                {"field": "expires_after"},
            )
        token = self._new(owner, name, scope, TokenKind.ISSUED, expires_after)
        secret = self._mint.secret()
        await self._store.write(lambda tx: tx.tokens.add(token, digest_of(secret)))
        return token, secret

    async def list(self, owner: Owner) -> tuple[Token, ...]:
        """Return the owner's tokens, oldest first, those that have ended too."""
        return tuple(await self._store.read(lambda tx: tx.tokens.of_owner(owner)))

    async def list_all(self) -> tuple[Token, ...]:
        """Return everybody's tokens; only for who has the store in their hands anyway."""
        return tuple(await self._store.read(lambda tx: tx.tokens.all()))

    async def revoke(self, owner: Owner, token_id: str) -> Token:
        """End a token, in this process at once and in others within seconds.

        One that was revoked before stays as it is.
        """

        async def work(tx: Tx) -> Token:
            token = await tx.tokens.by_id(owner, TokenId(token_id))
            if token is None:
                raise NotFound(
                    Code.TOKEN_NOT_FOUND,
                    "There is no such token; `holdfast token list` shows all.",
                )
            return token if token.revoked_at else await self._ended(tx, token)

        token = await self._store.write(work, urgent=True)
        # Only now: what is asked before the commit would be believed again.
        self._known.forget()
        return token

    async def ensure_local(self) -> tuple[Token, str]:
        """See to it that the file and the store agree on the local token; return it.

        Without the file, or with one whose token has ended, there is a new secret and the old
        one is revoked. A secret that the store does not know is taken over, because the store
        may have been restored. Local tokens of other homes stay valid.
        """
        secret = await self._file.read()
        while (token := await self._local(secret)) is None:
            secret = await self._file.put(self._mint.secret(), instead_of=secret)
        assert secret is not None  # noqa: S101 — for the type checker: a token has a secret
        self._remember("token", Secret(secret))
        self._known.forget()
        return token, secret

    async def learn_local(self) -> None:
        """Let the scrubber know the local secret, where there is one; refuses nothing."""
        with suppress(HoldfastError):
            if secret := await self._file.read():
                self._remember("token", Secret(secret))

    async def resolve(self, secret: str) -> Caller:
        """Return who calls with a secret; an unknown, expired or revoked one is refused alike."""
        token = None
        if is_secret(secret):
            digest = digest_of(secret)
            token = await self._known.ask(digest, lambda: self._look_up(digest))
        if token is None or not token.is_live(self._clock.now()):
            raise Denied(
                Code.UNAUTHENTICATED,
                "Send a token that is valid, as `Authorization: Bearer TOKEN`; the server's own "
                "is in the file `token` of its home, and `holdfast token create` makes others.",
            )
        return caller_of(token)

    async def still_valid(self, caller: Caller) -> bool:
        """Tell whether a caller may go on; made to be asked every second, for every stream."""

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
            # What is known by the digest of its secret may be older than this answer.
            self._known.forget()
        return is_valid

    async def sign_in_code(self, owner: Owner, scope: Scope) -> str:
        """Return a code that a browser can exchange once, for ten minutes."""
        now = self._clock.now()
        code = SignInCode(owner=owner, scope=scope, expires_at=now + CODE_LIFE)
        secret = self._mint.secret()

        async def work(tx: Tx) -> None:
            await tx.tokens.forget_codes(now)
            await tx.tokens.add_code(code, digest_of(secret))

        await self._store.write(work)
        return secret

    async def exchange(self, code: str) -> tuple[Token, str]:
        """Take a sign-in code for a token of the page; of two who try, one gets it.

        After ten wrong codes in a minute nobody's is looked at for a while.
        """
        with self._guesses.counted():
            if not is_secret(code):
                raise _spent()
            secret = self._mint.secret()
            token = await self._store.write(lambda tx: self._exchange(tx, code, secret))
        return token, secret

    async def _exchange(self, tx: Tx, code: str, secret: str) -> Token:
        now = self._clock.now()
        taken = await tx.tokens.take_code(digest_of(code))
        if taken is None or taken.expires_at <= now:
            raise _spent()
        await tx.tokens.forget(now - PAGE_LIFE)
        token = self._new(taken.owner, "page", taken.scope, TokenKind.PAGE, PAGE_LIFE)
        await tx.tokens.add(token, digest_of(secret))
        return token

    async def _local(self, secret: str | None) -> Token | None:
        """Return the live token of the file's secret; nothing where it has to be another one."""
        if secret is None:
            return None
        digest = digest_of(secret)
        home = await self._file.home_id()

        async def work(tx: Tx) -> Token | None:
            found = await tx.tokens.by_digest(digest)
            if found is not None:
                is_good = found.kind is TokenKind.LOCAL and found.is_live(self._clock.now())
                return await self._claimed(tx, found, home) if is_good else None
            await self._end_local(tx, home)
            name = f"local {home}".strip()
            token = self._new(LOCAL_OWNER, name, Scope.ADMIN, TokenKind.LOCAL)
            token = replace(token, home=home)
            await tx.tokens.add(token, digest)
            return token

        return await self._store.write(work)

    async def _claimed(self, tx: Tx, token: Token, home: str) -> Token:
        """Record that the token is this home's: the file that holds its secret is here."""
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
                await self._ended(tx, old)

    async def _look_up(self, digest: bytes) -> Token | None:
        token = await self._store.read(lambda tx: tx.tokens.by_digest(digest))
        now = self._clock.now()
        if token is None or not token.is_live(now) or not token.is_use_due(now):
            return token
        # A note, and no more: on a full disk, who wants to delete something must get in.
        with suppress(HoldfastError):
            await self._store.write(lambda tx: _note_use(tx, token, now))
        return token

    async def _ended(self, tx: Tx, token: Token) -> Token:
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
            id=TokenId(self._mint.new()),
            owner=owner,
            name=name,
            scope=scope,
            kind=kind,
            created_at=now,
            expires_at=None if life is None else now + life,
        )


async def _note_use(tx: Tx, token: Token, at: datetime) -> None:
    # Read again: it may have been revoked since.
    current = await tx.tokens.by_id(token.owner, token.id)
    if current is not None and current.is_live(at):
        await tx.tokens.save(replace(current, last_used_at=at))


def _spent() -> Denied:
    return Denied(
        Code.UNAUTHENTICATED,
        "This sign-in link was used before, or is too old; `holdfast token link` makes a new one.",
    )


WRONG_CODES_MOST: Final = 10
WINDOW_MS: Final = 60_000


class SignInRateLimit:
    """Counts the wrong tries of the last minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wrong: deque[int] = deque()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a try, unless it goes well or fails by no fault of its own."""
        now = self._clock.boot_ms()
        while self._wrong and now - self._wrong[0] >= WINDOW_MS:
            self._wrong.popleft()
        if len(self._wrong) >= WRONG_CODES_MOST:
            raise _too_many(self._wrong[0] + WINDOW_MS - now)
        # Counted before it is known: of many tries at once none may slip through meanwhile.
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
        # It may have left by itself, if the answer took more than the minute.
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
# Of each kind: guesses push out other guesses, and never a token that is good.
CACHED_TOKENS_MOST: Final = 1_024
Key = bytes | str


@dataclass(slots=True)
class _CachedToken:
    """What was found, and when; `is_asked` while somebody asks again."""

    token: Token | None
    at: int
    is_asked: bool = False


class TokenCache:
    """Answers by what was asked for: the digest of a secret, or the id of a token."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: dict[Key, _CachedToken] = {}
        self._missing: dict[Key, _CachedToken] = {}
        self._changes = 0

    async def ask(self, key: Key, look: Callable[[], Awaitable[Token | None]]) -> Token | None:
        """Return what is known of a key, or look."""
        now, changes = self._clock.boot_ms(), self._changes
        answer = self._found.get(key) or self._missing.get(key)
        if answer is not None:
            # While one asks the others make do: a thousand streams must not ask all at once.
            longest = LONGEST_MS if answer.is_asked else FRESH_MS
            if now - answer.at < longest:
                return answer.token
            answer.is_asked = True
        token = await look()
        # What was read before a change is an answer still, and nothing to be kept.
        if changes == self._changes:
            if answer is not None and _rights(answer.token) != _rights(token):
                # Changed elsewhere: what is known of it by its other name is as old.
                self.forget()
            self._keep(key, _CachedToken(token, now))
        return token

    def forget(self) -> None:
        """Believe nothing any more, because a token has changed."""
        self._changes += 1
        self._found.clear()
        self._missing.clear()

    def _keep(self, key: Key, answer: _CachedToken) -> None:
        for answers in (self._found, self._missing):
            answers.pop(key, None)
        answers = self._missing if answer.token is None else self._found
        if len(answers) >= CACHED_TOKENS_MOST:
            # The oldest: what is asked for again is put back at the end.
            del answers[next(iter(answers))]
        answers[key] = answer


def _rights(token: Token | None) -> tuple[object, ...] | None:
    return (token.scope, token.revoked_at, token.expires_at) if token is not None else None
