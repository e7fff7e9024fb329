"""Workers in trouble: they are gone while they wait, share ids of calls, or answer too much."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast import Holdfast, LocalHoldfast, Session, connect, tool
from holdfast.ask import tool_server
from holdfast.domain.calls import CallState
from holdfast.domain.errors import Invalid, NotFound, Unavailable
from holdfast.http import app
from holdfast.http.requests import read_body
from tests.client.servers import QUICK
from tests.client.servers import serving as http_serving
from tests.houses import played
from tests.services.test_client_calls import a_house, refunding, results, sent
from tests.tooled import a_config, asks, call, calls_now, outcomes, says
from tests.workers.test_serve_tools import clerk, place, refund, serving
from tests.workers.test_workers import a_worker, registered

__all__ = ["place"]

pytestmark = pytest.mark.anyio


async def until(house: Holdfast, session: Session, state: CallState) -> None:
    while (await calls_now(house, session)).get("c1") is not state:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_a_worker_that_is_gone_while_it_waits_claims_nothing(home: Path) -> None:
    async with a_house(refunding(home)) as house, http_serving(house) as at:
        worker = await registered(house)
        body = '{"claim": true, "wait_s": 20}'
        host = at.url.removeprefix("http://")
        # Without a client library, which may go on although it is cancelled while it connects.
        _, asking = await asyncio.open_connection(*host.split(":"))
        asking.write(
            f"POST /v1/workers/{worker}/next HTTP/1.1\r\nhost: {host}\r\n"
            f"authorization: Bearer {at.secret}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n{body}".encode()
        )
        await asyncio.sleep(0.3)
        asking.close()
        await asyncio.sleep(0.1)
        session = await sent(house, effect="pure")
        while not await calls_now(house, session):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        # Longer than it takes until calls are looked for without a bell.
        await asyncio.sleep(1.5)
        states = await calls_now(house, session)
        await house.sessions.interrupt(house.owner, session.id)

    assert states == {"c1": CallState.REQUESTED}


async def test_the_end_of_a_call_leaves_one_of_the_same_id_alone(
    home: Path, monkeypatch: Any, place: str
) -> None:
    monkeypatch.setattr(tool_server, "EXTEND_SECONDS", 0.1)
    began: list[str] = []
    released = asyncio.Event()

    @tool
    async def act() -> str:
        """Act."""
        began.append("call")
        await released.wait()
        return "done"

    config = a_config(home, asks(call("act", "c1")), says("done"))
    async with a_house(config) as house, serving(house, act, place=place):
        agent = await house.agents.create(house.owner, {"name": "Clerk", "tools": [act.definition]})
        sessions = [await house.open(agent.slug) for _ in range(2)]
        for each in sessions:
            await house.send(each.id, "go")
            await until(house, each, CallState.STARTED)
        await house.sessions.interrupt(house.owner, sessions[0].id)
        # Until the worker has learned it.
        await asyncio.sleep(1.5)
        released.set()
        rows = await played(house, sessions[1].id)

    assert outcomes(rows) == ["act ok"]


async def test_a_registration_is_not_undone_by_an_extension(home: Path) -> None:
    async with a_house(refunding(home)) as house:
        worker = await house.workers.register(house.owner, a_worker("refund"))
        changed = await house.workers.register(
            house.owner, a_worker("refund", "lookup"), id=worker.id
        )
        # As a request does that has read the worker before.
        await house.workers._check(worker, (), extends=True)  # type: ignore[attr-defined]
        (listed,) = await house.workers.list(house.owner)

    assert listed.capabilities == changed.capabilities


async def test_a_worker_registers_again_as_soon_as_its_server_is_back(
    home: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(tool_server, "PAUSE_SECONDS", 0.02)
    async with a_house(refunding(home)) as house:
        register, troubles = house.workers.register, [Unavailable("unavailable", "Away.")]

        async def failing(*given: Any, **more: Any) -> Any:
            if len(await house.workers.list(house.owner)) == 0 and began and troubles:
                raise troubles.pop()
            return await register(*given, **more)

        began: list[bool] = []
        monkeypatch.setattr(house.workers, "register", failing)
        async with serving(house, refund):
            while not (found := await house.workers.list(house.owner)):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            began.append(True)
            with suppress(NotFound):
                await house.workers.close(house.owner, found[0].id)
            session = await clerk(house, refund)
            rows = await played(house, session.id)

    assert not troubles
    assert outcomes(rows) == ["refund ok"]


async def test_a_result_that_cannot_be_sent_is_an_error_of_a_call_that_has_run(
    home: Path, monkeypatch: Any
) -> None:
    # As a proxy may that is in front of the server.
    monkeypatch.setattr(app, "read_body", lambda request, _: read_body(request, 1 << 20))
    runs = 0

    @tool(effect="idempotent")
    async def act() -> str:
        """Act."""
        nonlocal runs
        runs += 1
        return "x" * (2 << 20)

    config = a_config(home, asks(call("act", "c1")), says("done"))
    async with a_house(config) as house, serving(house, act, place="remote"):
        session = await clerk(house, act)
        rows = await played(house, session.id)

    (found,) = results(rows)
    assert runs == 1
    assert found.error is not None
    assert found.error.message.startswith("act was run, but its result cannot be recorded")


async def test_a_result_of_16_mib_is_taken_and_a_larger_one_is_refused(home: Path) -> None:
    async with a_house(refunding(home)) as house, http_serving(house) as at:
        session = await sent(house)
        await until(house, session, CallState.REQUESTED)
        headers = {"authorization": f"Bearer {at.secret}"}
        async with httpx2.AsyncClient(base_url=at.url, headers=headers, timeout=30) as client:
            answers = [
                await client.post(
                    f"/v1/sessions/{session.id}/calls/c1/result",
                    json={"status": "ok", "result": "x" * size},
                )
                for size in (16 << 20, (16 << 20) - 2)
            ]
        await played(house, session.id)

    assert [each.status_code for each in answers] == [400, 200]
    assert answers[0].json()["error"] == "too_large"


async def test_a_worker_without_room_is_refused(home: Path) -> None:
    async with a_house(refunding(home)) as house:
        assert isinstance(house, LocalHoldfast)
        with pytest.raises(Invalid):
            await house.serve_tools([refund], concurrency=0)
        async with (
            http_serving(house) as at,
            connect(at.url, at.secret, timeouts=QUICK) as hf,
        ):
            with pytest.raises(Invalid):
                await hf.serve_tools([refund], concurrency=-1)
