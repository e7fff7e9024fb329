"""A house whose agent is a scripted program, one turn of it recorded, and what a death may leave.

The oracle reads the recorded lines by itself: it shares no code with what it judges.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import Holdfast, Session, SessionRequest, open_holdfast
from holdfast.config import Config
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.events import Event, TurnEnded
from holdfast.domain.messages import Message, Reasoning, Role, ToolCall, ToolResult
from tests.acp.scripted_agents import Peer
from tests.houses import current, news_until

TEE = Path(__file__).parents[1] / "interop" / "tee.py"
END = {"stopReason": "end_turn", "usage": {"inputTokens": 3, "outputTokens": 4}}
OPTIONS = [
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]


def a_turn(repository: Path) -> list[Any]:
    """Return the steps of a turn with everything in it that an agent does."""
    running = {"toolCallId": "run", "kind": "execute", "title": "run make", "rawInput": {"n": 1}}
    asking = {"sessionId": "$session", "toolCall": running, "options": OPTIONS}
    reading = {"sessionId": "$session", "path": str(repository / "a.txt")}
    return [
        {"thought": "Let me see. "},
        {"text": "I look, "},
        {"text": "then I make."},
        {"update": _call("tool_call", "look", kind="read", rawInput={"path": "a.txt"})},
        {"update": _call("tool_call_update", "look", status="completed", rawOutput="alpha")},
        {"update": {"sessionUpdate": "plan", "entries": [{"content": "make"}]}},
        {"ask": {"method": "session/request_permission", "params": asking}},
        {"update": _call("tool_call_update", "run", status="completed", rawOutput={"code": 0})},
        {"ask": {"method": "fs/read_text_file", "params": reading}},
        {"text": "Both are done: ä 🦀."},
        {"update": _call("tool_call", "late", kind="edit", status="in_progress", rawInput={})},
        {"text": " Good bye."},
        {"reply": END},
    ]


def _call(kind: str, call_id: str, /, **fields: Any) -> dict[str, Any]:
    return {"sessionUpdate": kind, "toolCallId": call_id, **fields}


@dataclass(frozen=True)
class Told:
    """What a turn has told up to a byte: words, thoughts, and how each call stands, by its kind."""

    text: str
    thoughts: str
    calls: dict[str, str]
    is_answered: bool


@dataclass(frozen=True)
class Record:
    """The lines of an agent in one turn, as they went over the wire."""

    lines: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """Return the bytes of the whole turn."""
        return sum(map(len, self.lines))

    def boundaries(self) -> list[int]:
        """Return where messages end, and the very beginning."""
        return [sum(map(len, self.lines[:count])) for count in range(len(self.lines) + 1)]

    def told(self, size: int) -> Told:
        """Return what whole lines among so many bytes have told; the last needs no line's end."""
        text, thoughts, is_answered = "", "", False
        calls: dict[str, str] = {}
        kinds: dict[str, str] = {}
        left = size
        for line in self.lines:
            if left < len(line) - 1:
                break
            left -= len(line)
            message = json.loads(line)
            is_answered = is_answered or "result" in message
            params = message.get("params", {})
            update = params.get("update", params.get("toolCall", {}))
            if update.get("sessionUpdate") == "agent_message_chunk":
                text += update["content"]["text"]
            elif update.get("sessionUpdate") == "agent_thought_chunk":
                thoughts += update["content"]["text"]
            elif "toolCallId" in update:
                kind = kinds.setdefault(update["toolCallId"], update.get("kind", ""))
                calls[kind] = "ok" if update.get("status") == "completed" else "open"
        final = "ok" if is_answered else "unknown"
        ended = {call: final if state == "open" else state for call, state in calls.items()}
        return Told(text, thoughts, ended, is_answered)


@dataclass
class Ending:
    """What became of a turn, as a reader sees it."""

    stop: str
    code: str | None
    status: str
    told: Told
    seconds: float
    open_calls: list[str] = field(default_factory=list)

    def faults(self, expected: Told, within: float) -> list[str]:
        """Return everything that is not as a death should leave it."""
        ends = ("stop", None, "idle") if expected.is_answered else ("error", "agent_died", "failed")
        found = {
            "the end": ((self.stop, self.code, self.status), ends),
            "the text": (self.told.text, expected.text),
            "the thoughts": (self.told.thoughts, expected.thoughts),
            "the calls": (self.told.calls, expected.calls),
            "calls without an end": (self.open_calls, []),
        }
        faults = [
            f"{what} is {one!r}, not {other!r}"
            for what, (one, other) in found.items()
            if one != other
        ]
        if self.seconds > within:
            faults.append(f"it took {self.seconds:.2f} s")
        return faults


class Stage:
    """A house, a repository, and a scripted agent that can be told anew."""

    def __init__(self, house: Holdfast, folder: Path, peer: Peer, repository: Path) -> None:
        self.house = house
        self.folder = folder
        self.peer = peer
        self.repository = repository
        self._repo_id = ""

    async def agent(self, *command: str, **options: Any) -> str:
        """Make an agent of a command and return its name."""
        runtime = {"type": "acp", "command": command[0], "args": list(command[1:])}
        # Where it keeps its log, and where tests leave files for it.
        runtime |= {"options": {"writable": [str(self.folder)], **options}}
        fields = {"name": f"Peer {time.monotonic_ns()}", "runtime": runtime}
        return (await self.house.agents.create(self.house.owner, fields)).slug

    async def session(self, agent: str) -> Session:
        """Open a session in which nobody is asked."""
        repo = await self.house.repos.add(self.house.owner, str(self.repository))
        request = SessionRequest(repo_id=repo.id, approval=ApprovalMode.AUTO)
        return await self.house.open(agent, request)

    async def close(self, session: Session) -> None:
        """End a session, and its program with it."""
        await self.house.sessions.close(self.house.owner, session.id)

    def plays(self, **script: Any) -> None:
        """Change what the agent does from its next start on."""
        steps = {"session/prompt": a_turn(self.repository)}
        self.peer.write(**({"on": steps} | script))

    async def turn(self, session: Session, text: str = "go") -> Ending:
        """Send a message and return what became of it."""
        after = (await current(self.house, session)).last_event
        began = time.perf_counter()
        await self.house.send(session.id, text)
        news = await news_until(self.house, session.id, TurnEnded, after=after)
        last = news[-1]
        assert isinstance(last, Event)
        assert isinstance(last.payload, TurnEnded)
        failure = last.payload.failure
        ending = Ending(
            stop=last.payload.stop_reason.value,
            code=failure.code.value if failure else None,
            status=(await current(self.house, session)).status.value,
            told=Told("", "", {}, False),
            seconds=time.perf_counter() - began,
        )
        rows = [row for row in await self.house.read(session.id) if row.turn == last.turn]
        ending.told = _told(rows)
        ending.open_calls = [
            row.parts[0].name
            for row in rows
            if isinstance(row.parts[0], ToolCall) and row.parts[0].name not in ending.told.calls
        ]
        return ending

    async def record(self) -> Record:
        """Play the turn once through somebody who listens, and return what the agent said."""
        self.plays()
        heard = self.folder / "wire.txt"
        agent = await self.agent(sys.executable, str(TEE), str(heard), "--", *self.peer.argv)
        ending = await self.turn(await self.session(agent))
        assert ending.stop == "stop", ending
        lines = heard.read_bytes().splitlines(keepends=True)
        prompt = next(at for at, line in enumerate(lines) if b'"session/prompt"' in line)
        said = [line for line in lines[prompt:] if line.startswith(b"agent ")]
        return Record(tuple(line.removeprefix(b"agent ") for line in said))


def _told(rows: list[Message]) -> Told:
    parts = [part for row in rows for part in row.parts]
    return Told(
        text="".join(row.text for row in rows if row.role is Role.ASSISTANT),
        thoughts="".join(part.text for part in parts if isinstance(part, Reasoning)),
        calls={part.name: part.status.value for part in parts if isinstance(part, ToolResult)},
        is_answered=False,
    )


@asynccontextmanager
async def a_stage(folder: Path) -> AsyncIterator[Stage]:
    """Open a house with a repository and a scripted agent."""
    repository = folder / "work" / "repository"
    repository.mkdir(parents=True)
    (repository / "a.txt").write_text("alpha\n")
    await asyncio.to_thread(subprocess.run, ["git", "init", "-q", str(repository)], check=True)
    peer = Peer(folder / "peer")
    config = Config(
        home=folder / "home", workspace_root=folder / "work", approval=ApprovalMode.AUTO
    )
    async with open_holdfast(config=config) as house:
        yield Stage(house, folder, peer, repository)
