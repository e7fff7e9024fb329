"""R26: a reader with an odd cursor is refused or told what it missed, and sees nothing foreign."""

import asyncio
import random
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.domain.ids import Owner
from holdfast.domain.tokens import Scope as TokenScope
from tests.marks import proves
from tests.torture.callers import Caller
from tests.torture.clients.house import new_id, settings
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE, Crew
from tests.torture.cursors import Expected, Known, cursors
from tests.torture.ears import Ear, Listening, listening, refusal
from tests.torture.frames import Checker, Frame
from tests.torture.recovery import quiet
from tests.torture.served import Server

pytestmark = pytest.mark.slow

CODES = {400: {"invalid_query"}, 404: {"event_not_found"}, 409: {"cursor_ahead"}}


@proves("R26", "R29")
def test_an_odd_cursor_is_refused_or_begins_where_it_says(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    count = sized(quick=50, test=200, torture=200)
    tale = Tale(Checker(patience=sized.within(15)))

    asyncio.run(come_with_cursors(tmp_path, crew, luck, tale, count=count))

    tell(f"{tale.tried} cursors, {tale.refused} refused, {tale.begun} begun, {tale.gaps} gaps told")
    assert tale.wrong == []
    assert tale.checker.faults == []
    assert min(tale.refused, tale.begun, tale.gaps) > 0


@proves("R26")
def test_a_server_that_takes_any_cursor_is_found(
    tmp_path: Path, crew: Crew, luck: random.Random
) -> None:
    tale = Tale(Checker())

    asyncio.run(come_with_cursors(tmp_path, crew, luck, tale, count=0, fault="easy"))

    assert tale.wrong != []


@dataclass
class Tale:
    """What came of all cursors."""

    checker: Checker
    tried: int = 0
    refused: int = 0
    begun: int = 0
    gaps: int = 0
    wrong: list[str] = field(default_factory=list)


async def come_with_cursors(
    folder: Path, crew: Crew, luck: random.Random, tale: Tale, *, count: int, fault: str = ""
) -> None:
    """Try every cursor as a header and in the query, on a session some of which is pruned."""
    server = Server(crew, folder / "home", fault=fault, forked=True)
    server.start()
    async with Caller(server) as caller:
        own, other, gone = [new_id(luck) for _ in range(3)]
        ids = {}
        for session in (own, other, gone):
            await caller.open(session)
            await caller.send(session, new_id(luck, "long"))
            ids[session] = await event_ids(caller, folder / "home", session)
        strangers = await a_stranger(server)
        await caller.act("delete", gone)
        await prune(folder / "home")
        known = Known(len(ids[own]), ids[own], [*ids[other][:5], *ids[gone][:5], *strangers[:5]])
        for text, expected in cursors(known, luck, count):
            for way in ("header", "query"):
                await come(server, own, (way, text), expected, tale)
        for session, events in ((gone, 404), (new_id(luck), 404)):
            async with listening(server, Listening(session), tale.checker) as ear:
                if (ear.status, refusal(ear)[1]) != (events, "session_not_found"):
                    tale.wrong.append(f"{session} was answered {ear.status}")
    server.kill()


async def event_ids(caller: Caller, home: Path, session: str) -> list[str]:
    """Wait for the end of the turn and return the ids of all events."""
    await quiet(home)
    page = await caller.get(f"/v1/sessions/{session}/events?format=json&limit=1000")
    return [event["id"] for event in page["data"]]


async def a_stranger(server: Server) -> list[str]:
    """Let another owner have a session, and return the ids of its events."""
    async with open_holdfast(config=settings(server.home), scope=RunScope.NONE) as house:
        owner = Owner("somebody-else")
        _, token = await house.tokens.create(owner, name="theirs", scope=TokenScope.WRITE)
    async with Caller(server, token=token) as stranger:
        agent = await stranger.sure("POST", "/v1/agents", {"name": "Theirs", "system_prompt": "x"})
        session = await stranger.sure("POST", f"/v1/agents/{agent['id']}/sessions", {})
        return await event_ids(stranger, server.home, session["id"])


async def prune(home: Path) -> None:
    """Remove what may be removed."""
    async with open_holdfast(config=settings(home), scope=RunScope.NONE) as house:
        await house.maintenance.prune(timedelta(0))


async def come(
    server: Server, session: str, cursor: tuple[str, str], expected: Expected, tale: Tale
) -> None:
    """Come with one cursor, and judge the answer."""
    way, text = cursor
    headers, query = {}, "until=settled"
    if way == "query":
        query += f"&since={quote(text)}"
    elif text:
        headers = {"Last-Event-ID": text}
    wish = Listening(session, 0, query, headers)
    tale.tried += 1
    async with asyncio.timeout(PATIENCE), listening(server, wish, Checker()) as ear:
        if isinstance(expected, tuple):
            judge_refusal(ear, cursor, expected, tale)
        elif ear.status != 200:
            tale.wrong.append(f"{cursor} was answered {ear.status}")
        else:
            frames = [frame async for frame in ear]
            judge_stream(frames, (session, expected), cursor, tale)


def judge_refusal(ear: Ear, cursor: tuple[str, str], expected: tuple[int, ...], tale: Tale) -> None:
    """Note an answer that is none of those a reader is prepared for."""
    tale.refused += 1
    codes = CODES.get(ear.status, set())
    if ear.status not in expected or refusal(ear)[1] not in codes:
        tale.wrong.append(f"{cursor} was answered {ear.status} {ear.body[:100]!r}")


def judge_stream(
    frames: list[Frame], asked: tuple[str, int], cursor: tuple[str, str], tale: Tale
) -> None:
    """Note a stream that does not begin where its reader said, or shows what is not the session."""
    session, after = asked
    tale.begun += 1
    check = tale.checker.stream(after)
    for frame in frames:
        check.heard(frame)
        tale.gaps += frame.event == "gap"
        if frame.event not in {"closing", "gap"} and frame.data["session_id"] != session:
            tale.wrong.append(f"{cursor} brought news of {frame.data['session_id']}")
    if check.cursor != frames[0].data["head"]:
        tale.wrong.append(f"{cursor} was told to {check.cursor} of {frames[0].data['head']}")
