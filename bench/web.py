"""Turns over HTTP: create a session, send a message, read its stream to the end of the turn."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from bench.clients import Caller
from bench.figures import Figure, at_least, at_most, below, measures, middle
from bench.servers import Server, bench_server, holdfast_server, run
from bench.yardsticks import raw_appends, raw_store

ROUNDS: Final = 5
MANY: Final = 32
ALONE: Final = 30
EACH: Final = 6
POSTS: Final = 200
SCRIPT: Final = "- text: A short answer.\n  usage: {input: 9, output: 9}\n  repeat: 1000\n"
SEND: Final = b'{"role":"user","content":{"text":"%s"}}' % (b"x" * 200)
RECORD: Final = b'{"role":"assistant","content":{"text":"%s"}}' % (b"x" * 200)


class _Id(msgspec.Struct):
    id: str


_ids = msgspec.json.Decoder(_Id)


@dataclass(frozen=True)
class Speed:
    """Turns per second, how long each first event took, and what a turn cost the processor."""

    rate: float
    firsts: list[float]
    cpu_ms: float


@measures("http_turn_1", "http_turn_32", "first_event_ms", "first_event_p99_ms")
def turns(folder: Path) -> dict[str, Figure]:
    """Alternate ours with the bare server, so that both meet the same disk and machine."""
    home = folder / "home"
    with holdfast_server(home) as ours, bench_server("bench.bare", str(folder / "raw.db")) as bare:
        return run(_turns(folder, ours, bare))


async def _turns(folder: Path, ours: Server, bare: Server) -> dict[str, Figure]:
    await prepare(folder, ours)
    alone: list[tuple[Speed, Speed]] = []
    many: list[tuple[Speed, Speed]] = []
    # A log that has been round once no longer grows, which is how it spends its life.
    for server in (ours, bare):
        await play(server, MANY, EACH)
    for _ in range(ROUNDS):
        alone.append((await play(bare, 1, ALONE), await play(ours, 1, ALONE)))
        many.append((await play(bare, MANY, EACH), await play(ours, MANY, EACH)))
    firsts = sorted(each for _, speed in alone for each in speed.firsts)
    worst = firsts[int(len(firsts) * 0.99) - 1]
    return {
        "http_turn_1": _figure(alone, 0.7),
        "http_turn_32": _figure(many, 2),
        "first_event_ms": below(middle(firsts), "ms", 5),
        "first_event_p99_ms": Figure(value=worst, unit="ms"),
    }


@measures("http_start_1", "http_start_32")
def first_turns(folder: Path) -> dict[str, Figure]:
    """Measure servers that have just started; each request comes over a connection of its own."""
    return {f"http_start_{many}": _started(folder / f"of_{many}", many) for many in (1, MANY)}


def _started(folder: Path, callers: int) -> Figure:
    pairs: list[tuple[Speed, Speed]] = []
    for number in range(ROUNDS):
        place = folder / str(number)
        place.mkdir(parents=True)
        with (
            bench_server("bench.bare", str(place / "raw.db")) as bare,
            holdfast_server(place / "home") as ours,
        ):
            run(prepare(place, ours))
            each = ALONE if callers == 1 else EACH
            pairs.append(
                (
                    run(play(bare, callers, each, keeps=False)),
                    run(play(ours, callers, each, keeps=False)),
                )
            )
    return _figure(pairs, 0.3 if callers == 1 else 0.4)


def _figure(pairs: list[tuple[Speed, Speed]], goal: float) -> Figure:
    bare, ours = (middle([pair[which].rate for pair in pairs]) for which in (0, 1))
    used = [middle([pair[which].cpu_ms for pair in pairs]) for which in (0, 1)]
    # Where commits are quick the processor decides, where they are slow their number does.
    note = f"{used[1]:.1f} ms of processor time a turn, the bare server {used[0]:.1f} ms"
    return replace(at_least(ours, "turns/s", bare, goal), note=note)


async def prepare(folder: Path, server: Server) -> None:
    """Make an agent that answers at once."""
    script = folder / "script.yaml"
    script.write_text(SCRIPT)
    agent = {
        "slug": "bench",
        "name": "Bench",
        "system_prompt": "Answer.",
        "default_model_id": f"scripted:{script}",
    }
    async with Caller(server.port, server.token) as caller:
        await caller.ask(caller.post("/v1/agents", msgspec.json.encode(agent)))


async def play(server: Server, callers: int, each: int, *, keeps: bool = True) -> Speed:
    """Let so many callers play so many turns each, one after the other.

    One that `keeps` its connection reads each stream from the start, others after a cursor.
    """
    firsts: list[float] = []

    async def one() -> None:
        async with Caller(server.port, server.token, keeps=keeps) as caller:
            opening = caller.post("/v1/agents/bench/sessions", b"{}")
            for _ in range(each):
                firsts.append(await _turn(caller, opening, "" if keeps else "&since=1"))

    turns = callers * each
    used, started = server.cpu, time.perf_counter()
    await asyncio.gather(*(one() for _ in range(callers)))
    seconds = time.perf_counter() - started
    return Speed(turns / seconds, firsts, 1000 * (server.cpu - used) / turns)


async def _turn(caller: Caller, opening: bytes, cursor: str) -> float:
    """Play a turn; return the milliseconds from the message to the first event of its stream."""
    session = _ids.decode(await caller.ask(opening)).id
    sent = time.perf_counter()
    await caller.ask(caller.post(f"/v1/sessions/{session}/messages", SEND))
    reading = caller.get(f"/v1/sessions/{session}/events?until=settled{cursor}")
    came, rest = await caller.follow(reading, b"\nid: ", b"0\r\n\r\n")
    if b"session.completed" not in rest:
        raise AssertionError(rest)
    return (came - sent) * 1000


@measures("post_ms")
def posts(folder: Path) -> dict[str, Figure]:
    """Post messages one after the other, in turn with bare commits."""
    raw = raw_store(folder / "raw.db")
    raw_appends(raw, 0, 1000)
    ours, bare = [], []
    with holdfast_server(folder / "home") as server:
        run(_posted(server))
        for number in range(1, ROUNDS + 1):
            bare.append(1000 / raw_appends(raw, number * 1000, POSTS))
            ours.append(run(_posted(server)))
    return {"post_ms": at_most(middle(ours), "ms", middle(bare), 3)}


async def _posted(server: Server) -> float:
    """Return the milliseconds of a message that is kept; nobody plays it."""
    async with Caller(server.port, server.token) as caller:
        session = _ids.decode(await caller.ask(caller.post("/v1/agents/holdfast/sessions", b"{}")))
        request = caller.post(f"/v1/sessions/{session.id}/messages", RECORD)
        started = time.perf_counter()
        for _ in range(POSTS):
            await caller.ask(request)
        return (time.perf_counter() - started) * 1000 / POSTS
