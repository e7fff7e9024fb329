"""Both sides at once: Holdfast as a client drives `holdfast acp` as its agent (T-91).

Two houses, two homes, one conversation: what one records of it, the other one has said.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Config, Holdfast, open_holdfast
from holdfast.domain.agent_processes import ProcessState
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.approvals import ApprovalState, Decision
from holdfast.domain.events import ApprovalRequested, StepStarted
from holdfast.domain.messages import Reasoning, ToolCall, ToolResult
from holdfast.domain.sessions import Session, SessionRequest, Status, StopReason
from tests.cli.processes import COMMAND, beside
from tests.houses import current, news_until, played, script, texts

# Programs are started here, which belongs to the whole run and not to the quick one.
pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@dataclass(frozen=True)
class Pair:
    """A house, and a session whose agent is another house behind the protocol."""

    house: Holdfast
    session: Session
    inner: Path
    tree: Path

    async def tell(self, text: str) -> list[tuple[str, str]]:
        """Say something; return all that was said when its turn has ended."""
        await self.house.send(self.session.id, text)
        return texts(await played(self.house, self.session.id))

    async def answer(self, state: ApprovalState) -> None:
        """Wait for a question and answer it in the outer house."""
        await news_until(self.house, self.session.id, ApprovalRequested)
        (asked,) = (await self.house.approvals.list(self.house.owner, self.session.id)).items
        answer = Decision(state=state, by="test")
        await self.house.approvals.answer(self.house.owner, self.session.id, asked.id, answer)

    def inside(self) -> list[Any]:
        """Return what the inner house has recorded, by its own command."""
        import json

        listed = json.loads(beside(self.inner, "sessions", "list", "--json").stdout)["data"]
        if not listed:
            return []
        (only,) = listed
        told = beside(self.inner, "sessions", "messages", only["id"], "--json").stdout
        rows = json.loads(told)["data"]
        return [(row["role"], row["content"].get("text")) for row in rows]


@asynccontextmanager
async def pair(folder: Path, *steps: dict[str, Any], **options: Any) -> AsyncIterator[Pair]:
    """Open a house whose agent is `holdfast acp` on a home of its own, with a scripted model."""
    tree = folder / "tree"
    (tree / ".git").mkdir(parents=True)
    inner = folder / "inner"
    variables = {"HOLDFAST_HOME": str(inner), "HOLDFAST_MODEL": script(folder, *steps)}
    # An editable installation: its source may lie below /tmp, which the sandbox replaces.
    source = str(Path(holdfast.__file__).parents[1])
    given = {
        "environment": variables,
        "writable": [str(folder)],
        "readable": [source],
        **options,
    }
    runtime = AcpRuntime(command=COMMAND, args=("acp",), options=given)
    async with open_holdfast(config=Config(home=folder / "outer")) as house:
        fields = {"name": "Inner", "slug": "inner", "runtime": runtime}
        await house.agents.create(house.owner, fields)
        repo = await house.repos.add(house.owner, str(tree), at_terminal=True)
        session = await house.open("inner", SessionRequest(repo_id=repo.id))
        yield Pair(house, session, inner, tree)


def write(path: str) -> dict[str, Any]:
    """Return a step that writes a file."""
    call = {"name": "write_file", "arguments": {"path": path, "content": "hi\n"}}
    return {"text": "I write.", "tool_calls": [call]}


async def test_a_conversation_is_the_same_on_both_sides(tmp_path: Path) -> None:
    usage = {"input": 7, "output": 3}
    first = {"reasoning": "hm", "text": "one", "usage": usage}
    async with pair(tmp_path, first, {"text": "two", "usage": usage}) as both:
        await both.tell("1")
        said = await both.tell("2")
        rows = await both.house.read(both.session.id)
        now = await current(both.house, both.session)

    assert said == [("user", "1"), ("assistant", "one"), ("user", "2"), ("assistant", "two")]
    assert both.inside() == said
    thoughts = [part.text for part in rows[1].parts if isinstance(part, Reasoning)]
    assert thoughts == ["hm"]
    assert (now.usage.input, now.usage.output) == (14, 6)
    assert (now.status, now.last_stop) == (Status.IDLE, StopReason.STOP)


@pytest.mark.parametrize(
    ("state", "is_written"), [(ApprovalState.ALLOWED, True), (ApprovalState.DENIED, False)]
)
async def test_a_question_passes_through_and_so_does_its_answer(
    tmp_path: Path, state: ApprovalState, is_written: bool
) -> None:
    async with pair(tmp_path, write("a.txt"), {"text": "done"}) as both:
        await both.house.send(both.session.id, "go")
        await both.answer(state)
        rows = await played(both.house, both.session.id)
        assert (both.tree / "a.txt").exists() is is_written

    (call,) = (part for row in rows for part in row.parts if isinstance(part, ToolCall))
    (result,) = (part for row in rows for part in row.parts if isinstance(part, ToolResult))
    assert (call.title, call.kind) == ("Write a.txt", "edit")
    assert [place.path for place in call.locations] == [str(both.tree / "a.txt")]
    assert result.status == ("ok" if is_written else "denied")
    assert rows[-1].text == "done"


async def test_an_interrupt_reaches_the_inner_turn(tmp_path: Path) -> None:
    slow = {"text": "never", "delay_ms": 3_600_000}
    async with pair(tmp_path, slow, {"text": "after"}) as both:
        await both.house.send(both.session.id, "go")
        await until_inside(both, "user")
        await both.house.sessions.interrupt(both.house.owner, both.session.id)
        stopped = await current(both.house, both.session)
        said = await both.tell("on")

    assert stopped.last_stop is StopReason.ABORTED
    assert said[-1] == ("assistant", "after")


@pytest.mark.torture
async def test_a_killed_agent_is_picked_up_with_its_whole_past(tmp_path: Path) -> None:
    async with pair(tmp_path, {"text": "one"}, {"text": "two"}) as both:
        await both.tell("1")
        before = await current(both.house, both.session)
        assert before.program is not None
        assert before.program.birth is not None
        os.killpg(before.program.birth.group, signal.SIGKILL)
        await until_gone(both)
        said = await both.tell("2")

    assert said == [("user", "1"), ("assistant", "one"), ("user", "2"), ("assistant", "two")]
    assert both.inside() == said


@pytest.mark.torture
async def test_a_failure_inside_is_a_failure_outside(tmp_path: Path) -> None:
    async with pair(tmp_path, {"error": "auth"}, {"text": "better"}) as both:
        await both.tell("1")
        failed = await current(both.house, both.session)
        said = await both.tell("2")

    assert (failed.status, failed.last_stop) == (Status.IDLE, StopReason.ERROR)
    assert said[-1] == ("assistant", "better")


async def test_a_mode_of_the_configuration_is_set_inside(tmp_path: Path) -> None:
    async with pair(tmp_path, write("a.txt"), {"text": "done"}, mode="deny") as both:
        await both.tell("go")

    assert not (both.tree / "a.txt").exists()


@pytest.mark.torture
async def test_three_prompts_at_once_are_two_turns(tmp_path: Path) -> None:
    async with pair(tmp_path, {"text": "one", "delay_ms": 300}, {"text": "two"}) as both:
        await both.house.send(both.session.id, "1")
        await news_until(both.house, both.session.id, StepStarted)
        for text in ("2", "3"):
            await both.house.send(both.session.id, text)
        said = texts(await played(both.house, both.session.id))

    assert [text for role, text in said if role == "assistant"] == ["one", "two"]


async def until_inside(both: Pair, role: str) -> None:
    """Wait until the inner house has recorded a row."""
    for _ in range(100):
        if (both.inner / "history.db").exists():
            rows = await asyncio.to_thread(both.inside)
            if any(each[0] == role for each in rows):
                return
        await asyncio.sleep(0.05)
    raise AssertionError("nothing was recorded inside")


async def until_gone(both: Pair) -> None:
    """Wait until the outer house knows that its agent is gone."""
    async with asyncio.timeout(20):
        while True:
            now = await current(both.house, both.session)
            if now.program is not None and now.program.state is ProcessState.EXITED:
                return
            await asyncio.sleep(0.02)
