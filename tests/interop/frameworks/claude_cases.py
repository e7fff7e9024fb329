"""Cases of `HoldfastSessionStore` that need the SDK; run in its environment by `make interop`."""

import asyncio
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
from claude_agent_sdk import SessionStore
from claude_agent_sdk.testing import run_session_store_conformance

from holdfast import (
    CallState,
    LocalHoldfast,
    NoticeCode,
    Role,
    StopReason,
    open_holdfast,
    sync,
)
from holdfast.domain.messages import Notice
from holdfast.integrations.calls import UNKNOWN_OUTCOME
from holdfast.integrations.claude_agent_sdk import HoldfastSessionStore, hf_hooks, options

KEY = {"project_key": "-work", "session_id": "0b2f6c1e-0000-4000-8000-000000000001"}


@pytest.fixture
async def hf(tmp_path: Path) -> AsyncIterator[LocalHoldfast]:
    async with open_holdfast(tmp_path / "home") as opened:
        yield opened


def entry(kind: str, message: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    made = {"type": kind, "uuid": str(uuid.uuid4()), "timestamp": "2026-01-02T03:04:05.000Z"}
    return made | ({} if message is None else {"message": message}) | fields


def user(content: Any, **fields: Any) -> dict[str, Any]:
    return entry("user", {"role": "user", "content": content}, **fields)


def assistant(*blocks: dict[str, Any], stop: str = "end_turn", **fields: Any) -> dict[str, Any]:
    message = {
        "id": "m1",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": list(blocks),
        "stop_reason": stop,
        "usage": {"input_tokens": 3, "cache_read_input_tokens": 10, "output_tokens": 4},
    }
    return entry("assistant", message, **fields)


TOOL = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}
SAID = {"type": "text", "text": "Done."}


def answered(text: str, *, is_error: bool = False) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": "t1", "content": text, "is_error": is_error}
    return user([block])


def hook_input(**fields: Any) -> dict[str, Any]:
    path = f"/home/x/.claude/projects/{KEY['project_key']}/{KEY['session_id']}.jsonl"
    return {
        "session_id": KEY["session_id"],
        "transcript_path": path,
        "cwd": "/work",
        "tool_name": "Bash",
        "tool_input": {"command": "ls"},
        "tool_use_id": "t1",
    } | fields


async def test_the_contracts_of_the_sdk(tmp_path: Path) -> None:
    made: list[HoldfastSessionStore] = []
    async with AsyncExitStack() as stack:

        async def make() -> HoldfastSessionStore:
            home = tmp_path / str(len(made))
            made.append(HoldfastSessionStore(await stack.enter_async_context(open_holdfast(home))))
            return made[-1]

        await run_session_store_conformance(make)

    # The probe and one for each of the contracts.
    assert len(made) == 15


@pytest.mark.parametrize(
    "name", ["list_sessions", "list_session_summaries", "delete", "list_subkeys"]
)
def test_the_optional_methods_are_there(name: str) -> None:
    assert getattr(HoldfastSessionStore, name) is not getattr(SessionStore, name)


def test_the_contracts_hold_under_trio(tmp_path: Path) -> None:
    with sync.open_holdfast(tmp_path / "home") as hf:
        store = HoldfastSessionStore(hf)

        async def main() -> None:
            await store.append(KEY, [user("Hi")])
            assert len(await store.load(KEY) or []) == 1
            with trio.move_on_after(0):
                await store.append(KEY, [user("Again")])
            assert len(await store.load(KEY) or []) == 2

        trio.run(main)


async def test_a_transcript_is_a_session_with_turns_calls_and_costs(hf: LocalHoldfast) -> None:
    store = HoldfastSessionStore(hf)
    entries = [
        user("Look around."),
        {"type": "mode", "mode": "normal"},
        user("hook output", isMeta=True),
        assistant({"type": "thinking", "thinking": "Hm", "signature": "s"}, stop="tool_use"),
        assistant(TOOL, stop="tool_use"),
        answered("a.txt"),
        assistant(SAID),
        {"type": "custom-title", "customTitle": "Looking"},
    ]

    for each in entries:
        await store.append(KEY, [each])

    session_id = await store.opened(KEY)
    session = await hf.sessions.get(hf.owner, session_id)
    rows = await hf.read(session_id)
    assert await store.load(KEY) == entries
    assert [row.role for row in rows] == [
        Role.USER,
        Role.SYSTEM,
        Role.ASSISTANT,
        Role.TOOL_CALL,
        Role.TOOL_RESULT,
        Role.ASSISTANT,
    ]
    assert {row.turn for row in rows} == {1}
    assert isinstance(rows[1].parts[0], Notice)
    assert rows[1].parts[0].code is NoticeCode.HARNESS
    assert (session.settled, session.last_stop, session.title) == (1, StopReason.STOP, "Looking")
    # Three records of one answer repeat its usage.
    assert (session.usage.input, session.usage.output) == (3, 4)
    (call,) = (await hf.calls.list(hf.owner, session_id)).items
    assert call.state is CallState.FINISHED


async def test_an_attachment_is_a_notice_and_does_not_end_the_turn(hf: LocalHoldfast) -> None:
    store = HoldfastSessionStore(hf)
    attached = entry("attachment", attachment={"type": "hook_success", "content": "ready"})
    text = {"type": "text", "text": "I look."}

    await store.append(KEY, [user("Look."), assistant(text, stop="tool_use"), attached])
    session = await hf.sessions.get(hf.owner, await store.opened(KEY))
    await store.append(KEY, [assistant(TOOL, stop="tool_use"), answered("a.txt"), attached])
    rows = await hf.read(session.id)

    assert (session.turn, session.settled) == (1, 0)
    notice = Notice(code=NoticeCode.HARNESS, text="hook_success: ready")
    assert [row.parts for row in rows if row.role is Role.SYSTEM] == [(notice,)]


async def test_a_repeated_batch_is_written_once(hf: LocalHoldfast) -> None:
    store = HoldfastSessionStore(hf)
    one, two, plain = user("one"), user("two"), {"type": "tag", "tag": "x"}

    await store.append(KEY, [one, one, plain])
    await store.append(KEY, [one, two, plain])
    await store.append({**KEY, "subpath": "subagents/agent-1"}, [one])

    assert await store.load(KEY) == [one, plain, two, plain]
    assert await store.load({**KEY, "subpath": "subagents/agent-1"}) == [one]
    assert await store.list_subkeys(KEY) == ["subagents/agent-1"]


@pytest.mark.parametrize("is_after", [False, True])
async def test_a_batch_whose_write_failed_is_repeated(
    hf: LocalHoldfast, monkeypatch: pytest.MonkeyPatch, is_after: bool
) -> None:
    """The SDK repeats it: it finds all of the batch, or nothing."""
    store, write = HoldfastSessionStore(hf), hf.store.write
    zero, one, two = user("zero"), user("one"), user("two")
    await store.append(KEY, [zero])
    before = await store.load(KEY)

    async def fail(*given: Any, **more: Any) -> None:
        if is_after:
            await write(*given, **more)
        raise OSError("the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(hf.store, "write", fail)
        with pytest.raises(OSError, match="gone"):
            await store.append(KEY, [one, two])
    found = await store.load(KEY)
    await store.append(KEY, [one, two])

    assert (before, found) == ([zero], [zero, one, two] if is_after else [zero])
    assert await store.load(KEY) == [zero, one, two]


async def test_another_content_under_a_known_id_is_kept_and_not_loaded(hf: LocalHoldfast) -> None:
    store, one = HoldfastSessionStore(hf), user("one")
    await store.append(KEY, [one])

    await store.append(KEY, [{**one, "extra": 1}])

    session_id = await store.opened(KEY)
    records = list(await store.bridge.parts.sessions.live(session_id, "entries"))
    assert (await store.load(KEY), len(records)) == ([one], 2)


async def test_a_subagent_is_a_child_session(hf: LocalHoldfast) -> None:
    store = HoldfastSessionStore(hf)
    child = {**KEY, "subpath": "subagents/agent-1"}

    await store.append(child, [user("Do it", isSidechain=True)])
    parent, found = await store.opened(KEY), await store.opened(child)

    session = await hf.sessions.get(hf.owner, found)
    assert session.metadata["parent"] == parent
    assert (await store.load(KEY), await store.list_sessions(KEY["project_key"])) == (None, [])


async def test_the_times_of_writes_increase_over_all_sessions(hf: LocalHoldfast) -> None:
    store, times = HoldfastSessionStore(hf), []
    keys = [{"project_key": "p", "session_id": f"s{number}"} for number in range(4)]

    for number in range(12):
        await store.append(keys[number % 4], [user("x")])
        times.append(max(each["mtime"] for each in await store.list_sessions("p")))

    listed = await store.list_sessions("p")
    summaries = await store.list_session_summaries("p")
    assert times == sorted(set(times))
    assert {each["session_id"]: each["mtime"] for each in listed} == {
        each["session_id"]: each["mtime"] for each in summaries
    }


@pytest.mark.parametrize("waits", range(0, 30, 3))
async def test_a_cancelled_append_is_whole_or_not_there(hf: LocalHoldfast, waits: int) -> None:
    store = HoldfastSessionStore(hf)
    task = asyncio.ensure_future(store.append(KEY, [user("one"), user("two")]))
    for _ in range(waits):
        await asyncio.sleep(0)
    if task.cancel():
        with pytest.raises(asyncio.CancelledError):
            await task

    assert len(await store.load(KEY) or []) in {0, 2}


async def test_the_words_of_a_resumed_program_are_an_unknown_outcome(hf: LocalHoldfast) -> None:
    store = HoldfastSessionStore(hf)
    await store.append(KEY, [user("Go"), assistant(TOOL, stop="tool_use")])

    text = "The process was stopped; the outcome is unknown, check before you go on."
    await store.append(KEY, [answered(text, is_error=True)])

    (call,) = (await hf.calls.list(hf.owner, await store.opened(KEY))).items
    assert call.state is CallState.UNKNOWN


async def test_a_tool_is_on_disk_before_it_runs(hf: LocalHoldfast) -> None:
    store = HoldfastSessionStore(hf)
    hooks = hf_hooks(store)
    await store.append(KEY, [user("Go")])
    session_id = await store.opened(KEY)

    allowed = await hooks.before(hook_input(), "t1", None)
    started = await hf.calls.get(hf.owner, session_id, "t1")
    key = hooks.key_of("Bash", {"command": "ls"})
    await store.append(KEY, [assistant(TOOL, stop="tool_use")])
    await hooks.after(hook_input(tool_response={"stdout": "a"}), "t1", None)
    await store.append(KEY, [answered("a"), assistant(SAID)])
    again = await hooks.before(hook_input(), "t1", None)

    session = await hf.sessions.get(hf.owner, session_id)
    rows = [row.role for row in await hf.read(session_id)]
    assert (allowed, started.state, key) == ({}, CallState.STARTED, started.idempotency_key)
    assert rows == [Role.USER, Role.TOOL_CALL, Role.TOOL_RESULT, Role.ASSISTANT]
    assert (session.settled, session.last_stop) == (1, StopReason.STOP)
    denied = again["hookSpecificOutput"]
    assert denied["permissionDecision"] == "deny"
    assert '{"stdout": "a"}' in denied["permissionDecisionReason"]


async def test_a_tool_of_this_process_finds_the_key_of_its_own_call(hf: LocalHoldfast) -> None:
    hooks, given = hf_hooks(HoldfastSessionStore(hf)), {"cents": 5}
    asked = hook_input(tool_name="mcp__till__repay", tool_input=given)

    await hooks.before(asked, "t1", None)
    alone = [hooks.key_of(name, given) for name in ("repay", "mcp__till__repay", "pay")]
    await hooks.before(asked, "t2", None)
    both = hooks.key_of("repay", given)

    assert alone[0] is not None
    assert (alone, both) == ([alone[0], alone[0], None], None)


async def test_a_failed_tool_is_recorded(hf: LocalHoldfast) -> None:
    store = HoldfastSessionStore(hf)
    hooks = hf_hooks(store)
    await hooks.before(hook_input(), "t1", None)

    await hooks.failed(hook_input(error="no such file"), "t1", None)

    (call,) = (await hf.calls.list(hf.owner, await store.opened(KEY))).items
    assert call.state is CallState.FINISHED


KILLED = """
import asyncio, os, signal, sys
sys.path.insert(0, sys.argv[2])
from claude_cases import *

async def main():
    async with open_holdfast(sys.argv[1]) as hf:
        store = HoldfastSessionStore(hf)
        await store.append(KEY, [user("Go")])
        await hf_hooks(store).before(hook_input(), "t1", None)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def killed(home: Path) -> None:
    """Play a run that is killed inside a tool."""
    command = [sys.executable, "-c", KILLED, str(home), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -9, done.stderr


async def test_a_tool_that_a_kill_cut_off_is_refused(tmp_path: Path) -> None:
    killed(tmp_path / "home")

    async with open_holdfast(tmp_path / "home") as hf:
        hooks = hf_hooks(HoldfastSessionStore(hf))
        denied = await hooks.before(hook_input(), "t1", None)
        found = await hf.calls.list(hf.owner, state=CallState.UNKNOWN)

    reason = denied["hookSpecificOutput"]["permissionDecisionReason"]
    assert (reason, [call.id for call in found.items]) == (UNKNOWN_OUTCOME, ["t1"])


async def test_options_set_the_store_and_the_hooks(hf: LocalHoldfast) -> None:
    made = options(hf, model="m", hooks={"Stop": []})

    assert (made.session_store_flush, made.model) == ("eager", "m")
    assert set(made.hooks or {}) == {"Stop", "PreToolUse", "PostToolUse", "PostToolUseFailure"}
    with pytest.warns(UserWarning, match="batched"):
        options(hf, session_store_flush="batched")


def test_a_version_that_was_not_tested_is_refused() -> None:
    code = (
        "import claude_agent_sdk as c; c.__version__ = '0.3.0'\n"
        "import holdfast.integrations.claude_agent_sdk"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )

    assert "holdfast[claude-agent-sdk]" in done.stderr
