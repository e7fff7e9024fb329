"""Claims in the store: appended and never changed, each proven when it is read."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.domain.errors import Code, HoldfastError, Internal
from holdfast.domain.ids import LOCAL_OWNER, Owner
from holdfast.domain.time import milliseconds
from holdfast.observations.claims import Claim, accept_payload, build_observation
from holdfast.observations.merge import Fold
from holdfast.observations.model import Subject
from holdfast.observations.projections import KnownEntity
from holdfast.observations.snapshots import compute_snapshot
from holdfast.ports.store import Tx
from holdfast.store.sqlite.connection import Connection, connect
from holdfast.store.sqlite.store import SqliteStore
from tests.builders import a_head, a_session, an_agent, an_id
from tests.marks import demands
from tests.observations.claims import AT, COMPLETE, SESSION, a_payload
from tests.store.conftest import KEY

pytestmark = pytest.mark.anyio


async def written(
    tx: Tx, *payloads: Any, owner: Owner = LOCAL_OWNER, key: str | None = None
) -> KnownEntity:
    """Write claims about one session, and what is computed from them."""
    known, fold = None, None
    for number, payload in enumerate(payloads, 1):
        told = accept_payload(SESSION, payload)
        subject = Subject(owner, SESSION, told.key)
        claim = Claim(payload=told, idempotency_key=key)
        at_ms = milliseconds(AT + timedelta(minutes=number))
        observation = build_observation(subject, claim, ordinal=number, created_ms=at_ms)
        known = known or await tx.observations.add(subject, milliseconds(AT))
        known = await tx.observations.append(known, observation, told.content)
        fold = fold or Fold(subject)
        fold.add(observation)
        now = compute_snapshot(fold)
        await tx.projections.save(known, now.projection, now.body)
    assert known is not None
    return known


async def query(store: SqliteStore, sql: str) -> Any:
    """Run a statement on the writer's own connection."""

    async def run(tx: Any) -> Any:
        return await tx.observations._db.fetch(sql)

    return await store.write(run)


@demands("S3-043", "S3-043b")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE observations SET kind = 'import'",
        "UPDATE observations SET content = x'7b7d'",
        "DELETE FROM observations",
        "DELETE FROM entities",
        "REPLACE INTO observations SELECT * FROM observations",
    ],
)
async def test_no_statement_changes_a_claim(store: SqliteStore, statement: str) -> None:
    known = await store.write(lambda tx: written(tx, COMPLETE))

    with pytest.raises((apsw.ConstraintError, HoldfastError)):
        await query(store, statement)

    (kept,) = await store.read(lambda tx: tx.observations.since(known, 1))
    assert kept.fields == COMPLETE


async def test_no_claim_takes_the_place_of_another_by_its_key(store: SqliteStore) -> None:
    known = await store.write(lambda tx: written(tx, COMPLETE, key="k"))
    columns = [row[1] for row in await query(store, "PRAGMA table_info('observations')")]
    shown = ", ".join("99" if name == "ordinal" else name for name in columns)

    with pytest.raises((apsw.ConstraintError, HoldfastError)):
        await query(store, f"REPLACE INTO observations SELECT {shown} FROM observations")

    (kept,) = await store.read(lambda tx: tx.observations.since(known, 1))
    assert kept.fields == COMPLETE


async def test_what_is_kept_is_found_again(store: SqliteStore) -> None:
    known = await store.write(lambda tx: written(tx, COMPLETE, a_payload(duration=5)))
    other = await store.write(lambda tx: written(tx, COMPLETE, owner=Owner("ada"), key="k"))

    async def found(tx: Tx) -> list[Any]:
        subject = known.subject
        return [
            await tx.observations.entity(subject),
            await tx.observations.by_id(LOCAL_OWNER, known.entity_id),
            await tx.observations.by_key(known.key),
            *await tx.observations.by_name(LOCAL_OWNER, "abc123"),
            await tx.observations.by_id(Owner("ada"), known.entity_id),
            await tx.observations.by_idempotency_key(LOCAL_OWNER, "k"),
        ]

    assert await store.read(found) == [known, known, known, known, None, None]
    keyed = await store.read(lambda tx: tx.observations.by_idempotency_key(Owner("ada"), "k"))
    assert keyed is not None
    assert (keyed.subject, keyed.ordinal, keyed.fields) == (other.subject, 1, COMPLETE)


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE observations SET source = 'x'", "observation 1 of ent_"),
        ("UPDATE observations SET content = x'7b7d'", "observation 1 of ent_"),
        ("UPDATE observations SET ordinal = 7 WHERE ordinal = 1", "the observations of ent_"),
    ],
)
async def test_a_damaged_claim_is_refused_and_named(
    file: Path, store: SqliteStore, statement: str, what: str
) -> None:
    known = await store.write(lambda tx: written(tx, COMPLETE, a_payload(duration=5)))
    await query(store, "DROP TRIGGER observations_are_never_edited")
    await query(store, statement)

    with pytest.raises(Internal) as caught:
        await store.read(lambda tx: tx.observations.since(known, 1))

    assert caught.value.code is Code.CORRUPT_ROW
    assert what in caught.value.message
    assert [each for each in await store.check() if what in each]


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("UPDATE entities SET observations = 9", "entity ent_"),
        ("UPDATE snapshots SET body = x'7b7d'", "the snapshot of ent_"),
        ("UPDATE timeline SET body = x'7b7d'", "an event of ent_"),
        (
            "UPDATE entities SET session_key = (SELECT key FROM sessions)",
            "refers to the wrong session",
        ),
    ],
)
async def test_damage_to_what_was_computed_is_found(
    store: SqliteStore, statement: str, fault: str
) -> None:
    await store.write(lambda tx: tx.agents.add(an_agent()))
    await store.write(lambda tx: tx.sessions.add(a_session(), a_head(), b"digest"))
    await store.write(lambda tx: written(tx, COMPLETE))
    assert await store.check() == []

    await query(store, statement)

    assert [each for each in await store.check() if fault in each]


async def test_an_entity_knows_the_session_it_is(store: SqliteStore) -> None:
    late, early = an_id(50), an_id(51)

    async def fill(tx: Tx) -> list[KnownEntity | None]:
        await tx.agents.add(an_agent())
        await written(tx, a_payload(session_id=early))
        for number in (late, early):
            session = a_session(id=number)
            await tx.sessions.add(session, a_head(session_id=number), b"digest")
        await written(tx, a_payload(session_id=late))
        await written(tx, a_payload(session_id=late), owner=Owner("ada"))
        owners = (LOCAL_OWNER, LOCAL_OWNER, Owner("ada"))
        return [
            await tx.observations.entity(Subject(owner, SESSION, name))
            for owner, name in zip(owners, (early, late, late), strict=True)
        ]

    known = await store.write(fill)

    keys = [each.session_key for each in known if each is not None]
    heads = [
        await store.read(lambda tx, name=name: tx.sessions.state(LOCAL_OWNER, name))  # type: ignore[misc]
        for name in (early, late)
    ]
    assert keys == [*(head.key for head in heads if head), None]
    await store.write(lambda tx: tx.sessions.remove(heads[0], AT))  # type: ignore[arg-type]
    left = await store.read(lambda tx: tx.observations.by_key(known[0].key))  # type: ignore[union-attr]
    assert left is not None
    assert (left.session_key, left.count) == (None, 1)


def _rows(connection: Connection, table: str) -> list[Any]:
    return sorted(connection.query(f"SELECT * FROM {table}"), key=repr)


async def test_what_is_computed_again_is_what_was_kept(file: Path, store: SqliteStore) -> None:
    await store.write(lambda tx: written(tx, COMPLETE, a_payload(duration=5)))
    await store.write(lambda tx: written(tx, a_payload(session_id="another")))
    tables = ("entities", "snapshots", "timeline", "mentioned_ids")
    connection = connect(file, KEY)
    before = {name: _rows(connection, name) for name in tables}
    for name in ("snapshots", "timeline", "mentioned_ids"):
        await query(store, f"DELETE FROM {name}")

    async def anew(tx: Tx) -> list[bool]:
        found = []
        for key in await tx.observations.keys(0, 10):
            known = await tx.observations.verified(key)
            fold = Fold(known.subject)
            for each in await tx.observations.since(known, 1):
                fold.add(each)
            now = compute_snapshot(fold)
            found.append(await tx.projections.mend(known, now.projection, now.body))
        return found

    assert await store.write(anew) == [True, True]
    assert await store.write(anew) == [False, False]
    assert {name: _rows(connection, name) for name in tables} == before
    connection.close()
