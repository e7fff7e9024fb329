"""What is remembered of claims is checked against the store before anybody builds on it."""

import pytest
from msgspec.structs import replace

from holdfast import Holdfast
from holdfast.domain.errors import NotFound
from holdfast.domain.ids import EntityId, SessionKey
from holdfast.domain.secrets import Secret
from holdfast.observations import service, snapshots
from holdfast.observations.merge import Fold
from holdfast.observations.model import Entity
from holdfast.observations.queries import ListedEntity
from holdfast.observations.snapshots import (
    CachedFold,
    Resolver,
    SizedCache,
    entity_of_row,
    find,
    newest_of,
)
from tests.houses import raw
from tests.observations.claims import SUBJECT, a_claim, a_payload
from tests.stand_ins import SettableClock

pytestmark = pytest.mark.anyio

NAME = SUBJECT.entity_id


def merged(*durations: int) -> CachedFold:
    """Return claims as merged, each a minute after the other."""
    fold = Fold(SUBJECT)
    claims = [a_claim(number, duration=each) for number, each in enumerate(durations, 1)]
    for claim in claims:
        fold.add(claim)
    return CachedFold(fold=fold, newest=newest_of(claims[-1]), size=10)


@pytest.mark.parametrize(
    "phantom",
    [merged(1, 2, 3), merged(8), merged(1, 9)],
    ids=["more than was written", "another first one", "another last one"],
)
async def test_what_was_merged_and_not_written_is_thrown_away(
    quiet: Holdfast, clock: SettableClock, phantom: CachedFold
) -> None:
    for duration in (1, 2):
        clock.advance(minutes=1)
        await quiet.observations.submit(quiet.owner, a_payload(duration=duration))
    memory = quiet.observations._resolver.folds
    memory.put(NAME, replace(phantom))

    await quiet.observations.submit(quiet.owner, a_payload(ended_at="2026-01-01"))

    entity = (await quiet.observations.show(quiet.owner, "abc123")).entity
    assert (entity.snapshot["duration"], entity.observation_count) == (2, 3)
    assert (await quiet.observations.rebuild()).differences == ()


@pytest.mark.parametrize("light", [service.LIGHT, 0], ids=["forgotten", "heavy"])
async def test_what_takes_longer_to_merge_comes_to_the_same(
    quiet: Holdfast, clock: SettableClock, light: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LIGHT", light)
    counts = []
    for duration in (1, 2, 3):
        clock.advance(minutes=1)
        told = await quiet.observations.submit(quiet.owner, a_payload(duration=duration))
        counts.append(told.observation_count)
        if light:
            quiet.observations._resolver.folds.take(NAME)

    entity = (await quiet.observations.show(quiet.owner, "abc123")).entity
    assert (counts, entity.snapshot["duration"]) == ([1, 2, 3], 3)
    assert (await quiet.observations.rebuild()).differences == ()


async def test_one_more_claim_is_merged_into_what_is_remembered(quiet: Holdfast) -> None:
    resolver = Resolver()

    async def counted() -> tuple[int, bool]:
        async def look(tx: object) -> tuple[int, bool]:
            found = await find(tx, quiet.owner, "abc123")  # type: ignore[arg-type]
            before = resolver.folds.get(NAME)
            known = await resolver.fold_of(tx, found)  # type: ignore[arg-type]
            resolver.folds.put(NAME, known)
            return known.fold.count, before is not None and known.fold is before.fold

        return await quiet.store.read(look)  # type: ignore[arg-type]

    seen = []
    for duration in (1, 2, 3):
        await quiet.observations.submit(quiet.owner, a_payload(duration=duration))
        seen.append(await counted())
    seen.append(await counted())

    assert seen == [(1, False), (2, True), (3, True), (3, True)]


def test_what_weighs_too_much_in_all_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "BYTES_MOST", 3 * (10 * snapshots.SPREAD + 4096))
    memory = SizedCache[CachedFold]()
    names = [EntityId(f"ent_{number}") for number in range(5)]
    for name in names:
        memory.put(name, merged(1))
    memory.put(names[4], merged(1, 2))

    assert [memory.get(name) is not None for name in names] == [False, False, True, True, True]
    assert memory.take(names[3]) is not None
    assert memory.take(names[3]) is None
    heavy = replace(merged(1), size=1 << 30)
    memory.put(names[0], heavy)
    assert (memory.get(names[0]), memory.get(names[4])) == (heavy, None)


@pytest.mark.parametrize("place", [{"key": 77}, {"session_key": SessionKey(77)}])
async def test_what_is_listed_and_gone_is_not_there(quiet: Holdfast, place: dict[str, int]) -> None:
    listed = ListedEntity(value=None, entity_id=SUBJECT.entity_id, **place)  # type: ignore[arg-type]

    with pytest.raises(NotFound):
        await quiet.store.read(lambda tx: entity_of_row(tx, quiet.owner, listed))


async def test_a_secret_of_ours_is_not_kept(quiet: Holdfast) -> None:
    quiet.secrets.remember("key", Secret("sk-very-secret-indeed-0123456789"))
    action = {"type": "leak", "result": "sk-very-secret-indeed-0123456789 was told"}
    await quiet.observations.submit(quiet.owner, a_payload(actions=[action]))

    history = await quiet.observations.show(quiet.owner, "abc123")

    assert "very-secret" not in str(history)
    assert "was told" in history.entity.snapshot["actions"][0]["result"]
    assert (await quiet.store.check(), (await quiet.observations.rebuild()).differences) == ([], ())


async def test_a_secret_of_ours_is_no_name_and_no_mark(quiet: Holdfast) -> None:
    secret = "sk-very-secret-indeed-0123456789"
    quiet.secrets.remember("key", Secret(secret))
    claim = a_payload(session_id=f"run {secret}")
    decision = {
        "decision": f"Use {secret}",
        "rationale": "It was there.",
        "timestamp": "2026-01-01",
    }

    await quiet.observations.submit(quiet.owner, claim, idempotency_key=secret, source=secret)
    await quiet.observations.submit_entity(quiet.owner, "agent_decision", decision)

    with raw(quiet.config.home) as file:
        names = list(file.execute("SELECT name FROM entities"))
        marks = list(file.execute("SELECT source, idempotency_key, content FROM observations"))
    assert "very-secret" not in f"{names}{marks}"


async def test_a_journal_and_its_claims_are_remembered_together(
    quiet: Holdfast, clock: SettableClock
) -> None:
    session = await quiet.open()
    await quiet.observations.submit(quiet.owner, a_payload(session_id=session.id, duration=1))

    async def look() -> Entity:
        return (await quiet.observations.show(quiet.owner, session.id)).entity

    first, again = await look(), await look()
    clock.advance(minutes=1)
    await quiet.observations.submit(quiet.owner, a_payload(session_id=session.id, duration=2))
    more = await look()
    await quiet.sessions.close(quiet.owner, session.id)
    closed = await look()

    assert first is again
    assert (first.snapshot["duration"], more.snapshot["duration"]) == (1, 2)
    assert ("ended_at" in more.snapshot, "ended_at" in closed.snapshot) == (False, True)
