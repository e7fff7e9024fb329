"""Agents that are programs of their own have slots; each session holds one until it ends."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from holdfast import Config, RunScope, open_holdfast
from holdfast.api import Holdfast
from holdfast.app import Environment
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.errors import Code, LimitReached
from holdfast.domain.ids import Owner
from holdfast.domain.queries import SessionQuery
from holdfast.domain.repos import Repo
from holdfast.domain.sessions import ForkRequest, Session, SessionRequest, Status
from holdfast.services.agents import BUILT_IN
from holdfast.services.session_lifecycle import DeletePolicy
from tests.houses import raw
from tests.marks import demands

pytestmark = pytest.mark.anyio

STRANGER = Owner("stranger")


@pytest.fixture
async def repo(quiet: Holdfast, tmp_path: Path) -> Repo:
    """Have an agent that is a program, and a repository for it."""
    (tmp_path / "tree" / ".git").mkdir(parents=True)
    await quiet.agents.create(quiet.owner, {"name": "Cli", "runtime": AcpRuntime(command="sh")})
    return await quiet.repos.add(quiet.owner, str(tmp_path / "tree"), at_terminal=True)


async def _opened(house: Holdfast, repo: Repo, **wishes: Any) -> Session:
    return await house.open("cli", SessionRequest(repo_id=repo.id), **wishes)


async def _full(house: Holdfast, repo: Repo) -> list[Session]:
    return [await _opened(house, repo) for _ in range(5)]


async def _refused(house: Holdfast, repo: Repo) -> LimitReached:
    with pytest.raises(LimitReached) as caught:
        await _opened(house, repo)
    return caught.value


@demands("S1-080")
async def test_the_sixth_is_told_to_wait(quiet: Holdfast, repo: Repo) -> None:
    await _full(quiet, repo)

    refused = await _refused(quiet, repo)

    assert refused.body() == {
        "error": Code.SESSION_LIMIT,
        "message": "5 of 5 agent sessions are open. Wait for one to finish, or end one.",
        "details": {"limit": 5, "active": 5, "retry_after": 60},
    }


async def test_of_many_at_once_exactly_as_many_as_there_are_slots_open(
    quiet: Holdfast, repo: Repo
) -> None:
    opened = await asyncio.gather(
        *(_opened(quiet, repo) for _ in range(20)), return_exceptions=True
    )

    kinds = [type(each) for each in opened]
    assert (kinds.count(Session), kinds.count(LimitReached)) == (5, 15)


@demands("S1-083", "S1-083b")
@pytest.mark.parametrize("how", ["completed", "cancelled", "deleted"])
async def test_a_session_that_ends_frees_its_slot(quiet: Holdfast, repo: Repo, how: str) -> None:
    opened = await _full(quiet, repo)

    if how == "deleted":
        await quiet.sessions.delete(quiet.owner, opened[0].id)
    else:
        await quiet.sessions.close(quiet.owner, opened[0].id, status=Status(how))

    await _opened(quiet, repo)
    await _refused(quiet, repo)


async def test_a_fork_and_a_session_that_is_resumed_take_slots_too(
    quiet: Holdfast, repo: Repo
) -> None:
    closed, *opened = await _full(quiet, repo)
    await quiet.sessions.close(quiet.owner, closed.id)
    await quiet.sessions.make_fork(quiet.owner, opened[0].id, ForkRequest())

    with pytest.raises(LimitReached) as caught:
        await quiet.sessions.resume(quiet.owner, closed.id)
    with pytest.raises(LimitReached):
        await quiet.messages.send_resuming(quiet.owner, closed.id, "hello")
    with pytest.raises(LimitReached):
        await quiet.sessions.make_fork(quiet.owner, opened[0].id, ForkRequest())

    assert caught.value.code is Code.SESSION_LIMIT
    assert (await quiet.sessions.get(quiet.owner, closed.id)).status is Status.COMPLETED
    # Open already, and so in no need of another one.
    assert await quiet.sessions.resume(quiet.owner, opened[0].id) is not None


async def test_a_repeated_opening_needs_no_second_slot(quiet: Holdfast, repo: Repo) -> None:
    opened = [await _opened(quiet, repo) for _ in range(4)]
    again = opened[0].id.replace(opened[0].id[:8], "0192f0c1")

    one = await _opened(quiet, repo, id=again)

    assert await _opened(quiet, repo, id=again) == one


async def test_models_need_no_slot_and_owners_share_them(
    quiet: Holdfast, repo: Repo, tmp_path: Path
) -> None:
    await _full(quiet, repo)
    await quiet.agents.get(STRANGER, BUILT_IN)
    await quiet.agents.create(STRANGER, {"name": "Cli", "runtime": AcpRuntime(command="sh")})
    theirs = await quiet.repos.add(STRANGER, str(tmp_path / "tree"), at_terminal=True)

    request = SessionRequest(repo_id=theirs.id)
    assert (await quiet.sessions.open(STRANGER, "holdfast", request)).repo_id == theirs.id
    with pytest.raises(LimitReached):
        await quiet.sessions.open(STRANGER, "cli", request)


async def test_the_limit_is_configured(home: Path, outside: Environment, tmp_path: Path) -> None:
    (tmp_path / "tree" / ".git").mkdir(parents=True)
    config = Config(home=home, max_concurrent_sessions=1)
    async with open_holdfast(config=config, outside=outside, scope=RunScope.NONE) as house:
        await house.agents.create(house.owner, {"name": "Cli", "runtime": AcpRuntime(command="sh")})
        repo = await house.repos.add(house.owner, str(tmp_path / "tree"), at_terminal=True)
        await _opened(house, repo)

        refused = await _refused(house, repo)

    assert refused.details == {"limit": 1, "active": 1, "retry_after": 60}


@demands("S1-083c")
async def test_every_change_of_the_number_is_logged(
    quiet: Holdfast, repo: Repo, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="holdfast.services.agent_processes"):
        one, two = [await _opened(quiet, repo) for _ in range(2)]
        await quiet.sessions.close(quiet.owner, one.id, status=Status.CANCELLED)
        await quiet.sessions.close(quiet.owner, one.id, status=Status.CANCELLED)
        await quiet.sessions.resume(quiet.owner, one.id)
        fork = await quiet.sessions.fork(quiet.owner, two.id)
        await quiet.sessions.delete(quiet.owner, two.id, policy=DeletePolicy.CASCADE)
        model = await quiet.open()
        await quiet.sessions.delete(quiet.owner, model.id)

    told = [
        (record.msg, *(vars(record)["fields"][name] for name in FIELDS))
        for record in caplog.records
    ]
    name = "sessions.active_changed"
    assert told == [
        (name, 1, 5, 1, one.id, "opened"),
        (name, 2, 5, 1, two.id, "opened"),
        (name, 1, 5, -1, one.id, "cancelled"),
        (name, 2, 5, 1, one.id, "resumed"),
        (name, 3, 5, 1, fork.id, "forked"),
        (name, 1, 5, -2, two.id, "deleted"),
    ]


FIELDS = ("active", "limit", "delta", "session_id", "cause")


async def test_a_damaged_session_keeps_nobody_from_opening_one(
    quiet: Holdfast, repo: Repo, home: Path
) -> None:
    damaged = await _opened(quiet, repo)
    with raw(home) as connection:
        connection.execute("UPDATE openings SET body = x'7b7b'")

    opened = await _opened(quiet, repo)
    await quiet.sessions.delete(quiet.owner, damaged.id)

    assert opened.status is Status.PENDING


async def test_what_no_text_can_hold_keeps_nobody_from_opening_or_looking(
    quiet: Holdfast, repo: Repo
) -> None:
    odd = SessionRequest(repo_id=repo.id, tags=("odd",), metadata={"a\x00": "\x00"})
    opened = await quiet.open("cli", odd)

    await _opened(quiet, repo)
    found = await quiet.sessions.list(SessionQuery(owner=quiet.owner, tags=("odd",)))

    assert [(each.id, each.metadata) for each in found.items] == [(opened.id, odd.metadata)]
