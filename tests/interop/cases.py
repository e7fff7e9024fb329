"""The cases that every guest plays, in one conversation over two lives of our house."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from holdfast.acp.client.probe import list_agent_sessions, probe_agent
from holdfast.domain.calls import ResultStatus
from holdfast.domain.events import ApprovalAnswered, ToolEnded, ToolStarted, TurnEnded
from holdfast.domain.messages import Notice, Role
from holdfast.domain.sessions import Status, StopReason
from holdfast.wiring import build_process_registry
from tests.interop.stage import Stage, Talk, a_house, begun, marked

WRITTEN: Final = "written by a tool\n"
SAID: Final = "One, two, three, four, five."
REMOVE: Final = "use tool: rm -r probe"
LIST_SECONDS: Final = 60.0
# Some try for minutes; then it is enough to see that they can be stopped.
ERROR_SECONDS: Final = 15.0


@dataclass(frozen=True)
class Result:
    """What came of a case: passed, not tried with a reason, or what happened instead."""

    case: str
    state: str
    told: str = ""
    seconds: float = 0.0


Play = Callable[[Stage, Talk], Awaitable[str]]


async def _new(stage: Stage, talk: Talk) -> str:
    session = await talk.house.sessions.get(talk.house.owner, talk.session)
    _require(session.status is Status.PENDING, f"the session is {session.status}")
    there = build_process_registry(talk.house.config, talk.house.secrets)
    found = await probe_agent(there, stage.runtime, is_deep=True)
    return f"{found.name} {found.version}"


async def _turn(stage: Stage, talk: Talk) -> str:
    ended = await talk.say("hello there")
    _require(ended.stop_reason is StopReason.STOP, f"it ended with {_how(ended)}")
    text = await _last_text(talk)
    _require(text.endswith(SAID), f"it answered {text[:200]!r}")
    return f"{ended.usage.input} + {ended.usage.output} tokens"


async def _allowed(stage: Stage, talk: Talk) -> str:
    stage.lay_probe()
    ended = await talk.say(REMOVE, allow=True)
    _require(bool(talk.heard(ApprovalAnswered)), f"nobody was asked; it ended with {_how(ended)}")
    _require(not stage.has_probe(), f"it was allowed and not done; it ended with {_how(ended)}")
    _require(ended.stop_reason is StopReason.STOP, f"it ended with {_how(ended)}")
    results = [each.status for each in talk.heard(ToolEnded)]
    _require(ResultStatus.OK in results, f"the results are {results}")
    return ", ".join(each.name for each in talk.heard(ToolStarted))


async def _refused(stage: Stage, talk: Talk) -> str:
    stage.lay_probe()
    ended = await talk.say(REMOVE, allow=False)
    _require(bool(talk.heard(ApprovalAnswered)), f"nobody was asked; it ended with {_how(ended)}")
    _require(stage.has_probe(), "it was refused and done")
    results = [each.status for each in talk.heard(ToolEnded)]
    _require(ResultStatus.OK not in results, f"it was refused, and the results are {results}")
    # Some programs end the whole turn when a person refuses, and that is theirs to decide.
    ways = {StopReason.STOP, StopReason.INTERRUPTED}
    _require(ended.stop_reason in ways, f"it ended with {_how(ended)}")
    return f"turn ended with {ended.stop_reason}"


async def _cancel(stage: Stage, talk: Talk) -> str:
    begun_at = time.monotonic()
    ended = await talk.say("slow please", stop_at="piece")
    seconds = time.monotonic() - begun_at
    _require(ended.stop_reason is StopReason.ABORTED, f"it ended with {_how(ended)}")
    again = await talk.say("hello again")
    _require(again.stop_reason is StopReason.STOP, f"afterwards it ended with {_how(again)}")
    return f"after {seconds:.1f} s, and it goes on"


async def _file(stage: Stage, talk: Talk) -> str:
    file = stage.repository / "written.txt"
    ended = await talk.say(f"write: {file}", allow=True)
    _require(ended.stop_reason is StopReason.STOP, f"it ended with {_how(ended)}")
    _require(file.is_file(), "nothing was written")
    _require(file.read_text() == WRITTEN, f"{file.read_text()!r} was written")
    return ", ".join(each.name for each in talk.heard(ToolStarted))


async def _error(stage: Stage, talk: Talk) -> str:
    ended = await talk.say("error 401 please", stop_after=ERROR_SECONDS)
    again = await talk.say("hello after the error")
    _require(again.stop_reason is StopReason.STOP, f"afterwards it ended with {_how(again)}")
    return f"turn ended with {_how(ended)[:80]}"


async def _killed(stage: Stage, talk: Talk) -> str:
    found = marked(talk.session)
    for pid in found:
        # Where one was the other's keeper, it may have taken it along.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(5):
        while marked(talk.session):  # noqa: ASYNC110 — the system tells nobody of it
            await asyncio.sleep(0.01)
    ended = await talk.say("hello after the kill")
    _require(ended.stop_reason is StopReason.STOP, f"it ended with {_how(ended)}")
    return f"{len(found)} processes"


async def _gone(stage: Stage, talk: Talk) -> str:
    left = marked(talk.session)
    _require(not left, f"{len(left)} processes are left")
    return "nobody is left"


async def _restart(stage: Stage, talk: Talk) -> str:
    before = await talk.rows()
    ended = await talk.say("hello after the restart")
    _require(ended.stop_reason is StopReason.STOP, f"it ended with {_how(ended)}")
    rows = await talk.rows()
    _require(rows[: len(before)] == before, "what was there has changed")
    said = [row.text for row in rows[len(before) :] if row.role is Role.USER]
    _require(said == ["hello after the restart"], f"the new rows of the person are {said}")
    text = await _last_text(talk)
    _require(text.endswith(SAID) and text.count(SAID) == 1, f"it answered {text[:200]!r}")
    notices = [
        part.code for row in rows[len(before) :] for part in row.parts if isinstance(part, Notice)
    ]
    # Some programs ask a model more than the one question, before or after it.
    asked = [json.dumps(each.body) for each in stage.model.received]
    ours = [each for each in asked if "hello after the restart" in each]
    _require(
        any("hello there" in each for each in ours), "the model was not told what was said before"
    )
    return f"{_rung(stage)}{f', {notices[0]}' if notices else ''}"


def _rung(stage: Stage) -> str:
    """Return how the program was given its conversation back, by what it was asked last."""
    ways = ("session/resume", "session/load", "session/new")
    said = stage.record.read_text(errors="replace").splitlines()
    found = [way for line in said for way in ways if f'"{way}"' in line and "client " in line[:8]]
    return found[-1]


async def _list(stage: Stage, talk: Talk) -> str:
    there = build_process_registry(talk.house.config, talk.house.secrets)
    async with asyncio.timeout(LIST_SECONDS):
        found = await list_agent_sessions(there, stage.runtime, str(stage.repository))
    _require(bool(found), "it keeps none")
    return f"{len(found)} of its sessions"


FIRST: Final[Mapping[str, Play]] = {
    "turn": _turn,
    "allowed": _allowed,
    "refused": _refused,
    "cancel": _cancel,
    "file": _file,
    "error": _error,
    "killed": _killed,
}
BETWEEN: Final[Mapping[str, Play]] = {"gone": _gone}
SECOND: Final[Mapping[str, Play]] = {"restart": _restart, "list": _list}
CASES: Final = ("new", *FIRST, *BETWEEN, *SECOND)


async def played(stage: Stage, heard: Callable[[Result], None]) -> None:
    """Play every case with a guest, and tell each result as soon as it is there."""
    async with a_house(stage) as house:
        talk = await begun(house, stage)
        heard(await _result("new", _new, stage, talk))
        for case, play in FIRST.items():
            heard(await _result(case, play, stage, talk))
    for case, play in BETWEEN.items():
        heard(await _result(case, play, stage, talk))
    async with a_house(stage) as house:
        talk = Talk(house, talk.session)
        for case, play in SECOND.items():
            heard(await _result(case, play, stage, talk))


async def _result(case: str, play: Play, stage: Stage, talk: Talk) -> Result:
    why = stage.guest.cannot.get(case)
    if why is not None:
        return Result(case, "not tried", why)
    started = time.monotonic()
    try:
        told, state = await play(stage, talk), "passed"
    except Exception as error:  # noqa: BLE001 — whatever it is, it is the result
        told, state = f"{type(error).__name__}: {error}", "failed"
    return Result(case, state, told, time.monotonic() - started)


async def _last_text(talk: Talk) -> str:
    rows = await talk.rows()
    turn = rows[-1].turn
    said = [row.text for row in rows if row.turn == turn and row.role is Role.ASSISTANT]
    return "".join(said)


def _how(ended: TurnEnded) -> str:
    failure = f" ({ended.failure.code}: {ended.failure.message})" if ended.failure else ""
    return f"{ended.stop_reason}{failure}"


def _require(holds: bool, told: str) -> None:
    if not holds:
        raise AssertionError(told)
