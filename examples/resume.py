"""Survive a crash: a process is killed in the middle of a turn, another one finishes it.

    python examples/resume.py

The model is scripted, so that it hangs in the first process and answers in the second. Nothing
of the session is lost: the step that was cut off is closed as interrupted and asked again.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from holdfast import (
    Gap,
    RunScope,
    SessionId,
    SessionRequest,
    TurnEnded,
    open_holdfast,
)
from holdfast.domain.events import StepStarted, name_of

HANGS = "- {text: You will not read this., delay_ms: 600000}"
ANSWERS = "- text: I am still here."


async def play_turns() -> None:
    """Play whatever waits in the house, for ever."""
    async with open_holdfast():
        await asyncio.Event().wait()


async def kill_in_a_turn(script: Path) -> SessionId:
    """Send a message, let another process play its turn, and kill that once the model was asked."""
    async with open_holdfast(scope=RunScope.NONE) as house:
        session = await house.open(request=SessionRequest(model=f"scripted:{script}"))
        await house.send(session.id, "Are you there?")
        player = await asyncio.create_subprocess_exec(sys.executable, __file__, "play")
        async for item in house.follow(session.id):
            if not isinstance(item, Gap) and isinstance(item.payload, StepStarted):
                break
        player.kill()
        await player.wait()
    print("The process was killed in the middle of the turn.")
    return session.id


async def go_on(session_id: SessionId) -> None:
    """Open the house again, which is all it takes, and watch the turn being finished."""
    async with open_holdfast() as house:
        async for item in house.follow(session_id):
            if isinstance(item, Gap):
                continue
            print(f"{item.sequence:>3}  {name_of(item.payload)}")
            if isinstance(item.payload, TurnEnded):
                break
        for message in await house.read(session_id):
            print(f"{message.role}: {message.text}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.yaml")
        script.write_text(HANGS)
        session_id = asyncio.run(kill_in_a_turn(script))
        script.write_text(ANSWERS)
        asyncio.run(go_on(session_id))


if sys.argv[1:] == ["play"]:
    asyncio.run(play_turns())
else:
    main()
