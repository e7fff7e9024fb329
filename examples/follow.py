"""Follow a session from a second process, while the first one runs its turn.

    python examples/follow.py               opens a session, and a reader beside it
    python examples/follow.py SESSION       follows a session from its beginning
    python examples/follow.py SESSION 5     follows it from behind event 5

The two processes share nothing but the store. The reader plays no turns itself.
"""

import asyncio
import sys

from holdfast import Gap, RunScope, SessionId, TurnEnded, open_holdfast
from holdfast.domain.events import name_of


async def follow(session_id: SessionId, after: int) -> None:
    async with open_holdfast(scope=RunScope.NONE) as house:
        async for item in house.follow(session_id, after=after):
            if isinstance(item, Gap):
                # Old deltas were pruned; the messages hold their text.
                print(f"{item.from_sequence}–{item.to_sequence} pruned", flush=True)
                continue
            print(f"{item.sequence:>3}  {name_of(item.payload)}", flush=True)
            if isinstance(item.payload, TurnEnded):
                return


async def speak_while_somebody_follows() -> None:
    async with open_holdfast() as house:
        session = await house.open()
        reader = await asyncio.create_subprocess_exec(sys.executable, __file__, session.id)
        await house.send(session.id, "Repeat after me: hold fast")
        await reader.wait()


if len(sys.argv) > 1:
    cursor = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    asyncio.run(follow(SessionId(sys.argv[1]), cursor))
else:
    asyncio.run(speak_while_somebody_follows())
