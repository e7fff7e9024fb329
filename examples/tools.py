"""Let an agent work in a folder: it looks by itself, and asks before it writes.

    python examples/tools.py

The folder is a temporary one and the offline model chooses the tools, so this needs no key. The
answer to a question is the same call from any program, in this process or in another one.
"""

import asyncio
import tempfile
from pathlib import Path

from holdfast import (
    Event,
    Holdfast,
    Session,
    SessionContext,
    SessionRequest,
    TurnEnded,
    open_holdfast,
)
from holdfast.domain.approvals import ApprovalState, Decision
from holdfast.domain.events import ApprovalRequested, ToolEnded

NOTES = {
    "tides.txt": "high tide at 06:12\nlow tide at 12:40\n",
    "boats/ada.txt": "sails with the low tide\n",
    ".env": "KEY=not for agents\n",
}
SAID = (
    "list .",
    "search for low tide in .",
    "read .env",
    "write plan.txt: Sail at 12:40.",
    "write diary.txt: Dear diary.",
)


async def ask(house: Holdfast, session: Session, text: str) -> None:
    """Say something, and answer what is asked on the way to the end of the turn."""
    print(f"> {text}")
    told = (await house.sessions.get(house.owner, session.id)).last_event
    await house.send(session.id, text)
    async for item in house.follow(session.id, after=told):
        match item:
            case Event(payload=ApprovalRequested() as asked):
                await decide(house, session, asked)
            case Event(payload=ToolEnded(name=name, status=status)):
                print(f"[{name}: {status}]")
            case Event(payload=TurnEnded()):
                break
    print((await house.read(session.id))[-1].text, end="\n\n")


async def decide(house: Holdfast, session: Session, asked: ApprovalRequested) -> None:
    """Allow the plan, and nothing else."""
    allowed = asked.preview["path"] == "plan.txt"
    print(f"[{asked.tool} asks, {'yes' if allowed else 'no'}]")
    answer = Decision(
        state=ApprovalState.ALLOWED if allowed else ApprovalState.DENIED,
        by="tools.py",
        note=None if allowed else "only the plan",
    )
    await house.approvals.answer(house.owner, session.id, asked.approval_id, answer)


async def work(folder: Path) -> None:
    context = SessionContext(working_dir=str(folder))
    async with open_holdfast() as house:
        session = await house.open(request=SessionRequest(context=context))
        for text in SAID:
            await ask(house, session, text)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, text in NOTES.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
        asyncio.run(work(folder))
        print(sorted(path.name for path in folder.iterdir()))


main()
