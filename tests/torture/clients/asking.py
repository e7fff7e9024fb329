"""A client that asks one question with a key, or records turns, and kills itself at one commit."""

import os
import signal
from pathlib import Path
from typing import Any

import msgspec

from holdfast import Answer, Holdfast, open_holdfast
from holdfast.app import Environment
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.ids import CallId, MessageId, SessionId
from holdfast.domain.messages import ResultStatus, Role, Text, ToolCall, ToolResult
from holdfast.ports.store import Store
from tests.torture.clients.house import settings
from tests.torture.spies import SpyStore

SESSION = SessionId("0192f0c1-0000-7000-8000-000000000001")


class StrikingAny:
    """Kills this process at the Nth write after it was armed, whatever is written."""

    def __init__(self, nth: int) -> None:
        self.left = nth
        self.is_armed = False

    def __call__(self, kind: str) -> None:
        if self.is_armed:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


async def main(
    home: str, out: str, verb: str, *, nth: int = 0, when: str = "before", turns: int = 0
) -> None:
    """Do it once, and write down what was returned; without a number nothing is killed."""
    striking, idle = StrikingAny(nth), StrikingAny(0)

    def wrap(store: Store) -> Store:
        return SpyStore(
            store,
            before=striking if when == "before" else idle,
            after=striking if when == "after" else idle,
        )

    config, outside = settings(Path(home)), Environment(wrap=wrap)
    async with open_holdfast(config=config, outside=outside) as house:
        if verb == "record":
            await house.open(id=SESSION)
        striking.is_armed = nth > 0
        done = await (ask(house) if verb == "ask" else house.record(SESSION, recording(turns)))
        striking.is_armed = False
    write_down(Path(out), done)


def write_down(out: Path, done: Any) -> None:
    """Write down what was returned."""
    out.write_bytes(msgspec.json.encode(done))


async def ask(house: Holdfast) -> Answer[None]:
    """Ask a question whose answer is streamed in many pieces."""
    return await house.ask("long question", key="report-7")


def recording(turns: int) -> list[MessageDraft]:
    """Return turns with a call each."""
    return [draft for number in range(turns) for draft in _turn(number)]


def _turn(number: int) -> list[MessageDraft]:
    called = ToolCall(id=CallId(f"c{number}"), name="refund", arguments={"order": number})
    result = ToolResult(call_id=called.id, name="", status=ResultStatus.OK, result="x" * 500)
    parts: list[tuple[Role, Any]] = [
        (Role.USER, Text(text=f"question {number}")),
        (Role.TOOL_CALL, called),
        (Role.TOOL_RESULT, result),
        (Role.ASSISTANT, Text(text=f"answer {number}")),
    ]
    return [
        MessageDraft(role=role, parts=(part,), id=_id(4 * number + place))
        for place, (role, part) in enumerate(parts)
    ]


def _id(number: int) -> MessageId:
    return MessageId(f"0192f0c1-0000-7000-8000-{number:012x}")
