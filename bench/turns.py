"""Whole turns with an instant scripted model: how fast, and whether a long session is slower."""

import asyncio
import time
from contextlib import aclosing
from pathlib import Path

from bench.figures import Figure, measures, middle
from holdfast import Holdfast, Session, SessionRequest, open_holdfast
from holdfast.domain.events import TurnEnded

TURNS = 420
WINDOW = 20


@measures("growth", "bytes_per_turn")
def growth(folder: Path) -> dict[str, Figure]:
    """Compare the time per turn around turn 400 with the one around turn 20."""
    return asyncio.run(_growth(folder))


async def _growth(folder: Path) -> dict[str, Figure]:
    script = folder / "script.yaml"
    answer = "An answer of the usual length. " * 20
    # The usage is given: no provider counts the words of the whole request on our time.
    usage = "{input: 100, output: 100}"
    script.write_text(f"- text: {answer}\n  chunks: 4\n  repeat: {TURNS + 1}\n  usage: {usage}\n")
    question = "A question of the usual length. " * 10
    seconds = []
    async with open_holdfast(folder / "home") as holdfast:
        session = await holdfast.open(request=SessionRequest(model=f"scripted:{script}"))
        await _turn(holdfast, session, question)
        before = _size(folder)
        for _ in range(TURNS):
            started = time.perf_counter()
            await _turn(holdfast, session, question)
            seconds.append(time.perf_counter() - started)
        after = _size(folder)
    early = middle(seconds[WINDOW - 10 : WINDOW + 10])
    late = middle(seconds[400 - 10 : 400 + 10])
    content = len(question) + len(answer)
    return {
        "growth": Figure(
            value=late / early,
            unit="×",
            yardstick=1.0,
            ratio=late / early,
            goal="≤ 1.2×",
            met=late / early <= 1.2,
            note=f"{early * 1000:.2f} ms a turn at 20, {late * 1000:.2f} ms at 400",
        ),
        "bytes_per_turn": Figure(
            value=(after - before) / TURNS,
            unit="bytes",
            yardstick=content,
            ratio=(after - before) / TURNS / content,
            note="deltas not pruned",
        ),
    }


async def _turn(holdfast: Holdfast, session: Session, question: str) -> None:
    now = await holdfast.sessions.get(holdfast.owner, session.id)
    await holdfast.send(session.id, question)
    async with aclosing(holdfast.follow(session.id, after=now.last_event)) as news:
        async for event in news:
            if isinstance(event.payload, TurnEnded):
                return


def _size(folder: Path) -> int:
    return (folder / "home" / "history.db").stat().st_size
