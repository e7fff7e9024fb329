"""S29: limits hold exactly, however many try at once, and say how long to wait."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from holdfast.domain.agents import AcpRuntime
from holdfast.domain.tokens import Scope
from holdfast.services.agent_processes import LIMIT, RETRY_AFTER
from holdfast.services.tokens import WRONG_CODES_MOST
from tests.http.asgi import Answer, ask
from tests.http.v1.client import HOST, a_repository
from tests.marks import proves
from tests.torture.conftest import Sized, Tell
from tests.torture.doors import Doors, doors

pytestmark = pytest.mark.slow

HOSTS = [(b"host", HOST.encode())]


@proves("S29")
def test_of_many_wrong_codes_at_once_exactly_ten_are_looked_at(
    tmp_path: Path, sized: Sized, tell: Tell
) -> None:
    count = sized(quick=30, test=100, torture=500, release=1_000)

    wrong, right_now, later = asyncio.run(guessed(tmp_path, count))

    tell(f"{count} wrong codes at once, {WRONG_CODES_MOST} looked at")
    assert Counter(each.status for each in wrong) == {
        401: WRONG_CODES_MOST,
        429: count - WRONG_CODES_MOST,
    }
    limited = [each for each in wrong if each.status == 429]
    assert {each.document["error"] for each in limited} == {"sign_in_limit"}
    assert {each.headers["retry-after"] for each in limited} == {"60"}
    # Nobody's is looked at, not even a right one; it is not spent by that, either.
    assert (right_now.status, later.status) == (429, 303)


@proves("S29")
def test_of_many_right_codes_none_is_held_back(tmp_path: Path) -> None:
    async def signed_in() -> list[Answer]:
        async with doors(tmp_path / "home") as house:
            inside = house.visitor.house
            codes = [
                await inside.tokens.sign_in_code(inside.owner, Scope.READ)
                for _ in range(WRONG_CODES_MOST)
            ]
            return await asyncio.gather(*(tried(house, code) for code in codes))

    assert {each.status for each in asyncio.run(signed_in())} == {303}


@proves("S29")
def test_of_many_who_spend_one_code_exactly_one_gets_in(tmp_path: Path) -> None:
    async def raced() -> list[Answer]:
        async with doors(tmp_path / "home") as house:
            inside = house.visitor.house
            code = await inside.tokens.sign_in_code(inside.owner, Scope.READ)
            return await asyncio.gather(*(tried(house, code) for _ in range(WRONG_CODES_MOST)))

    statuses = Counter(each.status for each in asyncio.run(raced()))

    assert statuses == {303: 1, 401: WRONG_CODES_MOST - 1}


@proves("S29")
def test_of_many_sessions_at_once_exactly_as_many_open_as_there_are_slots(
    tmp_path: Path, sized: Sized, tell: Tell
) -> None:
    count = sized(test=100, torture=500, release=1_000)

    answers, active = asyncio.run(opened(tmp_path, count))

    tell(f"{count} sessions at once, {LIMIT} opened")
    assert Counter(each.status for each in answers) == {201: LIMIT, 429: count - LIMIT}
    limited = [each for each in answers if each.status == 429]
    assert {each.headers["retry-after"] for each in limited} == {str(RETRY_AFTER)}
    assert {each.document["error"] for each in limited} == {"session_limit"}
    assert active == LIMIT


@proves("S29")
def test_without_a_limit_all_of_them_open(tmp_path: Path) -> None:
    answers, _ = asyncio.run(opened(tmp_path, 20, is_program=False))

    assert {each.status for each in answers} == {201}


async def guessed(folder: Path, count: int) -> tuple[list[Answer], Answer, Answer]:
    """Try wrong codes all at once, then a right one, and once more when the wait is over."""
    async with doors(folder / "home") as house:
        inside = house.visitor.house
        code = await inside.tokens.sign_in_code(inside.owner, Scope.READ)
        wrong = await asyncio.gather(*(tried(house, f"hf_{number:043}") for number in range(count)))
        right_now = await tried(house, code)
        house.clock.advance(seconds=60)
        return wrong, right_now, await tried(house, code)


async def tried(house: Doors, code: str) -> Answer:
    """Open a sign-in link."""
    return await ask(house.app, f"/sign-in?code={code}", headers=HOSTS)


async def opened(folder: Path, count: int, *, is_program: bool = True) -> tuple[list[Answer], int]:
    """Open sessions all at once with an agent that is a program; return how many are active."""
    async with doors(folder / "home") as house:
        inside = house.visitor.house
        fields = {"runtime": AcpRuntime(command="sh")} if is_program else {"system_prompt": ""}
        agent = await inside.agents.create(inside.owner, {"name": "A", **fields})
        tree = a_repository(folder / "tree")
        repo = await inside.repos.add(inside.owner, str(tree), at_terminal=True)
        path, body = f"/v1/agents/{agent.id}/sessions", {"repo_id": repo.id}
        answers = await asyncio.gather(*(house.visitor.post(path, body) for _ in range(count)))
        return answers, await inside.store.read(lambda tx: tx.sessions.slots())
