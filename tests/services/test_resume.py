"""A session goes on where it was, if that is still there, or where its owner moves it."""

from pathlib import Path

import pytest

from holdfast import (
    Holdfast,
    RunScope,
    Session,
    SessionContext,
    SessionRequest,
    open_holdfast,
)
from holdfast.domain.errors import Code, Conflict, Denied, Invalid
from holdfast.domain.events import MessageAppended
from holdfast.domain.messages import Notice, NoticeCode
from holdfast.domain.sessions import Status
from holdfast.domain.tools import FsTier
from tests.houses import payloads, played
from tests.tooled import a_config, asks, call, outcomes, question, says, started

pytestmark = pytest.mark.anyio


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    folder = tmp_path / "desk"
    folder.mkdir()
    return folder


def take_away(folder: Path) -> None:
    """Remove a folder; it is an error if it does not exist."""
    folder.rmdir()


def put_back(folder: Path) -> None:
    """Make the folder again."""
    folder.mkdir()


async def opened(house: Holdfast, desk: Path, **context: object) -> Session:
    place = SessionContext(working_dir=str(desk), **context)
    return await house.open(request=SessionRequest(context=place))


@pytest.mark.parametrize("is_closed", [True, False])
async def test_a_session_whose_folder_is_gone_says_so(
    home: Path, desk: Path, is_closed: bool
) -> None:
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        session = await opened(house, desk)
        if is_closed:
            session = await house.sessions.close(house.owner, session.id)
        take_away(desk)
        with pytest.raises(Conflict) as caught:
            await house.sessions.resume(house.owner, session.id)
        after = await house.sessions.get(house.owner, session.id)
        put_back(desk)
        resumed = await house.sessions.resume(house.owner, session.id)

    assert (caught.value.code, caught.value.details) == (
        Code.WORKSPACE_MISSING,
        {"working_dir": str(desk)},
    )
    assert after == session
    assert resumed.session.status is (Status.IDLE if is_closed else Status.PENDING)


async def test_it_may_go_on_in_another_folder_and_the_record_says_so(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.txt").write_text("here\n")
    config = a_config(home, says("first"), asks(call("read_file", path="a.txt")), says("read"))
    async with open_holdfast(config=config) as house:
        session = await opened(house, desk, variables={"who": "ada"}, active_file="b.txt")
        await house.send(session.id, "hello")
        await played(house, session.id)
        take_away(desk)
        place = SessionContext(working_dir=str(other), git_ref="main@0123456789ab")
        moved = await house.sessions.resume(house.owner, session.id, context=place)
        again = await house.sessions.resume(house.owner, session.id, context=place)
        await house.send(session.id, "read a.txt")
        rows = await played(house, session.id)
        page = await house.events.list(house.owner, session.id)
    async with open_holdfast(config=config, scope=RunScope.NONE) as house:
        stored = await house.sessions.get(house.owner, session.id)
        fault = (await house.sessions.verify(house.owner, session.id)).faults

    assert moved.session.context == stored.context == again.session.context
    assert stored.context == SessionContext(
        working_dir=str(other), git_ref="main@0123456789ab", variables={"who": "ada"}
    )
    told = f"The session now works in {other}; before, it worked in {desk}."
    notices = [
        row for row in rows if row.parts[0] == Notice(code=NoticeCode.WORKSPACE_MOVED, text=told)
    ]
    assert [row.turn for row in notices] == [0]
    assert any(
        isinstance(each, MessageAppended) and each.message_id == notices[0].id
        for each in payloads(list(page.items))
    )
    assert outcomes(rows) == ["read_file ok"]
    assert fault == ()


async def test_a_session_without_tools_misses_no_folder(home: Path, desk: Path) -> None:
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        await house.agents.create(house.owner, {"name": "Talker"})
        place = SessionContext(working_dir=str(desk))
        session = await house.open("talker", SessionRequest(context=place))
        take_away(desk)
        assert (await house.sessions.resume(house.owner, session.id)).session == session


async def test_a_folder_of_the_sessions_own_is_made_again(home: Path) -> None:
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        session = await house.open()
        folder = Path(session.context.working_dir)
        take_away(folder)
        assert (await house.sessions.resume(house.owner, session.id)).session == session
    take_away(folder)


async def test_nothing_but_the_place_changes(home: Path, desk: Path, tmp_path: Path) -> None:
    other = str(tmp_path)
    wishes = {
        "not_a_folder": SessionContext(working_dir=str(tmp_path / "nothing")),
        "variables": SessionContext(working_dir=other, variables={"who": "bob"}),
        "tier": SessionContext(working_dir=other, fs_scope_tier=FsTier.FULL),
    }
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        session = await opened(house, desk, variables={"who": "ada"})
        refusals = {}
        for name, place in wishes.items():
            with pytest.raises((Invalid, Denied)) as caught:
                await house.sessions.resume(house.owner, session.id, context=place)
            refusals[name] = caught.value.code
        after = await house.sessions.get(house.owner, session.id)

    assert refusals == {
        "not_a_folder": Code.NOT_A_FOLDER,
        "variables": Code.INVALID_CONTEXT,
        "tier": Code.GRANT_EXCEEDED,
    }
    assert after == session


async def test_a_session_does_not_move_while_a_turn_runs(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    config = a_config(home, asks(call("write_file", path="a.txt", content="x")), says("done"))
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        await question(house, session)
        place = SessionContext(working_dir=str(tmp_path))
        with pytest.raises(Conflict) as caught:
            await house.sessions.resume(house.owner, session.id, context=place)
        assert (await house.sessions.get(house.owner, session.id)).context == session.context
    assert caught.value.code is Code.TURN_RUNNING


async def test_a_session_of_a_repository_stays_in_it(home: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / ".git").mkdir(parents=True)
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        repo = await house.repos.add(house.owner, str(tree), at_terminal=True)
        session = await house.open(request=SessionRequest(repo_id=repo.id))
        place = SessionContext(working_dir=str(tmp_path))
        with pytest.raises(Invalid) as caught:
            await house.sessions.resume(house.owner, session.id, context=place)
    assert (caught.value.code, caught.value.details) == (
        Code.INVALID_CONTEXT,
        {"fields": ["working_dir"]},
    )
