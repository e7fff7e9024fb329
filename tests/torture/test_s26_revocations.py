"""S26: a token that is revoked or narrowed, and a session that is deleted, end what is open."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast import Holdfast, open_holdfast
from holdfast.domain.tokens import Scope, Token
from holdfast.execution.coordinator import RunScope as Turns
from holdfast.http import sse
from holdfast.http.server import IDLE_SECONDS
from holdfast.ports.store import Tx
from tests.cli.processes import PATIENCE, running
from tests.cli.server_probe import card_of
from tests.http.sse_reader import Listener, listening
from tests.http.v1.client import Visitor, refusal, visiting
from tests.marks import proves
from tests.torture.conftest import Sized, Tell
from tests.torture.machine import DATABASE

pytestmark = pytest.mark.slow

SECONDS = 5.0
WAYS = ("revoke", "narrow", "delete")
REASONS = {"revoke": "revoked", "narrow": "revoked", "delete": "deleted"}
SLOW = "[{text: at last, delay_ms: 600000}]"


@dataclass(frozen=True)
class Reader:
    """Somebody with a token of their own, whose stream is open in the middle of a turn."""

    token: Token
    secret: str
    session: str
    stream: Listener
    way: str


@proves("S26")
def test_what_is_open_is_cut_within_five_seconds(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    count = sized(quick=3, test=5, torture=50, release=200)
    ways = [WAYS[number % len(WAYS)] for number in range(count)]

    ends, late, after = asyncio.run(cut(tmp_path, ways, luck))

    tell(f"{count} streams cut, the slowest after {late:.2f} s")
    assert ends == [REASONS[way] for way in ways]
    assert late <= sized.within(SECONDS)
    assert after == [
        (404, "session_not_found") if way == "delete" else REFUSED[way] for way in ways
    ]


@proves("S26")
def test_what_nobody_touches_goes_on(tmp_path: Path, luck: random.Random) -> None:
    async def untouched() -> bool:
        async with readers(tmp_path, ["none", "revoke"]) as (house, visitor, found):
            kept, other = found
            await act(house, visitor, other)
            await other.stream.ended()
            # Twice as long as it takes to look at every token.
            await asyncio.sleep(2 * sse.TOKEN_SECONDS)
            return (await asked(visitor, kept)) == (200, "")

    assert asyncio.run(untouched())


@pytest.fixture(params=["sqlite", "postgres"])
def kept_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Have each store in turn, for a server and for this process."""
    if request.param == "sqlite":
        return {}
    url = request.getfixturevalue("databases").fresh()
    monkeypatch.setenv(DATABASE, url)
    return {DATABASE: url}


@proves("S26")
def test_a_server_hangs_up_on_idle_streams_when_another_process_revokes_their_tokens(
    tmp_path: Path, kept_in: dict[str, str], luck: random.Random, sized: Sized, tell: Tell
) -> None:
    count = sized(test=12, torture=60, release=200)
    home = tmp_path / "home"

    with running(home, "serve", "--port", "0", "--json", more=kept_in) as server:
        port = int(card_of(server)["url"].rpartition(":")[2])
        late = asyncio.run(hung_up(home, port, count, luck))

    tell(f"{count} idle streams hung up on, the slowest after {max(late):.2f} s")
    assert max(late) < sized.within(SECONDS)


async def hung_up(home: Path, port: int, count: int, luck: random.Random) -> list[float]:
    """Revoke the token of one stream after another; return how long each connection stayed."""
    async with open_holdfast(home, scope=Turns.NONE) as beside:
        session = await beside.open()
        found = []
        for number in range(count):
            token, secret = await beside.tokens.create(beside.owner, f"{number}", Scope.READ)
            found.append((token, await streaming(port, session.id, secret)))

        async def cut_off(token: Token, reader: asyncio.StreamReader) -> float:
            # At any moment between two looks of the server.
            await asyncio.sleep(3 * luck.random())
            await beside.tokens.revoke(beside.owner, token.id)
            begun = time.monotonic()
            async with asyncio.timeout(PATIENCE):
                await reader.readuntil(b'"reason":"revoked"')
                closing = time.monotonic()
                await reader.read(-1)
            ended = time.monotonic()
            # Not kept for another request, as a connection is whose answer has ended.
            assert ended - closing < IDLE_SECONDS - 1
            return ended - begun

        late = await asyncio.gather(*(cut_off(token, reader) for token, (reader, _) in found))
        for _, (_, writer) in found:
            writer.close()
        return late


async def streaming(
    port: int, session: str, secret: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a stream on a connection of its own, past its first frame."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = (
        f"GET /v1/sessions/{session}/events?since=now HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        f"Authorization: Bearer {secret}",
        "Accept: text/event-stream",
    )
    writer.write("\r\n".join((*lines, "", "")).encode())
    async with asyncio.timeout(PATIENCE):
        await reader.readuntil(b"event: connected")
    return reader, writer


REFUSED = {"revoke": (401, "unauthenticated"), "narrow": (403, "forbidden")}
Told = tuple[int, str]


async def cut(
    folder: Path, ways: list[str], luck: random.Random
) -> tuple[list[str], float, list[Told]]:
    """End each in its way, from another process's place; return why, how late, and what follows."""
    async with readers(folder, ways) as (house, visitor, found):
        order = luck.sample(found, len(found))
        began = {}
        for reader in order:
            began[reader.secret] = time.monotonic()
            await act(house, visitor, reader)

        async def ended(reader: Reader) -> tuple[str, float]:
            frames = await reader.stream.ended()
            late = time.monotonic() - began[reader.secret]
            return frames[-1].data["reason"], late

        ends = await asyncio.gather(*map(ended, found))
        after = [await asked(visitor, reader) for reader in found]
        return [reason for reason, _ in ends], max(late for _, late in ends), after


@asynccontextmanager
async def readers(
    folder: Path, ways: list[str]
) -> AsyncIterator[tuple[Holdfast, Visitor, list[Reader]]]:
    """Open a stream for everybody while their turns run; give a second house beside the first."""
    script = folder / "script.yaml"
    script.write_text(SLOW)
    async with AsyncExitStack() as stack:
        home = folder / "home"
        house = await stack.enter_async_context(open_holdfast(home))
        visitor = await stack.enter_async_context(visiting(house))
        beside = await stack.enter_async_context(open_holdfast(home))
        agent = await visitor.agent(default_model_id=f"scripted:{script}")
        found = []
        for number, way in enumerate(ways):
            session = await visitor.session(agent["id"])
            scope = Scope.WRITE if way == "narrow" else Scope.READ
            token, secret = await house.tokens.create(house.owner, f"{number}", scope)
            path = f"/v1/sessions/{session['id']}/events"
            stream = await stack.enter_async_context(listening(visitor.app, path, secret))
            await visitor.say(session, "hello")
            await stream.until("step.started")
            found.append(Reader(token, secret, session["id"], stream, way))
        yield beside, visitor, found


async def act(beside: Holdfast, visitor: Visitor, reader: Reader) -> None:
    """Do to a reader what is done to it."""
    if reader.way == "delete":
        await visitor.delete(f"/v1/sessions/{reader.session}")
    elif reader.way == "revoke":
        await beside.tokens.revoke(beside.owner, reader.token.id)
    else:

        async def narrow(tx: Tx) -> None:
            await tx.tokens.save(replace(reader.token, scope=Scope.READ))

        await beside.store.write(narrow)


async def asked(visitor: Visitor, reader: Reader) -> Told:
    """Ask once more with the token: to change something with one that could."""
    somebody = Visitor(visitor.house, visitor.app, reader.secret)
    path = f"/v1/sessions/{reader.session}"
    if reader.way == "narrow":
        return refusal(await somebody.patch(path, {"title": "mine"}))
    answer = await somebody.get(path)
    return (200, "") if answer.status == 200 else refusal(answer)
