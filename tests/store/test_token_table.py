"""Tokens in the store: found by digest, one live local one per home, codes that are found once."""

from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.domain.errors import Code, HoldfastError, Internal
from holdfast.domain.ids import LOCAL_OWNER, Owner, TokenId
from holdfast.domain.tokens import Scope, SignInCode, Token, TokenKind, hash_token
from holdfast.ports.store import Tx
from holdfast.store.sqlite.store import SqliteStore
from tests.builders import AT, a_token, an_id
from tests.houses import raw

pytestmark = pytest.mark.anyio

STRANGER = Owner("stranger")
DIGEST = hash_token("one")
FULL = a_token(expires_at=AT + timedelta(1), revoked_at=AT, last_used_at=AT)
CODE = SignInCode(owner=STRANGER, scope=Scope.READ, expires_at=AT)


async def test_a_token_is_found_by_its_digest_and_by_the_id_of_its_owner(
    store: SqliteStore,
) -> None:
    async def work(tx: Tx) -> list[Token | None]:
        await tx.tokens.add(FULL, DIGEST)
        return [
            await tx.tokens.by_digest(DIGEST),
            await tx.tokens.by_id(FULL.owner, FULL.id),
            await tx.tokens.by_digest(hash_token("other")),
            await tx.tokens.by_id(STRANGER, FULL.id),
            await tx.tokens.by_id(FULL.owner, TokenId(an_id(99))),
            await tx.tokens.by_id(FULL.owner, TokenId("' OR 1 = 1 --")),
        ]

    assert await store.write(work) == [FULL, FULL, None, None, None, None]


async def test_tokens_are_listed_by_owner_in_the_order_they_were_made(store: SqliteStore) -> None:
    tokens = [
        a_token(id=TokenId(an_id(number)), owner=owner)
        for number, owner in ((3, LOCAL_OWNER), (1, STRANGER), (2, LOCAL_OWNER))
    ]

    async def work(tx: Tx) -> tuple[list[Token], list[Token], list[Token]]:
        for token in tokens:
            await tx.tokens.add(token, hash_token(token.id))
        mine, theirs = await tx.tokens.of_owner(LOCAL_OWNER), await tx.tokens.of_owner(STRANGER)
        return mine, theirs, await tx.tokens.all()

    third, first, second = tokens
    assert await store.write(work) == ([second, third], [first], [first, second, third])


async def test_a_saved_token_keeps_its_secret(store: SqliteStore) -> None:
    ended = replace(a_token(), revoked_at=AT, last_used_at=AT)

    async def work(tx: Tx) -> Token | None:
        await tx.tokens.add(a_token(), DIGEST)
        await tx.tokens.save(ended)
        return await tx.tokens.by_digest(DIGEST)

    assert await store.write(work) == ended


async def test_a_home_has_one_live_local_token(store: SqliteStore) -> None:
    first = a_token(id=TokenId(an_id(1)), kind=TokenKind.LOCAL, home="one")
    second = replace(first, id=TokenId(an_id(2)))
    elsewhere = replace(first, id=TokenId(an_id(3)), home="two")

    async def both(tx: Tx) -> None:
        await tx.tokens.add(first, DIGEST)
        await tx.tokens.add(second, hash_token("two"))

    async def in_turn(tx: Tx) -> list[list[Token]]:
        before = await tx.tokens.local()
        await tx.tokens.add(first, DIGEST)
        await tx.tokens.add(elsewhere, hash_token("three"))
        during = await tx.tokens.local()
        await tx.tokens.save(replace(first, revoked_at=AT))
        await tx.tokens.add(second, hash_token("two"))
        return [before, during, await tx.tokens.local()]

    with pytest.raises(HoldfastError):
        await store.write(both)
    assert await store.write(in_turn) == [[], [first, elsewhere], [second, elsewhere]]


async def test_a_secret_belongs_to_one_token(store: SqliteStore) -> None:
    async def work(tx: Tx) -> None:
        await tx.tokens.add(a_token(), DIGEST)
        await tx.tokens.add(a_token(id=TokenId(an_id(2))), DIGEST)

    with pytest.raises(HoldfastError):
        await store.write(work)


async def test_only_old_tokens_of_the_page_are_forgotten(store: SqliteStore) -> None:
    page = {"kind": TokenKind.PAGE}
    kept = [
        a_token(id=TokenId(an_id(1)), expires_at=AT - timedelta(1)),
        a_token(id=TokenId(an_id(2)), expires_at=AT, **page),
    ]
    old = a_token(id=TokenId(an_id(3)), expires_at=AT - timedelta(microseconds=1), **page)

    async def work(tx: Tx) -> list[Token]:
        for token in (*kept, old):
            await tx.tokens.add(token, hash_token(token.id))
        await tx.tokens.forget(AT)
        return await tx.tokens.all()

    assert await store.write(work) == kept


async def test_a_code_is_found_once(store: SqliteStore) -> None:
    async def work(tx: Tx) -> list[SignInCode | None]:
        await tx.tokens.add_code(CODE, DIGEST)
        missing = await tx.tokens.take_code(hash_token("other"))
        return [missing, await tx.tokens.take_code(DIGEST), await tx.tokens.take_code(DIGEST)]

    assert await store.write(work) == [None, CODE, None]


async def test_a_code_whose_exchange_fails_is_there_again(store: SqliteStore) -> None:
    async def fails(tx: Tx) -> None:
        await tx.tokens.take_code(DIGEST)
        raise Internal(Code.INTERNAL, "no")

    await store.write(lambda tx: tx.tokens.add_code(CODE, DIGEST))
    with pytest.raises(Internal):
        await store.write(fails)

    assert await store.write(lambda tx: tx.tokens.take_code(DIGEST)) == CODE


async def test_old_codes_are_forgotten(store: SqliteStore) -> None:
    async def work(tx: Tx) -> list[SignInCode | None]:
        await tx.tokens.add_code(CODE, DIGEST)
        await tx.tokens.add_code(replace(CODE, expires_at=AT - timedelta(1)), hash_token("old"))
        await tx.tokens.forget_codes(AT)
        return [await tx.tokens.take_code(hash_token("old")), await tx.tokens.take_code(DIGEST)]

    assert await store.write(work) == [None, CODE]


async def test_damage_is_refused_and_hides_no_neighbour(store: SqliteStore, home: Path) -> None:
    other = a_token(id=TokenId(an_id(2)), name="other")

    async def work(tx: Tx) -> None:
        await tx.tokens.add(a_token(), DIGEST)
        await tx.tokens.add(other, hash_token("two"))
        await tx.tokens.add_code(CODE, DIGEST)

    await store.write(work)
    with raw(home) as connection:
        connection.execute("UPDATE tokens SET checksum = 0 WHERE id = ?", (a_token().id,))
        connection.execute("UPDATE sign_in_codes SET checksum = 0")

    assert await store.read(lambda tx: tx.tokens.all()) == [other]
    assert await store.read(lambda tx: tx.tokens.of_owner(LOCAL_OWNER)) == [other]
    with pytest.raises(Internal):
        await store.read(lambda tx: tx.tokens.by_digest(DIGEST))
    with pytest.raises(Internal):
        await store.write(lambda tx: tx.tokens.take_code(DIGEST))
    assert sorted(await store.check()) == [
        "a sign-in code is damaged.",
        f"token {a_token().id} is damaged.",
    ]


async def test_where_pages_contradict_each_other_a_found_token_counts_and_none_is_missing(
    file: Path,
) -> None:
    plain = SqliteStore(file, None)
    await plain.write(lambda tx: tx.tokens.add(a_token(), DIGEST))
    await plain.close()
    # It is plain, so there is no key to open it with.
    (file.parent / "key").unlink()
    with raw(file.parent) as connection:
        connection.execute("UPDATE tokens SET owner = 'stranger'")
    doubted = SqliteStore(file, None)

    try:
        assert await doubted.read(lambda tx: tx.tokens.by_digest(DIGEST)) == a_token()
        with pytest.raises(Internal) as missing:
            await doubted.read(lambda tx: tx.tokens.by_digest(hash_token("other")))
        with pytest.raises(Internal) as listed:
            await doubted.read(lambda tx: tx.tokens.all())
    finally:
        await doubted.close()
    assert (missing.value.code, listed.value.details) == (Code.CORRUPT_STORE, {"table": "tokens"})
