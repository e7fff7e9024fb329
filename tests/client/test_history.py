"""The client's verbs for observed history, against a real house on a real socket."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.client import (
    CheckpointQuery,
    ClaimsQuery,
    Client,
    CorrectionPost,
    EntitiesQuery,
    EntityPost,
    EntityTimelineQuery,
    HistoryPageQuery,
    PastQuery,
    RemovalQuery,
    RestorationPost,
)
from holdfast.domain.errors import Code, Conflict, Invalid, NotFound, Unavailable
from holdfast.observations.model import EntityType
from tests.cli.commands.test_history import ENTITY, SESSION, UNIT
from tests.client.servers import QUICK, Call, impostor, serving

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(quiet: Holdfast) -> AsyncIterator[Client]:
    """Talk to a house in which nothing is played."""
    async with serving(quiet) as at, Client(at.url, at.secret, timeouts=QUICK) as somebody:
        yield somebody


async def test_history_is_told_and_read(client: Client) -> None:
    history = client.history
    told = await history.submit(SESSION)
    keyed = await history.submit({**SESSION, "duration": 5}, idempotency_key="k")
    again = await history.submit({**SESSION, "duration": 5}, idempotency_key="k")
    shown = await history.show("abc123")
    early = await history.show("abc123", PastQuery(at="2020-01-01"))
    page = await history.query(HistoryPageQuery(limit=1))
    claims = await history.observations("abc123", ClaimsQuery(limit=1))
    found = await history.checkpoint("abc123", "spec_complete", CheckpointQuery())

    assert (told.entity_id, told.observation_count, told.deduplicated) == (ENTITY, 1, False)
    assert [each.code for each in keyed.warnings] == ["DURATION_MISMATCH"]
    assert (again.observation_id, again.deduplicated) == (keyed.observation_id, True)
    assert (shown.snapshot["duration"], shown.observations_total) == (5, 2)
    assert (early.snapshot, early.observation_count) == ({}, 0)
    assert [each.entity_id for each in page.data] == [ENTITY]
    assert (claims.total, claims.observations[0].ordinal) == (2, 2)
    assert (found.state, found.has_state) == ({"spec": "ready"}, True)


async def test_history_is_corrected_hidden_and_shown_again(client: Client) -> None:
    history = client.history
    await history.submit(SESSION)
    body = CorrectionPost(field="duration", value=None, reason="unknown", idempotency_key="c")
    corrected = await history.correct("abc123", body)
    hidden = await history.delete("abc123", RemovalQuery(reason="private"))
    with pytest.raises(NotFound) as missing:
        await history.show("abc123")
    shown = await history.restore("abc123", RestorationPost(idempotency_key="r"))
    again = await history.restore("abc123")

    assert corrected.observation_count == 2
    assert (hidden.deleted, shown.deleted, again.deleted) == (True, False, False)
    assert missing.value.code is Code.ENTITY_NOT_FOUND


async def test_timelines_and_entities_are_read(client: Client) -> None:
    history = client.history
    await history.submit(SESSION)
    told = await history.submit_entity(EntityPost(entity_type="feature_unit", fields=UNIT))
    timeline = await history.timeline(EntityTimelineQuery(entity_id="FU-061", limit=2))
    units = await history.entities(EntitiesQuery(entity_type=EntityType.FEATURE_UNIT))

    assert [each.event_type for each in timeline.events] == ["SessionStarted", "CheckpointReached"]
    assert (timeline.total, timeline.next_cursor is None) == (4, False)
    assert [each.entity_id for each in units.entities] == [told.entity_id]


async def test_refusals_are_the_servers(client: Client) -> None:
    await client.history.submit(SESSION, idempotency_key="k")
    with pytest.raises(Invalid) as refused:
        await client.history.submit({**SESSION, "actions": []})
    with pytest.raises(Conflict) as reused:
        await client.history.submit({**SESSION, "duration": 1}, idempotency_key="k")

    assert refused.value.code is Code.SCHEMA_VALIDATION_FAILED
    assert refused.value.details["field"] == "actions"
    assert reused.value.code is Code.IDEMPOTENCY_MISMATCH


@pytest.mark.parametrize(("key", "tries"), [("k", 2), (None, 1)])
async def test_only_what_has_a_key_is_sent_again(key: str | None, tries: int) -> None:
    sent: list[Any] = []

    async def hang_up(call: Call) -> None:
        sent.append(call.body)

    async def answer(call: Call) -> None:
        sent.append(call.body)
        told = (
            '{"entity_id":"e","observation_id":"o","observation_count":1,'
            '"action":"created","deduplicated":false,"warnings":[]}'
        )
        await call.answer(201, told)

    async with (
        impostor(hang_up, answer) as server,
        Client(server.url, "x", timeouts=QUICK) as client,
    ):
        try:
            await client.history.submit(SESSION, idempotency_key=key)
            is_told = True
        except Unavailable:
            is_told = False

    assert (len(sent), is_told) == (tries, key is not None)
