"""Laws of resolution, for whatever is claimed in whatever order."""

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from holdfast.domain.canonical_json import canonical, decode_exact
from holdfast.observations.claims import accept_correction, accept_deletion, accept_payload
from holdfast.observations.merge import ActionList, ClaimStamp, Fold, resolve
from holdfast.observations.model import Entity, EntityType, Observation, ObservationKind
from holdfast.observations.snapshots import compute_snapshot
from tests.marks import demands
from tests.observations.claims import COMPLETE, SUBJECT, UPDATE, a_claim, a_correction, entered

TIMES = st.integers(0, 3).map(lambda minute: f"2025-12-31T11:0{minute}:00Z")
WORDS = st.sampled_from(["a", "b"])
DETAILS = st.sampled_from([None, {}, {"n": 1}, {"n": True}, {"n": [1.0]}])
ACTIONS: SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"type": WORDS, "result": st.sampled_from(["success", "failure"])},
    optional={"timestamp": TIMES | st.none(), "details": DETAILS, "note": WORDS},
)
CHECKPOINTS: SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"name": WORDS, "timestamp": TIMES}, optional={"state": DETAILS, "note": WORDS | st.none()}
)
OUTCOMES: SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"type": WORDS}, optional={"id": WORDS | st.none(), "details": DETAILS}
)
FIELDS: dict[str, SearchStrategy[Any]] = {
    "actions": st.lists(ACTIONS, min_size=1, max_size=5),
    "checkpoints": st.lists(CHECKPOINTS, max_size=4),
    "outcomes": st.lists(OUTCOMES, max_size=4),
    "duration": st.none() | st.integers(1, 3),
    "started_at": TIMES,
    "ended_at": st.none() | st.just("2026-01-01T00:00:00Z"),
}
PAYLOADS = st.fixed_dictionaries(
    {"session_id": st.just("abc123"), "actions": FIELDS["actions"], "started_at": TIMES},
    optional={name: FIELDS[name] for name in ("checkpoints", "outcomes", "duration", "ended_at")},
)
MINUTES = st.integers(0, 4)
# What is kept of these beside the snapshot.
FACTS = ("ended_at", "duration")
CORRECTIONS = st.one_of(
    *(st.tuples(st.just(name), value) for name, value in FIELDS.items() if name != "session_id")
)


@st.composite
def observations(draw: Any, ordinal: int, minutes: SearchStrategy[int] = MINUTES) -> Observation:
    """Draw the so-manieth observation, of any kind, seen in one of few minutes."""
    kind = draw(st.sampled_from([ObservationKind.SUBMIT, ObservationKind.SUBMIT, *ObservationKind]))
    minute = draw(minutes)
    if kind is ObservationKind.CORRECTION:
        told = accept_correction("abc123", *draw(CORRECTIONS))
    elif kind in {ObservationKind.DELETION, ObservationKind.RESTORATION}:
        told = accept_deletion("abc123", is_deleted=kind is ObservationKind.DELETION)
    else:
        told = accept_payload(EntityType.AGENT_SESSION, draw(PAYLOADS))
    return entered(told, ordinal, kind=kind, minute=minute)


def history_cache(most: int = 7) -> SearchStrategy[list[Observation]]:
    """Return a strategy for what may be claimed of one session."""
    return st.integers(0, most).flatmap(
        lambda count: st.tuples(*(observations(number) for number in range(1, count + 1))).map(list)
    )


def bytes_of(entity: Entity) -> bytes:
    """Return an entity as it would be sent."""
    return msgspec.json.encode(entity)


def folded(history: Sequence[Observation]) -> Fold:
    """Return a fold that was told a history in time order."""
    fold = Fold(SUBJECT)
    for each in sorted(history, key=lambda one: one.place):
        fold.add(each)
    return fold


def facts(fold: Fold) -> Any:
    """Return what is stored of a fold beside its snapshot."""
    told = compute_snapshot(fold).projection
    started = told.started and (told.started.value, told.started.priority)
    return msgspec.structs.replace(told, started=None), started


def test_every_order_of_six_observations_gives_the_same_bytes() -> None:
    claims = [
        a_claim(1, **COMPLETE),
        a_claim(2, minute=9, **UPDATE),
        a_claim(3, kind=ObservationKind.IMPORT, minute=0, duration=1),
        a_correction(4, "checkpoints", [{"name": "b", "timestamp": "2025-12-31"}]),
        a_claim(5, minute=9, actions=[{"type": "x", "result": "y"}]),
        a_claim(6, minute=2, duration=None),
    ]

    found = {bytes_of(resolve(SUBJECT, order)) for order in permutations(claims)}

    assert len(found) == 1


@given(history_cache(), st.randoms())
def test_the_order_in_which_claims_are_read_does_not_matter(
    history: list[Observation], chance: Any
) -> None:
    shuffled = list(history)
    chance.shuffle(shuffled)

    assert bytes_of(resolve(SUBJECT, shuffled)) == bytes_of(resolve(SUBJECT, history))


@given(history_cache())
def test_what_is_carried_on_is_what_is_resolved_anew(history: list[Observation]) -> None:
    fold = Fold(SUBJECT)
    ordered = sorted(history, key=lambda each: each.place)

    for number, each in enumerate(ordered, 1):
        fold.add(each)
        assert bytes_of(fold.entity()) == bytes_of(resolve(SUBJECT, ordered[:number]))


@demands("S3-060")
@given(history_cache())
def test_what_was_written_and_read_again_resolves_to_the_same_bytes(
    history: list[Observation],
) -> None:
    again = [
        msgspec.structs.replace(each, fields=decode_exact(canonical(each.fields)))
        for each in history
    ]

    assert bytes_of(resolve(SUBJECT, again)) == bytes_of(resolve(SUBJECT, history))


@given(history_cache(), PAYLOADS)
def test_who_repeats_what_was_just_said_changes_nothing_but_the_count(
    history: list[Observation], payload: dict[str, Any]
) -> None:
    fold = folded(history)
    fold.add(a_claim(len(history) + 1, minute=10, **payload))
    before = fold.entity()

    fold.add(a_claim(len(history) + 2, minute=11, **payload))

    after = fold.entity()
    assert after.deleted or after.observation_count == before.observation_count + 1
    assert (
        msgspec.structs.replace(
            after,
            observation_count=before.observation_count,
            last_observation_at=before.last_observation_at,
        )
        == before
    )


@given(st.lists(PAYLOADS, min_size=1, max_size=6))
def test_nothing_that_was_submitted_is_ever_lost(payloads: list[dict[str, Any]]) -> None:
    lengths = []
    for count in range(1, len(payloads) + 1):
        claims = [a_claim(number, **each) for number, each in enumerate(payloads[:count], 1)]
        snapshot = resolve(SUBJECT, claims).snapshot
        lengths.append([len(snapshot[name]) for name in ("actions", "checkpoints", "outcomes")])

    assert all(max(column) == column[-1] for column in zip(*lengths, strict=True))
    kept = [(each["type"], each["result"]) for each in snapshot["actions"]]
    for payload in payloads:
        told = [(each["type"], each["result"]) for each in payload["actions"]]
        assert all(kept.count(each) >= told.count(each) for each in told)
        names = {(each["name"], each["timestamp"]) for each in payload.get("checkpoints", ())}
        assert names <= {(each["name"], each["timestamp"]) for each in snapshot["checkpoints"]}


@given(history_cache())
def test_provenance_names_every_field_and_only_what_was_claimed(history: list[Observation]) -> None:
    entity = resolve(SUBJECT, history)
    ids = [each.id for each in sorted(history, key=lambda one: one.place)]

    assert set(entity.provenance) == set(entity.snapshot)
    for name, whose in entity.provenance.items():
        assert list(whose) == [each for each in ids if each in whose]
        if name in entity.provenance_items:
            items = entity.provenance_items[name]
            assert len(items) == len(entity.snapshot[name])
            assert {each for item in items for each in item} <= set(whose)
            assert all(items)


Told = list[dict[str, Any]]


@given(st.lists(st.tuples(st.booleans(), st.lists(ACTIONS, max_size=6)), max_size=6))
def test_actions_merge_as_the_rule_is_written(claims: list[tuple[bool, Told]]) -> None:
    found = ActionList()
    kept: Told = []
    removed: Told = []

    for number, (is_correction, told) in enumerate(claims):
        items = decode_exact(canonical(told))
        found.take(items, ClaimStamp(1000 if is_correction else 100, number, str(number)))
        kept, removed = _merged(kept, removed, items, is_correction=is_correction)

    assert [each.members for each in found.elements] == kept


def _merged(kept: Told, removed: Told, told: Told, *, is_correction: bool) -> tuple[Told, Told]:
    """Do what the contract says, in so many words and without any index."""
    told = [{name: each[name] for name in each if each[name] is not None} for each in told]
    if is_correction:
        gone = [*removed, *kept]
        return told, [each for each in gone if not any(_fits(each, new) for new in told)]
    told = [each for each in told if not any(_fits(each, gone) for gone in removed)]
    if all(_fits(one, other) for one, other in zip(kept, told, strict=False)):
        begun = [{**one, **other} for one, other in zip(kept, told, strict=False)]
        return [*begun, *kept[len(begun) :], *told[len(begun) :]], removed
    merged, matched, new = list(kept), set[int](), []
    for each in told:
        places = (place for place in range(len(kept)) if place not in matched)
        place = next((place for place in places if _fits(each, kept[place])), None)
        if place is None:
            new.append(each)
        else:
            matched.add(place)
            merged[place] = {**kept[place], **each}
    return [*merged, *new], removed


def _fits(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(canonical(one[name]) == canonical(other[name]) for name in one if name in other)
