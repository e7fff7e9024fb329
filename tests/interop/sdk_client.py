"""Drives `holdfast acp` with the public Python package; run by that package's own interpreter.

`python sdk_client.py HOLDFAST FOLDER` prints one JSON object for each case.
"""

# mypy: ignore-errors

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import acp
from acp.schema import AllowedOutcome

LIMIT = 1 << 26


class Editor:
    """What an editor does: it shows what comes, and answers what it is asked."""

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.asked: list[Any] = []
        self.allows = True

    def on_connect(self, conn: Any) -> None:
        """Take note of nothing."""

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        """Keep what comes."""
        self.updates.append(update)

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **_: Any
    ) -> Any:
        """Answer by the kind of an option."""
        self.asked.append(tool_call)
        kind = "allow_once" if self.allows else "reject_once"
        option = next(each for each in options if each.kind == kind)
        return acp.RequestPermissionResponse(
            outcome=AllowedOutcome(outcome="selected", option_id=option.option_id)
        )

    @property
    def text(self) -> str:
        """Return what was said to the person."""
        return "".join(
            each.content.text
            for each in self.updates
            if each.session_update == "agent_message_chunk"
        )


def _spawned(editor: Editor, *words: str) -> Any:
    holdfast, folder = sys.argv[1:3]
    return acp.spawn_agent_process(
        editor,
        holdfast,
        "acp",
        *words,
        cwd=folder,
        env=dict(os.environ),
        transport_kwargs={"limit": LIMIT},
    )


async def _begun(agent: Any, folder: str) -> str:
    await agent.initialize(protocol_version=acp.PROTOCOL_VERSION)
    return (await agent.new_session(cwd=folder, mcp_servers=[])).session_id


async def _prompted(agent: Any, session: str, text: str) -> str:
    answer = await agent.prompt(session_id=session, prompt=[acp.text_block(text)])
    return answer.stop_reason


async def exec_case(folder: str) -> str:
    """Ask once."""
    editor = Editor()
    async with _spawned(editor) as (agent, _):
        session = await _begun(agent, folder)
        stop = await _prompted(agent, session, "What is 2+3?")
    assert stop == "end_turn", stop
    assert "2+3 = 5" in editor.text, editor.text
    return stop


async def permission_case(folder: str) -> str:
    """Have a change refused, then allowed."""
    editor = Editor()
    file = Path(folder) / "sdk.txt"
    async with _spawned(editor) as (agent, _):
        session = await _begun(agent, folder)
        editor.allows = False
        await _prompted(agent, session, "write sdk.txt: hold on")
        assert not file.exists(), "it was refused and written"
        editor.allows = True
        await _prompted(agent, session, "write sdk.txt: hold on")
    assert file.exists(), "it was allowed and not written"
    return f"asked {len(editor.asked)} times"


async def cancel_case(folder: str) -> str:
    """Interrupt an answer that would take long."""
    editor = Editor()
    async with _spawned(editor, "--agent", "slow") as (agent, _):
        session = await _begun(agent, folder)
        prompting = asyncio.create_task(_prompted(agent, session, "Go on."))
        # Nothing tells an editor that the model was asked; it takes much less than this.
        await asyncio.sleep(1.5)
        await agent.cancel(session_id=session)
        stop = await prompting
    assert stop == "cancelled", stop
    return stop


async def load_case(folder: str) -> str:
    """Load a conversation in a fresh process: all of it comes, once."""
    first, second = Editor(), Editor()
    async with _spawned(first) as (agent, _):
        session = await _begun(agent, folder)
        await _prompted(agent, session, "What is 3+4?")
    async with _spawned(second) as (agent, _):
        await agent.initialize(protocol_version=acp.PROTOCOL_VERSION)
        await agent.load_session(cwd=folder, session_id=session, mcp_servers=[])
        replayed = second.text
        stop = await _prompted(agent, session, "What is 4+5?")
    said = [each for each in second.updates if each.session_update == "user_message_chunk"]
    assert replayed.count("3+4 = 7") == 1, replayed
    assert [each.content.text for each in said] == ["What is 3+4?"], said
    assert "4+5 = 9" in second.text, second.text
    return f"{len(second.updates)} updates, {stop}"


async def mode_case(folder: str) -> str:
    """Change the mode: with `auto` nobody is asked."""
    editor = Editor()
    async with _spawned(editor) as (agent, _):
        await agent.initialize(protocol_version=acp.PROTOCOL_VERSION)
        made = await agent.new_session(cwd=folder, mcp_servers=[])
        modes = [each.id for each in made.modes.available_modes]
        await agent.set_session_mode(session_id=made.session_id, mode_id="deny")
        await _prompted(agent, made.session_id, "write mode.txt: hold on")
    assert not editor.asked, "somebody was asked"
    assert not (Path(folder) / "mode.txt").exists(), "it was written"
    return ", ".join(modes)


async def list_case(folder: str) -> str:
    """List what was begun before."""
    async with _spawned(Editor()) as (agent, _):
        await agent.initialize(protocol_version=acp.PROTOCOL_VERSION)
        found = await agent.list_sessions(cwd=folder)
    assert found.sessions, "there is none"
    return f"{len(found.sessions)} sessions"


CASES: dict[str, Callable[[str], Awaitable[str]]] = {
    "exec": exec_case,
    "permission": permission_case,
    "cancel": cancel_case,
    "load": load_case,
    "mode": mode_case,
    "list": list_case,
}


async def main() -> None:
    """Play every case, each with a time limit."""
    for name, case in CASES.items():
        started = time.monotonic()
        try:
            async with asyncio.timeout(40):
                told, state = await case(sys.argv[2]), "passed"
        except Exception as error:  # noqa: BLE001 — whatever it is, it is the result
            told, state = f"{type(error).__name__}: {error}"[:500], "failed"
        seconds = time.monotonic() - started
        print(json.dumps({"case": name, "state": state, "told": told, "seconds": seconds}))


if __name__ == "__main__":
    asyncio.run(main())
