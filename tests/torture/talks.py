"""Sessions of any kind that can have been, made by luck, and their workflows as one digest.

Run as a program it prints the digest, so that other locales and time zones can be asked.
"""

import hashlib
import random
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from holdfast.domain.agents import file_form
from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    Compaction,
    Media,
    Message,
    Notice,
    NoticeCode,
    Part,
    Plan,
    PlanStep,
    Reasoning,
    ResultStatus,
    Role,
    Text,
    ToolCall,
    ToolError,
    ToolResult,
)
from holdfast.domain.sessions import Session
from holdfast.domain.time import microseconds
from holdfast.parsing.workflow_files import write_workflow
from holdfast.workflows.export import export
from holdfast.workflows.model import Workflow
from tests.builders import AT, MODEL_ID, a_message, a_session, a_tool, a_transcript, an_agent
from tests.torture.naughty import naughty

Talk = tuple[Session, tuple[Message, ...]]
REFS = {MODEL_ID: "offline:holdfast"}
HANDLE = "media://sha256-" + "ab" * 32
ENDINGS = (NoticeCode.ABORTED, NoticeCode.INTERRUPTED, NoticeCode.ERROR, NoticeCode.BUDGET)


def talks(luck: random.Random, count: int) -> list[Talk]:
    """Return sessions: of no turn to four, answered or cut off, with tools and odd words."""
    # What no row can hold was refused at the door.
    words = [each for each in naughty(luck, 20) if "\x00" not in each]
    return [_talk(luck, words) for _ in range(count)]


def workflow_of(talk: Talk) -> Workflow:
    """Return the workflow of a session."""
    session, rows = talk
    return export(session, rows, REFS, file_form(session.agent, {}, default=REFS[MODEL_ID]))


def digest(found: list[Talk], write: Callable[[Workflow], str] = write_workflow) -> str:
    """Return what all workflows come to, byte for byte."""
    texts = "".join(write(workflow_of(each)) for each in found)
    return hashlib.sha256(texts.encode()).hexdigest()


def _talk(luck: random.Random, words: list[str]) -> Talk:
    agent = an_agent(tools=(a_tool(), a_tool("find_text")), description=luck.choice((None, "x")))
    rows = [row for turn in range(1, luck.randrange(5)) for row in _turn(luck, words, turn)]
    if rows and luck.random() < 0.3:
        part = Compaction(summary=luck.choice(words), dropped_through=len(rows) // 2)
        rows.append(a_message(role=Role.SYSTEM, parts=(part,), turn=0))
    chained = a_transcript(
        *(replace(row, at=microseconds(AT) + 1000 * n) for n, row in enumerate(rows))
    )
    title = luck.choice((None, luck.choice(words), "A plan"))
    return a_session(agent=agent, title=title, updated_at=AT + timedelta(hours=1)), chained


def _turn(luck: random.Random, words: list[str], turn: int) -> list[Message]:
    rows = [_row(Role.USER, turn, *_said(luck, words)) for _ in range(luck.randrange(1, 3))]
    for number in range(luck.choice((0, 0, 1, 2, 4))):
        if luck.random() < 0.4:
            rows.append(_row(Role.ASSISTANT, turn, *_thought(luck, words)))
        call = CallId(f"call-{turn}-{number}")
        name = luck.choice(("read_file", "find_text", "ghost"))
        rows.append(
            _row(Role.TOOL_CALL, turn, ToolCall(id=call, name=name, arguments=_object(luck, words)))
        )
        rows.append(_row(Role.TOOL_RESULT, turn, _result(luck, words, call, name)))
    if luck.random() < 0.2:
        plan = Plan(steps=(PlanStep(text=luck.choice(words)),))
        rows.append(_row(Role.SYSTEM, turn, plan))
    ending = luck.random()
    if ending < 0.7:
        rows.append(_row(Role.ASSISTANT, turn, *_thought(luck, words), Text(text="done")))
    elif ending < 0.9:
        told = Notice(code=luck.choice(ENDINGS), text="It was cut off.")
        rows += [_row(Role.ASSISTANT, turn, Text(text="half")), _row(Role.SYSTEM, turn, told)]
    return rows


def _row(role: Role, turn: int, *parts: Part) -> Message:
    model = MODEL_ID if role in (Role.ASSISTANT, Role.TOOL_CALL) else None
    return a_message(role=role, turn=turn, parts=parts, model_id=model)


def _said(luck: random.Random, words: list[str]) -> list[Part]:
    parts: list[Part] = [Text(text="Say: " + luck.choice(words))]
    if luck.random() < 0.1:
        parts.append(Media(mime_type="image/png", ref=HANDLE, name="a.png"))
    return parts


def _thought(luck: random.Random, words: list[str]) -> list[Part]:
    parts: list[Part] = [Text(text=f"I think {luck.choice(words)}")]
    if luck.random() < 0.3:
        parts.insert(0, Reasoning(text=luck.choice(words)))
    return parts


def _result(luck: random.Random, words: list[str], call: CallId, name: str) -> ToolResult:
    status = luck.choice(tuple(ResultStatus))
    if status is ResultStatus.OK:
        return ToolResult(call_id=call, name=name, status=status, result=_value(luck, words, 3))
    code = luck.choice(("unknown_tool", "not_granted", "failed"))
    error = ToolError(code=code, message=luck.choice(words))
    return ToolResult(call_id=call, name=name, status=status, error=error)


def _object(luck: random.Random, words: list[str], depth: int = 2) -> dict[str, Any]:
    return {luck.choice(words): _value(luck, words, depth) for _ in range(luck.randrange(3))}


def _value(luck: random.Random, words: list[str], depth: int) -> Any:
    kind = luck.randrange(8 if depth else 6)
    if kind == 6:
        return [_value(luck, words, depth - 1) for _ in range(luck.randrange(4))]
    if kind == 7:
        return _object(luck, words, depth - 1)
    plain = (None, True, luck.randrange(-(1 << 62), 1 << 62), luck.random() * 1e9)
    return luck.choice(plain) if kind < 3 else luck.choice(words)


if __name__ == "__main__":
    print(digest(talks(random.Random(int(sys.argv[1])), int(sys.argv[2]))))
