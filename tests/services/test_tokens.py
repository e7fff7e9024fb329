"""Tokens: made, believed for seconds, ended at once; a file and a store that agree."""

import asyncio
import logging
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Config, open_holdfast
from holdfast import RunScope as Turns
from holdfast.api import Holdfast
from holdfast.app import Environment
from holdfast.domain.errors import Code, Denied, Invalid, LimitReached, NotFound, StorageFull
from holdfast.domain.ids import LOCAL_OWNER, Owner, TokenId
from holdfast.domain.tokens import Caller, Scope, Token, TokenKind, secret_of
from holdfast.ports.store import Store
from holdfast.services.tokens import CACHED_TOKENS_MOST, FRESH_MS, LONGEST_MS
from tests.builders import an_id
from tests.houses import raw
from tests.marks import each_case
from tests.stand_ins import SeededRandomness, SettableClock, StandInMachine

pytestmark = pytest.mark.anyio

STRANGER = Owner("stranger")


class CountingStore:
    """The store itself, with its reads counted; `meanwhile` happens behind the next one.

    Writes fail as long as the test says so.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reads = 0
        self.failure: Exception | None = None
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, work: Any) -> Any:
        self.reads += 1
        found = await self._store.read(work)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return found

    async def write(self, work: Any, *, urgent: bool = False) -> Any:
        if self.failure is not None:
            raise self.failure
        return await self._store.write(work, urgent=urgent)


@pytest.fixture
async def counted(home: Path, clock: SettableClock) -> AsyncIterator[Holdfast]:
    """Open a home whose store counts."""
    outside = Environment(clock=clock, machine=StandInMachine(), wrap=CountingStore)  # type: ignore[arg-type]
    async with open_holdfast(home, outside=outside, scope=Turns.NONE) as house:
        yield house


@pytest.fixture
async def beside(home: Path, quiet: Holdfast, clock: SettableClock) -> AsyncIterator[Holdfast]:
    """Open the same home once more, as another process would."""
    outside = Environment(
        clock=clock, randomness=SeededRandomness(1), machine=StandInMachine("second")
    )
    async with open_holdfast(home, outside=outside, scope=Turns.NONE) as house:
        yield house


async def test_a_token_is_made_with_a_secret_that_names_its_owner(
    quiet: Holdfast, clock: SettableClock
) -> None:
    token, secret = await quiet.tokens.create(STRANGER, "a script", Scope.READ, timedelta(days=30))

    assert token == Token(
        id=token.id,
        owner=STRANGER,
        name="a script",
        scope=Scope.READ,
        kind=TokenKind.ISSUED,
        created_at=clock.now(),
        expires_at=clock.now() + timedelta(days=30),
    )
    assert await quiet.tokens.resolve(secret) == Caller(
        owner=STRANGER, scope=Scope.READ, token_id=token.id, is_cookie=False
    )


@each_case(
    ("name", "life"),
    [
        ("", None),
        ("x" * 256, None),
        ("a\x00", None),
        ("a", timedelta()),
        ("a", timedelta(seconds=-1)),
        ("a", timedelta(days=3_651)),
        ("a", timedelta.max),
    ],
)
async def test_a_faulty_wish_makes_no_token(
    quiet: Holdfast, name: str, life: timedelta | None
) -> None:
    with pytest.raises(Invalid):
        await quiet.tokens.create(quiet.owner, name, Scope.READ, life)

    assert await quiet.tokens.list(quiet.owner) == ()


async def test_tokens_are_listed_for_their_owner_without_secrets(quiet: Holdfast) -> None:
    mine, secret = await quiet.tokens.create(quiet.owner, "mine", Scope.WRITE)
    theirs, _ = await quiet.tokens.create(STRANGER, "theirs", Scope.WRITE)

    assert await quiet.tokens.list(quiet.owner) == (mine,)
    assert await quiet.tokens.list(STRANGER) == (theirs,)
    assert set(await quiet.tokens.list_all()) == {mine, theirs}
    assert secret not in repr(await quiet.tokens.list_all())


async def test_no_secret_is_in_the_store(home: Path) -> None:
    config = Config(home=home, encryption="off")
    async with open_holdfast(config=config, scope=Turns.NONE) as house:
        secrets = [
            (await house.tokens.create(house.owner, "a", Scope.READ))[1],
            (await house.tokens.ensure_local())[1],
            await house.tokens.sign_in_code(house.owner, Scope.READ),
        ]
        secrets.append((await house.tokens.exchange(secrets[2]))[1])
        content = stored(home)

    assert b'"name":"local"' in content
    assert [secret for secret in secrets if secret.encode() in content] == []


@each_case(
    "secret",
    ["", " ", "hf_", secret_of(7), f"{secret_of(7)} ", "hf_" + "ä" * 43, "x" * 100_000, "\ud800"],
)
async def test_what_is_no_token_is_refused_and_not_repeated(quiet: Holdfast, secret: str) -> None:
    refusal = await refused(quiet, secret)

    assert refusal.code is Code.UNAUTHENTICATED
    assert secret_of(7) not in refusal.message
    assert refusal.details == {}


async def test_unknown_expired_and_revoked_secrets_are_refused_alike(
    quiet: Holdfast, clock: SettableClock
) -> None:
    _, short = await quiet.tokens.create(quiet.owner, "short", Scope.READ, timedelta(seconds=1))
    ended, revoked = await quiet.tokens.create(quiet.owner, "revoked", Scope.READ)
    await quiet.tokens.revoke(quiet.owner, ended.id)
    clock.advance(seconds=1)

    bodies = [(await refused(quiet, each)).body() for each in (short, revoked, secret_of(7), "x")]

    assert bodies == [bodies[0]] * 4


async def test_a_token_that_is_believed_ends_in_its_last_moment(
    quiet: Holdfast, clock: SettableClock
) -> None:
    _, secret = await quiet.tokens.create(quiet.owner, "short", Scope.READ, timedelta(seconds=1))
    clock.advance(milliseconds=999)
    caller = await quiet.tokens.resolve(secret)

    clock.advance(milliseconds=1)

    assert (await refused(quiet, secret)).code is Code.UNAUTHENTICATED
    assert not await quiet.tokens.still_valid(caller)


async def test_a_revoked_token_is_refused_at_once(quiet: Holdfast, clock: SettableClock) -> None:
    token, secret = await quiet.tokens.create(quiet.owner, "a", Scope.READ)
    caller = await quiet.tokens.resolve(secret)
    assert await quiet.tokens.still_valid(caller)

    ended = await quiet.tokens.revoke(quiet.owner, token.id)

    assert ended == replace(token, revoked_at=clock.now(), last_used_at=clock.now())
    await refused(quiet, secret)
    assert not await quiet.tokens.still_valid(caller)


async def test_revoking_again_changes_nothing(quiet: Holdfast, clock: SettableClock) -> None:
    token, _ = await quiet.tokens.create(quiet.owner, "a", Scope.READ)
    ended = await quiet.tokens.revoke(quiet.owner, token.id)
    clock.advance(hours=1)

    assert await quiet.tokens.revoke(quiet.owner, token.id) == ended
    assert await quiet.tokens.list(quiet.owner) == (ended,)


@each_case("wanted", [an_id(1), "nonsense", "", "' OR 1=1 --"])
async def test_a_token_that_is_not_there_cannot_be_revoked(quiet: Holdfast, wanted: str) -> None:
    with pytest.raises(NotFound) as caught:
        await quiet.tokens.revoke(quiet.owner, wanted)

    assert caught.value.code is Code.TOKEN_NOT_FOUND


async def test_somebody_elses_token_is_as_good_as_missing(quiet: Holdfast) -> None:
    token, secret = await quiet.tokens.create(STRANGER, "theirs", Scope.ADMIN)
    with pytest.raises(NotFound) as missing:
        await quiet.tokens.revoke(quiet.owner, an_id(1))

    with pytest.raises(NotFound) as foreign:
        await quiet.tokens.revoke(quiet.owner, token.id)

    assert foreign.value.body() == missing.value.body()
    assert (await quiet.tokens.resolve(secret)).owner == STRANGER


async def test_another_process_hears_of_a_revocation_within_two_seconds(
    quiet: Holdfast, beside: Holdfast, clock: SettableClock
) -> None:
    token, secret = await quiet.tokens.create(quiet.owner, "a", Scope.READ)
    caller = await beside.tokens.resolve(secret)
    assert await beside.tokens.still_valid(caller)

    await quiet.tokens.revoke(quiet.owner, token.id)
    clock.advance(milliseconds=LONGEST_MS)

    assert not await beside.tokens.still_valid(caller)
    await refused(beside, secret)


async def test_the_store_is_asked_about_a_token_once_in_a_second(
    counted: Holdfast, clock: SettableClock
) -> None:
    store: Any = counted.store
    _, secret = await counted.tokens.create(counted.owner, "a", Scope.READ)
    caller = await counted.tokens.resolve(secret)
    await counted.tokens.still_valid(caller)
    before = store.reads

    for _ in range(50):
        await counted.tokens.resolve(secret)
        assert await counted.tokens.still_valid(caller)
    clock.advance(milliseconds=FRESH_MS)
    await asyncio.gather(*(counted.tokens.still_valid(caller) for _ in range(200)))

    assert store.reads - before == 1


async def test_while_one_asks_others_make_do_for_a_second_at_most(
    counted: Holdfast, clock: SettableClock
) -> None:
    store: Any = counted.store
    _, secret = await counted.tokens.create(counted.owner, "a", Scope.READ)
    caller = await counted.tokens.resolve(secret)
    await counted.tokens.still_valid(caller)
    before = store.reads
    clock.advance(milliseconds=FRESH_MS)
    asking = asyncio.create_task(counted.tokens.still_valid(caller))
    # Once around: by then it waits for the store.
    await asyncio.sleep(0)
    clock.advance(milliseconds=LONGEST_MS - FRESH_MS)

    assert await counted.tokens.still_valid(caller)
    assert await asking
    assert store.reads - before == 2


async def test_a_look_that_began_before_a_revocation_is_not_believed_afterwards(
    counted: Holdfast,
) -> None:
    token, secret = await counted.tokens.create(counted.owner, "a", Scope.READ)
    looking = asyncio.create_task(counted.tokens.resolve(secret))
    revoking = asyncio.create_task(counted.tokens.revoke(counted.owner, token.id))
    await asyncio.wait([looking, revoking])

    assert isinstance(looking.exception(), Denied | None)
    await refused(counted, secret)


async def test_wrong_secrets_push_no_good_one_out(counted: Holdfast) -> None:
    store: Any = counted.store
    _, secret = await counted.tokens.create(counted.owner, "a", Scope.READ)
    await counted.tokens.resolve(secret)
    for number in range(CACHED_TOKENS_MOST + 10):
        await refused(counted, secret_of(number))
    before = store.reads

    await counted.tokens.resolve(secret)
    await refused(counted, secret_of(CACHED_TOKENS_MOST))
    remembered = store.reads - before
    await refused(counted, secret_of(0))

    assert (remembered, store.reads - before) == (0, 1)
    assert len(counted.tokens._known._missing) == CACHED_TOKENS_MOST


async def test_what_has_no_shape_of_ours_never_reaches_the_store(counted: Holdfast) -> None:
    store: Any = counted.store
    before = store.reads

    for number in range(100):
        await refused(counted, f"guess {number}")

    assert store.reads == before


async def test_a_use_is_noted_once_in_an_hour(quiet: Holdfast, clock: SettableClock) -> None:
    token, secret = await quiet.tokens.create(quiet.owner, "a", Scope.READ)
    first = clock.now()
    await quiet.tokens.resolve(secret)
    clock.advance(minutes=59)
    await quiet.tokens.resolve(secret)
    before = await quiet.tokens.list(quiet.owner)
    clock.advance(minutes=1)
    await quiet.tokens.resolve(secret)

    assert before == (replace(token, last_used_at=first),)
    assert await quiet.tokens.list(quiet.owner) == (replace(token, last_used_at=clock.now()),)


async def test_noting_a_use_brings_no_revoked_token_back(
    counted: Holdfast, clock: SettableClock
) -> None:
    store: Any = counted.store
    token, secret = await counted.tokens.create(counted.owner, "a", Scope.READ)
    store.meanwhile = lambda: counted.tokens.revoke(counted.owner, token.id)

    await counted.tokens.resolve(secret)

    assert await counted.tokens.list(counted.owner) == (replace(token, revoked_at=clock.now()),)
    await refused(counted, secret)


async def test_a_full_disk_keeps_nobody_out(counted: Holdfast) -> None:
    store: Any = counted.store
    token, secret = await counted.tokens.create(counted.owner, "a", Scope.READ)
    store.failure = StorageFull(Code.STORAGE_FULL, "full")

    assert (await counted.tokens.resolve(secret)).token_id == token.id
    assert await counted.tokens.list(counted.owner) == (token,)


async def test_a_caller_of_more_than_its_token_is_not_valid(quiet: Holdfast) -> None:
    _, secret = await quiet.tokens.create(quiet.owner, "a", Scope.READ)
    caller = await quiet.tokens.resolve(secret)

    assert not await quiet.tokens.still_valid(replace(caller, scope=Scope.WRITE))
    assert not await quiet.tokens.still_valid(replace(caller, token_id=TokenId(an_id(1))))
    assert await quiet.tokens.still_valid(caller)


async def test_the_first_start_makes_the_local_token(
    quiet: Holdfast, home: Path, clock: SettableClock
) -> None:
    token, secret = await quiet.tokens.ensure_local()

    # On a database that other homes may use as well, it is named after this one.
    file = home / "home-id"
    home_id = file.read_text().strip() if file.exists() else ""
    assert token == Token(
        id=token.id,
        owner=LOCAL_OWNER,
        name=f"local {home_id}".strip(),
        home=home_id,
        scope=Scope.ADMIN,
        kind=TokenKind.LOCAL,
        created_at=clock.now(),
    )
    assert (home / "token").read_text() == f"{secret}\n"
    assert stat.S_IMODE((home / "token").stat().st_mode) == 0o600
    assert await quiet.tokens.resolve(secret) == Caller(
        owner=LOCAL_OWNER, scope=Scope.ADMIN, token_id=token.id
    )


async def test_the_next_start_keeps_it(quiet: Holdfast) -> None:
    first = await quiet.tokens.ensure_local()

    assert await quiet.tokens.ensure_local() == first
    assert await quiet.tokens.list(LOCAL_OWNER) == (first[0],)


async def test_without_the_file_there_is_a_new_token_and_the_old_one_ends(
    quiet: Holdfast, home: Path, clock: SettableClock
) -> None:
    old, before = await quiet.tokens.ensure_local()
    (home / "token").unlink()
    clock.advance(milliseconds=1)

    new, after = await quiet.tokens.ensure_local()

    assert await quiet.tokens.list(LOCAL_OWNER) == (replace(old, revoked_at=clock.now()), new)
    assert (await quiet.tokens.resolve(after)).token_id == new.id
    await refused(quiet, before)


async def test_a_store_that_does_not_know_the_files_secret_takes_it_over(
    quiet: Holdfast, home: Path, clock: SettableClock
) -> None:
    old, before = await quiet.tokens.ensure_local()
    restored = secret_of(7)
    await refused(quiet, restored)
    (home / "token").write_text(restored)
    clock.advance(milliseconds=1)

    new, secret = await quiet.tokens.ensure_local()

    assert secret == restored
    assert await quiet.tokens.list(LOCAL_OWNER) == (replace(old, revoked_at=clock.now()), new)
    assert (await quiet.tokens.resolve(restored)).token_id == new.id
    await refused(quiet, before)


async def test_a_file_whose_token_was_revoked_gets_another(quiet: Holdfast, home: Path) -> None:
    old, before = await quiet.tokens.ensure_local()
    await quiet.tokens.revoke(LOCAL_OWNER, old.id)

    new, after = await quiet.tokens.ensure_local()

    assert (new.id == old.id, after == before) == (False, False)
    assert (home / "token").read_text() == f"{after}\n"


async def test_a_file_with_somebody_elses_secret_gets_another(quiet: Holdfast, home: Path) -> None:
    _, issued = await quiet.tokens.create(STRANGER, "a", Scope.READ)
    await quiet.tokens.ensure_local()
    (home / "token").write_text(issued)

    token, secret = await quiet.tokens.ensure_local()

    assert (token.kind, secret == issued) == (TokenKind.LOCAL, False)
    assert (await quiet.tokens.resolve(issued)).owner == STRANGER


async def test_many_starts_at_once_agree(quiet: Holdfast, beside: Holdfast) -> None:
    starts = [house.tokens.ensure_local() for house in (quiet, beside) for _ in range(5)]

    made = await asyncio.gather(*starts)

    assert made == [made[0]] * 10
    assert await quiet.tokens.list(LOCAL_OWNER) == (made[0][0],)


async def test_an_unsafe_file_is_refused_and_nothing_is_revoked(
    quiet: Holdfast, home: Path
) -> None:
    token, secret = await quiet.tokens.ensure_local()
    (home / "token").chmod(0o644)

    with pytest.raises(Denied) as caught:
        await quiet.tokens.ensure_local()

    assert caught.value.code is Code.TOKEN_FILE_UNSAFE
    assert await quiet.tokens.list(LOCAL_OWNER) == (token,)
    assert secret not in caught.value.message


async def test_the_local_secret_is_scrubbed_wherever_the_house_is_open(
    quiet: Holdfast, beside: Holdfast, home: Path
) -> None:
    _, secret = await quiet.tokens.ensure_local()
    async with open_holdfast(home, scope=Turns.NONE) as later:
        session = await later.open()
        await later.send(session.id, f"it is {secret}")
        (row,) = await later.read(session.id)

    assert row.text == "it is [secret:token]"
    assert quiet.secrets.scrubber.redact_text(secret) == "[secret:token]"


async def test_a_house_opens_beside_an_unsafe_file(quiet: Holdfast, home: Path) -> None:
    await quiet.tokens.ensure_local()
    (home / "token").chmod(0o644)

    async with open_holdfast(home, scope=Turns.NONE) as later:
        assert await later.tokens.list(STRANGER) == ()


async def test_a_sign_in_code_is_exchanged_for_a_token_of_the_page(
    quiet: Holdfast, clock: SettableClock
) -> None:
    code = await quiet.tokens.sign_in_code(STRANGER, Scope.WRITE)
    clock.advance(minutes=9, seconds=59)

    token, secret = await quiet.tokens.exchange(code)

    assert token == Token(
        id=token.id,
        owner=STRANGER,
        name="page",
        scope=Scope.WRITE,
        kind=TokenKind.PAGE,
        created_at=clock.now(),
        expires_at=clock.now() + timedelta(days=30),
    )
    assert await quiet.tokens.resolve(secret) == Caller(
        owner=STRANGER, scope=Scope.WRITE, token_id=token.id, is_cookie=True
    )


async def test_a_code_is_made_here_and_exchanged_there(quiet: Holdfast, beside: Holdfast) -> None:
    code = await quiet.tokens.sign_in_code(quiet.owner, Scope.ADMIN)

    token, _ = await beside.tokens.exchange(code)

    assert await quiet.tokens.list(quiet.owner) == (token,)


async def test_a_spent_an_old_and_an_unknown_code_are_refused_alike(
    quiet: Holdfast, clock: SettableClock
) -> None:
    spent = await quiet.tokens.sign_in_code(quiet.owner, Scope.ADMIN)
    await quiet.tokens.exchange(spent)
    old = await quiet.tokens.sign_in_code(quiet.owner, Scope.ADMIN)
    clock.advance(minutes=10)
    _, token = await quiet.tokens.create(quiet.owner, "a", Scope.ADMIN)

    refusals = [await not_exchanged(quiet, code) for code in (spent, old, secret_of(7), "x", token)]

    assert {type(each) for each in refusals} == {Denied}
    assert [each.body() for each in refusals] == [refusals[0].body()] * 5
    assert refusals[0].code is Code.UNAUTHENTICATED
    assert "`holdfast token link`" in refusals[0].message


async def test_codes_that_nobody_used_are_forgotten(
    quiet: Holdfast, home: Path, clock: SettableClock
) -> None:
    for _ in range(3):
        await quiet.tokens.sign_in_code(quiet.owner, Scope.READ)
    clock.advance(minutes=10, seconds=1)

    await quiet.tokens.sign_in_code(quiet.owner, Scope.READ)

    with raw(home) as connection:
        assert connection.execute("SELECT count(*) FROM sign_in_codes").get == 1


async def test_a_code_opens_nothing_by_itself(quiet: Holdfast) -> None:
    code = await quiet.tokens.sign_in_code(quiet.owner, Scope.ADMIN)

    await refused(quiet, code)


async def test_of_many_exchanges_of_one_code_one_wins(quiet: Holdfast, beside: Holdfast) -> None:
    code = await quiet.tokens.sign_in_code(quiet.owner, Scope.ADMIN)
    houses = [quiet, beside] * 5

    done = await asyncio.gather(
        *(house.tokens.exchange(code) for house in houses), return_exceptions=True
    )

    won = [each for each in done if not isinstance(each, BaseException)]
    lost = [each for each in done if isinstance(each, BaseException)]
    assert [type(each) for each in lost] == [Denied] * 9
    assert await quiet.tokens.list(quiet.owner) == (won[0][0],)


async def test_after_ten_wrong_codes_in_a_minute_every_code_has_to_wait(
    quiet: Holdfast, clock: SettableClock
) -> None:
    good = await quiet.tokens.sign_in_code(quiet.owner, Scope.READ)
    tries = [quiet.tokens.exchange(secret_of(number)) for number in range(100)]
    wrong = await asyncio.gather(*tries, return_exceptions=True)
    clock.advance(seconds=10.5)

    limited = await not_exchanged(quiet, good)
    clock.advance(seconds=49.499)
    still = await not_exchanged(quiet, good)
    clock.advance(milliseconds=1)
    token, _ = await quiet.tokens.exchange(good)

    assert [type(each) for each in wrong].count(Denied) == 10
    assert [type(each) for each in wrong].count(LimitReached) == 90
    assert (type(limited), limited.code) == (LimitReached, Code.SIGN_IN_LIMIT)
    assert (limited.details, still.details) == ({"retry_after": 50}, {"retry_after": 1})
    assert token.kind is TokenKind.PAGE


async def test_right_codes_and_our_own_failures_are_not_counted(
    counted: Holdfast, clock: SettableClock
) -> None:
    store: Any = counted.store
    codes = [await counted.tokens.sign_in_code(counted.owner, Scope.READ) for _ in range(25)]
    store.failure = StorageFull(Code.STORAGE_FULL, "full")
    for code in codes:
        assert isinstance(await not_exchanged(counted, code), StorageFull)
    store.failure = None

    for code in codes:
        await counted.tokens.exchange(code)

    assert len(await counted.tokens.list(counted.owner)) == 25


async def test_page_tokens_that_ran_out_long_ago_are_forgotten(
    quiet: Holdfast, clock: SettableClock
) -> None:
    await quiet.tokens.exchange(await quiet.tokens.sign_in_code(quiet.owner, Scope.READ))
    clock.advance(days=61)

    token, _ = await quiet.tokens.exchange(await quiet.tokens.sign_in_code(quiet.owner, Scope.READ))

    assert await quiet.tokens.list(quiet.owner) == (token,)


async def test_nothing_of_this_is_logged(quiet: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        _, secret = await quiet.tokens.create(quiet.owner, "a", Scope.READ)
        await quiet.tokens.resolve(secret)
        code = await quiet.tokens.sign_in_code(quiet.owner, Scope.READ)
        await quiet.tokens.exchange(code)
        await not_exchanged(quiet, code)

    assert [each for each in (secret, code) if each in caplog.text] == []


def stored(home: Path) -> bytes:
    """Return all bytes of the store's files."""
    files = [file for file in home.iterdir() if file.name.startswith("history.db")]
    return b"".join(file.read_bytes() for file in files)


async def refused(house: Holdfast, secret: str) -> Denied:
    """Return how a secret is refused."""
    with pytest.raises(Denied) as caught:
        await house.tokens.resolve(secret)
    return caught.value


async def not_exchanged(house: Holdfast, code: str) -> Denied | LimitReached | StorageFull:
    """Return how a code is refused."""
    with pytest.raises((Denied, LimitReached, StorageFull)) as caught:
        await house.tokens.exchange(code)
    return caught.value
