"""A fork goes on from a row of another session: a pointer, one chain, and no copy."""

import os
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.api import Holdfast
from holdfast.app import Environment
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, Conflict, HoldfastError, Invalid, NotFound
from holdfast.domain.events import SessionForked, SessionOpened
from holdfast.domain.ids import Owner
from holdfast.domain.messages import Role, Text
from holdfast.domain.models import model_of
from holdfast.domain.sessions import (
    ForkPoint,
    ForkRequest,
    Session,
    SessionContext,
    SessionRequest,
    Status,
)
from holdfast.services.session_lifecycle import DeletePolicy
from tests.builders import a_transcript, an_id
from tests.houses import current, news_until, open_house, payloads, played, raw, texts
from tests.marks import each_case
from tests.stand_ins import Gate, GatedRuntime, SettableClock, an_answer, asked, streamed

pytestmark = pytest.mark.anyio

ID = an_id(90)


def _files(folder: Path) -> dict[str, str]:
    """Return what is in a folder and below it, by name."""
    return {
        str(path.relative_to(folder)): f"-> {os.readlink(path)}"
        if path.is_symlink()
        else path.read_text()
        for path in folder.rglob("*")
        if not path.is_dir()
    }


@pytest.fixture
async def parent(quiet: Holdfast) -> Session:
    """Write a session of three rows."""
    session = await quiet.open(request=SessionRequest(title="Parent", tags=("a",), turn_cap=7))
    for text in ("one", "two", "three"):
        await quiet.send(session.id, text)
    return await current(quiet, session)


async def test_a_fork_shares_what_its_parent_has_up_to_its_point(
    quiet: Holdfast, parent: Session
) -> None:
    fork = await quiet.sessions.fork(quiet.owner, parent.id, at=2, id=ID)

    assert fork == Session(
        id=fork.id,
        owner=parent.owner,
        agent_id=parent.agent_id,
        agent=parent.agent,
        title="Parent",
        tags=("a",),
        context=fork.context,
        grant=parent.grant,
        tools=parent.tools,
        status=Status.IDLE,
        turn=1,
        settled=1,
        turn_cap=7,
        forked_from=ForkPoint(session_id=parent.id, sequence=2),
        message_count=2,
        last_event=1,
        created_at=fork.created_at,
        updated_at=fork.updated_at,
    )
    assert await current(quiet, fork) == fork
    assert await quiet.read(fork.id) == (await quiet.read(parent.id))[:2]


@pytest.mark.parametrize("agent", [None, "other"])
async def test_a_fork_has_files_of_its_own_that_outlive_its_parent(
    quiet: Holdfast, parent: Session, agent: str | None
) -> None:
    await quiet.agents.create(quiet.owner, {"name": "Other"})
    theirs = Path(parent.context.working_dir)
    (theirs / "deep").mkdir()
    (theirs / "deep" / "a.txt").write_text("a")
    (theirs / "link").symlink_to("deep/a.txt")
    os.mkfifo(theirs / "pipe")

    wish = ForkRequest(agent=agent)
    fork = (await quiet.sessions.make_fork(quiet.owner, parent.id, wish, id=ID)).value
    mine = Path(fork.context.working_dir)
    (mine / "b.txt").write_text("b")
    again = (await quiet.sessions.make_fork(quiet.owner, parent.id, wish, id=ID)).value
    folders = sorted(folder.name for folder in mine.parent.iterdir())
    await quiet.sessions.delete(quiet.owner, parent.id, policy=DeletePolicy.DETACH)

    assert fork.context == replace(parent.context, working_dir=str(theirs.with_name(ID)))
    assert (again.context, folders) == (fork.context, sorted([parent.id, ID]))
    assert _files(theirs) == {}
    assert _files(mine) == {"b.txt": "b", "deep/a.txt": "a", "link": "-> deep/a.txt"}
    assert os.stat(mine).st_mode & 0o777 == 0o700


async def test_a_fork_works_in_the_folder_that_its_parent_was_given(
    quiet: Holdfast, tmp_path: Path
) -> None:
    place = SessionContext(working_dir=str(tmp_path))
    parent = await quiet.open(request=SessionRequest(context=place))

    fork = await quiet.sessions.fork(quiet.owner, parent.id)

    assert fork.context == place


async def test_a_fork_that_is_refused_leaves_no_files(quiet: Holdfast, parent: Session) -> None:
    with pytest.raises(NotFound):
        await quiet.sessions.fork(quiet.owner, parent.id, at=99)

    beside = Path(parent.context.working_dir).parent
    assert [folder.name for folder in beside.iterdir()] == [parent.id]


async def test_a_fork_may_have_the_built_in_agent_before_its_first_use(quiet: Holdfast) -> None:
    await quiet.agents.create(quiet.owner, {"name": "Ada"})
    parent = await quiet.open("ada")

    fork = await quiet.sessions.fork(quiet.owner, parent.id, agent="holdfast")

    assert fork.agent.slug == "holdfast"


async def test_a_fork_copies_no_row(quiet: Holdfast, parent: Session, home: Path) -> None:
    await quiet.sessions.fork(quiet.owner, parent.id)

    with raw(home) as connection:
        assert connection.execute("SELECT count(*) FROM messages").get == 3


async def test_without_a_point_a_fork_leaves_at_the_last_row(
    quiet: Holdfast, parent: Session
) -> None:
    fork = await quiet.sessions.fork(quiet.owner, parent.id)

    assert fork.forked_from == ForkPoint(session_id=parent.id, sequence=3)
    assert await quiet.read(fork.id) == await quiet.read(parent.id)


async def test_a_fork_at_zero_starts_blank(quiet: Holdfast, parent: Session) -> None:
    fork = await quiet.sessions.fork(quiet.owner, parent.id, at=0)

    assert (fork.status, fork.turn, await quiet.read(fork.id)) == (Status.PENDING, 0, ())
    first = await quiet.send(fork.id, "hello")
    assert (first.sequence, first.turn) == (1, 1)
    assert a_transcript(first) == (first,)
    assert await quiet.read(fork.id) == (first,)
    assert (await current(quiet, fork)).forked_from == ForkPoint(session_id=parent.id, sequence=0)


async def test_one_chain_runs_through_parent_and_fork(quiet: Holdfast, parent: Session) -> None:
    fork = await quiet.sessions.fork(quiet.owner, parent.id, at=2)

    own = await quiet.send(fork.id, "other")

    inherited = (await quiet.read(parent.id))[1]
    assert (own.sequence, own.turn) == (3, 2)
    assert a_transcript(own, previous=bytes.fromhex(inherited.hash), first=3) == (own,)
    assert (await quiet.sessions.verify(quiet.owner, fork.id)).faults == ()


async def test_parent_and_fork_go_their_own_ways(quiet: Holdfast, parent: Session) -> None:
    fork = await quiet.sessions.fork(quiet.owner, parent.id)

    await quiet.send(parent.id, "left")
    await quiet.send(fork.id, "right")

    assert [row.text for row in await quiet.read(parent.id)] == ["one", "two", "three", "left"]
    assert [row.text for row in await quiet.read(fork.id)] == ["one", "two", "three", "right"]


@each_case("at", [0, 1, 2, 3])
async def test_a_fork_of_a_fork_may_leave_anywhere(
    quiet: Holdfast, parent: Session, at: int
) -> None:
    child = await quiet.sessions.fork(quiet.owner, parent.id, at=2)
    await quiet.send(child.id, "own")

    grandchild = await quiet.sessions.fork(quiet.owner, child.id, at=at)
    added = await quiet.send(grandchild.id, "end")

    assert await quiet.read(grandchild.id) == (*(await quiet.read(child.id))[:at], added)
    verified = await quiet.sessions.verify(quiet.owner, grandchild.id)
    assert (verified.messages, verified.head, verified.faults) == (at + 1, added.hash, ())


async def test_parent_and_fork_both_tell_of_it(quiet: Holdfast, parent: Session) -> None:
    fork = await quiet.sessions.fork(quiet.owner, parent.id, at=1)

    told = payloads(await news_until(quiet, parent.id, SessionForked))[-1]
    assert told == SessionForked(target=fork.id, sequence=1)
    (opened,) = payloads(await news_until(quiet, fork.id, SessionOpened))
    assert opened == SessionOpened(agent="holdfast", model=None, context=fork.context)


async def test_a_fork_may_have_its_own_title(quiet: Holdfast, parent: Session) -> None:
    fork = await quiet.sessions.fork(quiet.owner, parent.id, title="Child")

    assert (await current(quiet, fork)).title == "Child"


@each_case("title", ["", "x" * 256, "a\x00"])
async def test_a_fork_with_a_faulty_title_is_refused(
    quiet: Holdfast, parent: Session, title: str
) -> None:
    with pytest.raises(Invalid) as caught:
        await quiet.sessions.fork(quiet.owner, parent.id, title=title)

    assert caught.value.code is Code.INVALID_TEXT


@pytest.mark.parametrize("at", [-1, 4])
async def test_a_fork_cannot_leave_where_there_is_no_row(
    quiet: Holdfast, parent: Session, at: int
) -> None:
    with pytest.raises(NotFound) as caught:
        await quiet.sessions.fork(quiet.owner, parent.id, at=at)

    assert (caught.value.code, caught.value.details) == (Code.MESSAGE_NOT_FOUND, {"at": at})
    assert await current(quiet, parent) == parent


async def test_repeating_a_fork_with_its_id_makes_no_second_one(
    quiet: Holdfast, parent: Session
) -> None:
    fork = await quiet.sessions.fork(quiet.owner, parent.id, at=1, id=ID)

    assert await quiet.sessions.fork(quiet.owner, parent.id, at=1, id=ID) == fork
    with pytest.raises(Conflict) as caught:
        await quiet.sessions.fork(quiet.owner, parent.id, at=2, id=ID)
    assert caught.value.code is Code.ID_REUSED


async def test_a_message_id_that_a_fork_inherits_is_taken_in_the_fork_too(
    quiet: Holdfast,
) -> None:
    parent = await quiet.open()
    message = await quiet.send(parent.id, "one", id=ID)
    fork = await quiet.sessions.fork(quiet.owner, parent.id)

    assert await quiet.send(fork.id, "one", id=ID) == message
    with pytest.raises(Conflict) as caught:
        await quiet.send(fork.id, "other", id=ID)

    assert caught.value.code is Code.MESSAGE_ID_REUSED
    await quiet.sessions.delete(quiet.owner, parent.id, policy=DeletePolicy.DETACH)
    assert [row.id for row in await quiet.read(fork.id)] == [ID]


async def test_an_id_of_a_row_that_a_fork_does_not_show_is_free_in_it(quiet: Holdfast) -> None:
    parent = await quiet.open()
    await quiet.send(parent.id, "one")
    await quiet.send(parent.id, "two", id=ID)
    fork = await quiet.sessions.fork(quiet.owner, parent.id, at=1)

    own = await quiet.send(fork.id, "other", id=ID)

    assert (own.id, own.sequence, own.text) == (ID, 2, "other")


async def test_a_missing_session_cannot_be_forked(quiet: Holdfast, parent: Session) -> None:
    for owner, session_id in ((quiet.owner, an_id(91)), (Owner("stranger"), parent.id)):
        with pytest.raises(NotFound) as caught:
            await quiet.sessions.fork(owner, session_id)
        assert caught.value.code is Code.SESSION_NOT_FOUND


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.CANCELLED])
async def test_a_closed_session_can_be_forked(
    quiet: Holdfast, parent: Session, status: Status
) -> None:
    await quiet.sessions.close(quiet.owner, parent.id, status=status)

    fork = await quiet.sessions.fork(quiet.owner, parent.id, at=3)

    assert (fork.status, (await quiet.send(fork.id, "on")).sequence) == (Status.IDLE, 4)


async def test_a_running_session_can_be_forked_and_runs_on(
    home: Path, outside: Environment
) -> None:
    gate = Gate()
    runtime = GatedRuntime(
        [(asked(),), (streamed("half"),), gate, an_answer("whole")], [an_answer("fork")]
    )
    async with open_house(home, runtime, outside=outside) as house:
        parent = await house.open()
        await house.send(parent.id, "one")
        await gate.reached()

        fork = await house.sessions.fork(house.owner, parent.id)
        assert (fork.status, fork.message_count) == (Status.IDLE, 1)
        await house.send(fork.id, "two")
        gate.open()

        assert texts(await played(house, parent.id)) == [("user", "one"), ("assistant", "whole")]
        assert texts(await played(house, fork.id)) == [
            ("user", "one"),
            ("user", "two"),
            ("assistant", "fork"),
        ]


async def test_a_turn_of_a_fork_knows_all_that_the_fork_inherits(
    home: Path, outside: Environment
) -> None:
    runtime = GatedRuntime()
    async with open_house(home, runtime, outside=outside) as house:
        parent = await house.open()
        await house.send(parent.id, "one")
        await played(house, parent.id)
        fork = await house.sessions.fork(house.owner, parent.id)

        await house.send(fork.id, "two")
        await played(house, fork.id)

        assert [row.text for row in runtime.turns[-1].history] == ["one", "done", "two"]
        assert runtime.turns[-1].turn == 2


async def test_times_in_a_fork_go_on_from_those_it_inherits_even_when_the_clock_goes_back(
    quiet: Holdfast, parent: Session, clock: SettableClock
) -> None:
    inherited = (await quiet.read(parent.id))[-1]
    clock.wall -= timedelta(days=1)

    fork = await quiet.sessions.fork(quiet.owner, parent.id)
    own = await quiet.send(fork.id, "later")

    assert own.created_at > inherited.created_at


async def test_a_fork_may_differ_from_its_parent_in_what_is_wished(
    quiet: Holdfast, parent: Session
) -> None:
    wish = ForkRequest(at=2, title="Child", tags=("b", "c"), model="offline:holdfast")

    fork = (await quiet.sessions.make_fork(quiet.owner, parent.id, wish)).value

    told = (fork.title, fork.tags, fork.model_id, fork.turn_cap, fork.agent)
    assert told == ("Child", ("b", "c"), model_of("offline:holdfast").id, 7, parent.agent)
    assert await current(quiet, fork) == fork


async def test_a_fork_may_go_on_with_another_agent(quiet: Holdfast, parent: Session) -> None:
    other = await quiet.agents.create(
        quiet.owner, {"name": "Other", "system_prompt": "You are terse.", "models": ["openai:y"]}
    )

    made = await quiet.sessions.make_fork(quiet.owner, parent.id, ForkRequest(agent="other"))

    fork = made.value
    assert (fork.agent_id, fork.agent.system_prompt) == (other.id, "You are terse.")
    assert (fork.title, fork.tags, fork.turn_cap) == (parent.title, parent.tags, parent.turn_cap)
    assert fork.forked_from == ForkPoint(session_id=parent.id, sequence=3)
    assert await quiet.read(fork.id) == await quiet.read(parent.id)
    assert await current(quiet, fork) == fork


@each_case(
    ("wish", "code"),
    [
        (ForkRequest(agent="nobody"), Code.AGENT_NOT_FOUND),
        (ForkRequest(model="nonsense"), Code.MODEL_NOT_FOUND),
        (ForkRequest(model=an_id(1)), Code.MODEL_NOT_FOUND),
    ],
)
async def test_a_fork_with_somebody_who_is_not_there_is_refused(
    quiet: Holdfast, parent: Session, wish: ForkRequest, code: Code
) -> None:
    with pytest.raises(HoldfastError) as caught:
        await quiet.sessions.make_fork(quiet.owner, parent.id, wish)

    assert caught.value.code is code
    assert await current(quiet, parent) == parent


def test_tags_of_a_fork_are_distinct() -> None:
    with pytest.raises(Invalid):
        ForkRequest(tags=("a", "a"))


async def test_a_fork_of_what_has_settled_leaves_the_open_turn_behind(
    home: Path, outside: Environment
) -> None:
    gate, late = Gate(), Gate()
    runtime = GatedRuntime([an_answer("one")], [gate, an_answer("two")], [late])
    settled = ForkRequest(is_settled=True)
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()

        async def point() -> int | None:
            fork = (await house.sessions.make_fork(house.owner, session.id, settled)).value
            return fork.forked_from.sequence if fork.forked_from else None

        assert await point() == 0
        await house.send(session.id, "hello")
        await played(house, session.id)
        assert await point() == 2
        await house.send(session.id, "again")
        await gate.reached()
        await house.send(session.id, "queued")
        assert await point() == 2
        gate.open()
        await late.reached()
        # The answer of the second turn is row 5, behind the question of the third.
        assert await point() == 5


async def test_before_a_turn_has_settled_only_what_belongs_to_none_is_shared(
    quiet: Holdfast,
) -> None:
    session = await quiet.open()
    note = MessageDraft(role=Role.SYSTEM, parts=(Text(text="x"),))
    await quiet.messages.record(quiet.owner, session.id, note)
    await quiet.send(session.id, "hello")

    settled = ForkRequest(is_settled=True)
    fork = (await quiet.sessions.make_fork(quiet.owner, session.id, settled)).value

    assert fork.forked_from == ForkPoint(session_id=session.id, sequence=1)
