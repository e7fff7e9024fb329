"""A request whose sender chose the id may be sent again: it makes one thing, and says so."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from holdfast.api import Holdfast
from holdfast.domain.errors import Code, Conflict, Invalid, NotFound
from holdfast.domain.ids import Owner, SessionId
from holdfast.domain.queries import AgentQuery, SessionQuery
from holdfast.domain.sessions import Created, ForkRequest, SessionRequest
from tests.builders import an_id
from tests.houses import current
from tests.marks import each_case

pytestmark = pytest.mark.anyio

ID = an_id(40)
ROOT = SessionId(an_id(41))
STRANGER = Owner("stranger")

Verb = Callable[..., Awaitable[Created[Any]]]


async def _agent(house: Holdfast, wish: str, id: str | None) -> Created[Any]:
    return await house.agents.make(house.owner, {"name": wish}, id=id)


async def _session(house: Holdfast, wish: str, id: str | None) -> Created[Any]:
    request = SessionRequest(title=wish)
    return await house.sessions.make(house.owner, "holdfast", request, id=id)


async def _fork(house: Holdfast, wish: str, id: str | None) -> Created[Any]:
    return await house.sessions.make_fork(house.owner, ROOT, ForkRequest(title=wish), id=id)


async def _message(house: Holdfast, wish: str, id: str | None) -> Created[Any]:
    return await house.messages.send_idempotent(house.owner, ROOT, wish, id=id)


VERBS: Mapping[str, tuple[Verb, Code]] = {
    "agent": (_agent, Code.ID_REUSED),
    "session": (_session, Code.ID_REUSED),
    "fork": (_fork, Code.ID_REUSED),
    "message": (_message, Code.MESSAGE_ID_REUSED),
}


@pytest.fixture
async def house(quiet: Holdfast) -> Holdfast:
    """Open a home with a session to fork and to write to."""
    await quiet.open(id=ROOT)
    return quiet


@pytest.mark.parametrize(("verb", "code"), VERBS.values(), ids=list(VERBS))
async def test_a_repeated_request_finds_what_the_first_one_made(
    house: Holdfast, verb: Verb, code: Code
) -> None:
    first = await verb(house, "one", ID)
    again = await verb(house, "one", ID.upper())

    assert (first.is_new, first.value.id) == (True, ID)
    assert again == Created(value=first.value, is_new=False)


@pytest.mark.parametrize(("verb", "code"), VERBS.values(), ids=list(VERBS))
async def test_an_id_with_another_request_is_refused(
    house: Holdfast, verb: Verb, code: Code
) -> None:
    first = await verb(house, "one", ID)

    with pytest.raises(Conflict) as caught:
        await verb(house, "other", ID)

    assert caught.value.code is code
    assert await verb(house, "one", ID) == Created(value=first.value, is_new=False)


@pytest.mark.parametrize(("verb", "code"), VERBS.values(), ids=list(VERBS))
async def test_without_an_id_every_request_makes_something_new(
    house: Holdfast, verb: Verb, code: Code
) -> None:
    made = [await verb(house, "one", None) for _ in range(2)]

    assert [each.is_new for each in made] == [True, True]
    assert made[0].value.id != made[1].value.id


@each_case("wanted", ["", "x", f"{ID} "])
@each_case(("verb", "code"), VERBS.values(), ids=list(VERBS))
async def test_what_is_no_id_is_refused(
    house: Holdfast, verb: Verb, code: Code, wanted: str
) -> None:
    with pytest.raises(Invalid) as caught:
        await verb(house, "one", wanted)

    assert caught.value.code is Code.INVALID_ID


async def test_a_repeated_agent_is_shown_as_it_is_now(house: Holdfast) -> None:
    await _agent(house, "one", ID)
    changed = await house.agents.update(house.owner, ID, {"name": "changed"})

    assert await _agent(house, "one", ID) == Created(value=changed, is_new=False)
    assert len((await house.agents.list(AgentQuery(owner=house.owner))).items) == 2


async def test_an_agents_id_that_somebody_else_has_is_as_good_as_any(house: Holdfast) -> None:
    mine = (await _agent(house, "one", ID)).value
    theirs = await house.agents.make(STRANGER, {"name": "other"}, id=ID)

    assert (theirs.is_new, theirs.value.id, theirs.value.name) == (True, ID, "other")
    await house.sessions.make(STRANGER, ID, SessionRequest())
    renamed = await house.agents.update(STRANGER, ID, {"name": "theirs"})
    await house.agents.archive(house.owner, ID)
    await house.agents.purge(house.owner, ID)
    assert await house.agents.get(STRANGER, ID) == renamed
    with pytest.raises(NotFound):
        await house.agents.get(house.owner, mine.id)


async def test_an_agent_without_an_id_of_its_sender_is_not_made_again_under_its_id(
    house: Holdfast,
) -> None:
    made = await house.agents.create(house.owner, {"name": "one"})

    with pytest.raises(Conflict):
        await house.agents.make(house.owner, {"name": "two"}, id=made.id)


@pytest.mark.parametrize("fields", [{"name": "\ud800"}, {"name": "x", "extra": {"a": object()}}])
async def test_fields_that_cannot_be_told_again_are_refused(
    house: Holdfast, fields: dict[str, Any]
) -> None:
    with pytest.raises(Invalid):
        await house.agents.make(house.owner, fields, id=ID)


async def test_a_repeated_opening_shows_the_session_as_it_is_now(house: Holdfast) -> None:
    made = await _session(house, "one", ID)
    await house.send(made.value.id, "hello")

    again = await _session(house, "one", ID)

    assert again == Created(value=await current(house, made.value), is_new=False)
    assert again.value.message_count == 1
    assert await house.sessions.count(SessionQuery(owner=house.owner)) == 2
