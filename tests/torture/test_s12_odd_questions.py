"""S12: a question shows the whole of what would run, is answered once, and runs at most once."""

import asyncio
import re
import unicodedata
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Event, Holdfast, RunScope, Session, open_holdfast
from holdfast.app import Environment
from holdfast.config import Config
from holdfast.config.settings import Chat
from holdfast.domain.approvals import Approval, ApprovalState, Decision
from holdfast.domain.errors import HoldfastError
from holdfast.domain.events import ApprovalRequested, TurnEnded
from holdfast.domain.ids import Owner, SessionId
from holdfast.domain.messages import ToolResult
from holdfast.domain.sessions import Status
from tests.builders import an_id
from tests.houses import current, played
from tests.marks import proves
from tests.stand_ins import SeededRandomness, SettableClock, StandInMachine
from tests.tooled import (
    Recorder,
    a_config,
    answer,
    asks,
    call,
    open_equipped,
    open_tooled,
    outcomes,
    own_tool,
    question,
    says,
    started,
)
from tests.torture.conftest import Tell

pytestmark = pytest.mark.slow

YES = Decision(state=ApprovalState.ALLOWED, by="ada")
LONG = 100_000

# Words that hide, turn, join, imitate, or lead far away from what they are.
WORDS: dict[str, str] = {
    "plain": "plain",
    "long": "x" * LONG,
    "long, and another end": "x" * (LONG - 1) + "y",
    "hidden behind spaces": "safe" + " " * 20_000 + "; rm -rf /",
    "hidden behind lines": "safe" + "\n" * 5_000 + "rm",
    "hidden by a return": "rm -rf /\rsafe     ",
    "hidden by backspaces": "rm\b\bls",
    "hidden by an escape": "\x1b[8mrm\x1b[0m ls",
    "hidden by a title": "\x1b]0;title\x07rm",
    "hidden by C1": "\x9b8mrm",
    "turned around": "ls \u202ehs.mr\u202c",
    "isolated": "\u2066rm\u2069 ls",
    "joined": "r\u200dm",
    "split": "r\u200bm",
    "with a soft hyphen": "r\u00adm",
    "with a word joiner": "r\u2060m",
    "with a filler": "r\u3164m",
    "with a half filler": "r\uffa0m",
    "with a variation": "rm\ufe0f",
    "with tags": "rm\U000e0041\U000e0042",
    "with a mongolian separator": "r\u180em",
    "with an annotation": "r\ufff9m",
    "with a line separator": "ls\u2028rm",
    "with a paragraph separator": "ls\u2029rm",
    "with a next line": "ls\u0085rm",
    "a look-alike": "\u0440\u0430ypal",
    "the real one": "paypal",
    "full width": "\uff52\uff4d",
    "composed": "caf\u00e9",
    "decomposed": "cafe\u0301",
    "quotes": "\"quoted\" 'and' `more`",
    "a written escape": "\\u202e",
    "a written end of line": "a\\nb",
    "an end of line": "a\nb",
    "a shell": "$(rm -rf /) && `ls` | sh; > /dev/null",
    "a no-break space": "rm\u00a0-rf",
    "spaces around": "  rm  ",
    "empty": "",
    "emoji": "\U0001f600",
    "combining": "z\u0351\u0352\u0353",
    "our own words": '"ls"\nprogram: /bin/ls',
    "an option": "--help",
}


def hidden(text: str) -> set[str]:
    """Return the names of the characters in a text that nobody can see."""
    return {
        unicodedata.name(each, hex(ord(each)))
        for each in text
        if each not in "\n" and unicodedata.category(each) in {"Cc", "Cf", "Zl", "Zp", "Cs"}
    }


def said(result: Any) -> str:
    """Return what `echo` has said."""
    return str(result["stdout"]).removesuffix("\n")


async def asked_all(
    house: Holdfast, session: Session, answers: Callable[[Approval], ApprovalState]
) -> dict[str, Approval]:
    """Answer every question of a turn and return them by their calls."""
    found: dict[str, Approval] = {}
    async with asyncio.timeout(120), aclosing(house.follow(session.id)) as news:
        async for item in news:
            if isinstance(item, Event) and isinstance(item.payload, TurnEnded):
                return found
            if isinstance(item, Event) and isinstance(item.payload, ApprovalRequested):
                id = item.payload.approval_id
                asked = await house.approvals.get(house.owner, session.id, id)
                # The news tell the same as the row, to the last letter.
                assert item.payload.question == asked.question.question
                found[str(asked.question.call_id)] = asked
                await answer(house, asked, answers(asked))
    return found


def results(rows: Any) -> dict[str, ToolResult]:
    parts = [part for row in rows for part in row.parts]
    return {part.call_id: part for part in parts if isinstance(part, ToolResult)}


@proves("S12")
def test_what_is_shown_of_a_command_is_the_whole_of_it_and_that_is_what_runs(
    tmp_path: Path, tell: Tell
) -> None:
    names = list(WORDS)
    calls = [
        call("run_command", f"c{number}", command="echo", args=["-E", WORDS[name], "end-of-it"])
        for number, name in enumerate(names)
    ]
    config = a_config(
        tmp_path / "home", asks(*calls), says("done"), chat=Chat(allowed_command_globs=("echo **",))
    )

    async def tried() -> tuple[dict[str, Approval], dict[str, ToolResult]]:
        async with open_equipped(config) as house:
            session = await started(house, tmp_path / "desk")
            found = await asked_all(house, session, lambda _: ApprovalState.ALLOWED)
            return found, results(await house.read(session.id))

    found, told = asyncio.run(tried())

    shown = {name: found[f"c{number}"].question.question for number, name in enumerate(names)}
    assert [name for name, text in shown.items() if hidden(text)] == []
    # Nobody sees the same words for two different things.
    assert len(set(shown.values())) == len(names)
    assert [name for name, text in shown.items() if '"end-of-it"' not in text] == []
    assert len(shown["long"]) > LONG
    for number, name in enumerate(names):
        result = told[f"c{number}"]
        assert result.status == "ok", name
        words = found[f"c{number}"].question.arguments["args"]
        assert words == ["-E", WORDS[name], "end-of-it"]
        if "bytes omitted" not in str(result.result):
            assert said(result.result).endswith(f"{WORDS[name]} end-of-it"), name
    tell(f"{len(names)} odd commands were shown whole, each unlike all others, and ran as shown")


@proves("S12")
def test_what_is_shown_of_a_file_is_the_whole_of_it(tmp_path: Path, tell: Tell) -> None:
    names = [name for name in WORDS if WORDS[name]]
    calls = [
        call(
            "write_file", f"c{number}", path=f"f{number}.txt", content=f"{WORDS[name]}\nlast line\n"
        )
        for number, name in enumerate(names)
    ]
    config = a_config(tmp_path / "home", asks(*calls), says("done"))

    async def tried() -> dict[str, Approval]:
        async with open_holdfast(config=config) as house:
            session = await started(house, tmp_path / "desk")
            return await asked_all(house, session, lambda _: ApprovalState.ALLOWED)

    found = asyncio.run(tried())

    shown = {
        name: re.sub(r"f\d+\.txt", "f.txt", found[f"c{number}"].question.question)
        for number, name in enumerate(names)
    }
    assert {name: hidden(text) for name, text in shown.items() if hidden(text)} == {}
    assert len(set(shown.values())) == len(names)
    assert all(text.endswith("\n+last line") for text in shown.values())
    for number, name in enumerate(names):
        written = (tmp_path / "desk" / f"f{number}.txt").read_bytes()
        assert written == f"{WORDS[name]}\nlast line\n".encode(), name
    tell(f"{len(names)} odd contents were shown whole and written as shown")


@proves("S12")
def test_what_is_too_long_to_be_shown_is_not_asked_and_not_done(tmp_path: Path) -> None:
    config = a_config(
        tmp_path / "home",
        asks(call("write_file", "c1", path="a.txt", content="x" * ((1 << 20) + 1))),
        asks(call("write_file", "c2", path="b.txt", content="x" * (900 << 10))),
        says("done"),
    )

    async def tried() -> tuple[dict[str, Approval], list[str]]:
        async with open_holdfast(config=config) as house:
            session = await started(house, tmp_path / "desk")
            found = await asked_all(house, session, lambda _: ApprovalState.ALLOWED)
            return found, outcomes(await house.read(session.id))

    found, told = asyncio.run(tried())

    assert told == ["write_file denied/too_large", "write_file ok"]
    assert list(found) == ["c2"]
    assert len(found["c2"].question.question) > 900 << 10
    assert not (tmp_path / "desk" / "a.txt").exists()


def one_act(home: Path, *steps: dict[str, Any], **changes: Any) -> tuple[Config, Recorder]:
    """Return a house whose model asks for one act, and what the act writes down."""
    asked = steps or (asks(call("act", "c1", line="x")), says("done"))
    return a_config(home, *asked, **changes), Recorder()


Trick = Callable[[Path], Awaitable[int]]


async def answered_again_and_again(folder: Path) -> int:
    """Say yes before, while and after it runs, from two houses."""
    config, act = one_act(folder / "home")
    async with open_tooled(config, own_tool("act", act)) as house:
        session = await started(house, folder / "desk", "act")
        asked = await question(house, session)
        async with open_tooled(config, scope=RunScope.NONE) as other:
            await asyncio.gather(*(answer(each, asked) for each in (house, other) * 10))
            await played(house, session.id)
            await asyncio.gather(*(answer(each, asked) for each in (house, other) * 10))
            await house.approvals.revoke(house.owner, session.id, asked.id)
            await answer(other, asked)
        assert outcomes(await played(house, session.id)) == ["act ok"]
    return len(act.asked)


async def restarted(folder: Path) -> int:
    """Ask, restart three times, answer once, restart three times more."""
    config, act = one_act(folder / "home")
    tool = own_tool("act", act)
    ids = set()
    async with open_tooled(config, tool) as house:
        session = await started(house, folder / "desk", "act")
        asked = await question(house, session)
    for _ in range(3):
        async with open_tooled(config, tool) as house:
            # Until it waits there again: whoever leaves sooner has not taken it up.
            while (  # noqa: ASYNC110 — seen from outside
                await current(house, session)
            ).status is not Status.RUNNING:
                await asyncio.sleep(0.005)
            ids |= {each.id for each in (await house.approvals.list(house.owner, session.id)).items}
    async with open_tooled(config, scope=RunScope.NONE) as house:
        await answer(house, asked)
    for _ in range(3):
        async with open_tooled(config, tool) as house:
            await played(house, session.id)
            ids |= {each.id for each in (await house.approvals.list(house.owner, session.id)).items}
    assert ids == {asked.id}
    return len(act.asked)


async def forked(folder: Path) -> int:
    """Have a fork ask for what its parent was allowed: it has to ask by itself."""
    same = asks(call("act", "c1", line="x"))
    config, act = one_act(folder / "home", same, says("done"))
    async with open_tooled(config, own_tool("act", act)) as house:
        session = await started(house, folder / "desk", "act")
        await answer(house, await question(house, session))
        await played(house, session.id)
        child = await house.sessions.fork(house.owner, session.id)
        await house.send(child.id, "again")
        again = await question(house, child)
        await answer(house, again, ApprovalState.DENIED)
        await played(house, child.id)
    return len(act.asked)


async def asked_twice(folder: Path) -> int:
    """Ask for the same thing again in the same session: the first yes was for the first."""
    same = call("act", None, line="x")
    config, act = one_act(folder / "home", asks(same), asks(same), says("done"))
    async with open_tooled(config, own_tool("act", act)) as house:
        session = await started(house, folder / "desk", "act")
        await answer(house, await question(house, session))
        second = await question(house, session, number=2)
        await answer(house, second, ApprovalState.DENIED)
        assert outcomes(await played(house, session.id)) == ["act ok", "act denied/rejected"]
    return len(act.asked)


async def expired(folder: Path) -> int:
    """Answer when the time is over, before and after a restart, in the house and beside it."""
    config, act = one_act(folder / "home", approvals_expire_after=timedelta(hours=1))
    clock = SettableClock()
    outside = Environment(
        clock=clock, randomness=SeededRandomness(), machine=StandInMachine("expiring")
    )
    async with open_tooled(config, own_tool("act", act), outside=outside) as house:
        session = await started(house, folder / "desk", "act")
        asked = await question(house, session)
    clock.advance(hours=2)
    for scope in (RunScope.NONE, RunScope.ALL):
        async with open_tooled(config, own_tool("act", act), outside=outside, scope=scope) as house:
            told = await asyncio.gather(answer(house, asked), return_exceptions=True)
            assert isinstance(told[0], HoldfastError)
    async with open_tooled(config, own_tool("act", act), outside=outside) as house:
        assert outcomes(await played(house, session.id)) == ["act denied/expired"]
    return len(act.asked)


async def stopped(folder: Path) -> int:
    """Answer when the turn was stopped."""
    config, act = one_act(folder / "home")
    async with open_tooled(config, own_tool("act", act)) as house:
        session = await started(house, folder / "desk", "act")
        asked = await question(house, session)
        told = await asyncio.gather(
            house.sessions.interrupt(house.owner, session.id),
            *(answer(house, asked) for _ in range(5)),
            return_exceptions=True,
        )
        rows = await house.read(session.id)
        await house.send(session.id, "go on")
        await played(house, session.id)
    assert not isinstance(told[0], Exception)
    # Either it was stopped first and never ran, or it ran and was cut off or done.
    assert outcomes(rows)[0].split()[1] in {"skipped/aborted", "unknown/unknown", "ok"}
    return len(act.asked)


# With how often the act may have run.
TRICKS: dict[str, tuple[Trick, set[int]]] = {
    "answered again and again": (answered_again_and_again, {1}),
    "restarted": (restarted, {1}),
    "forked": (forked, {1}),
    "asked twice": (asked_twice, {1}),
    "expired": (expired, {0}),
    "stopped": (stopped, {0, 1}),
}


@proves("S12")
@pytest.mark.parametrize(("trick", "runs"), TRICKS.values(), ids=list(TRICKS))
def test_an_answer_counts_once_and_runs_at_most_once(
    tmp_path: Path, trick: Trick, runs: set[int]
) -> None:
    assert asyncio.run(trick(tmp_path)) in runs


def foreign_ids() -> Iterator[str]:
    """Yield what is no id of a question here."""
    yield from ("", " ", "0", "null", "*", "%", "c1", "../c1", "' OR 1=1 --", "\x00", "\u202e")
    yield from (an_id(700), an_id(700).upper(), "x" * 10_000)


@proves("S12")
def test_a_foreign_id_answers_nothing(tmp_path: Path, tell: Tell) -> None:
    async def tried() -> tuple[int, int, ApprovalState]:
        config, act = one_act(tmp_path / "home")
        refused = 0
        async with open_tooled(config, own_tool("act", act)) as house:
            session = await started(house, tmp_path / "desk", "act")
            asked = await question(house, session)
            other = await house.open("worker")
            turned = asked.id[:-1] + ("0" if asked.id[-1] != "0" else "1")
            attempts = [(house.owner, session.id, id) for id in (*foreign_ids(), turned)]
            attempts += [(house.owner, other.id, asked.id), (Owner("bob"), session.id, asked.id)]
            attempts += [(house.owner, SessionId(asked.id), session.id)]
            for owner, session_id, id in attempts:
                try:
                    await house.approvals.answer(owner, session_id, id, YES)
                except HoldfastError:
                    refused += 1
            now = await house.approvals.get(house.owner, session.id, asked.id)
        assert refused == len(attempts)
        return refused, len(act.asked), now.state

    refused, runs, state = asyncio.run(tried())

    tell(f"{refused} foreign ids were refused, {runs} runs")
    assert (runs, state) == (0, ApprovalState.WAITING)


LOOK_ALIKES = (
    *("ACT", "act ", " act", "аct", "ac", "actt", "act\u200b", "\uff41ct", "a", "", "act*"),
    *("mcp_act", "*", ".*"),
)


@proves("S12")
def test_a_flag_for_a_name_that_looks_like_it_answers_nothing(tmp_path: Path) -> None:
    async def tried() -> int:
        config, act = one_act(tmp_path / "home")
        flagged = Environment(is_attended=False, yes_to=frozenset(LOOK_ALIKES))
        async with open_tooled(config, own_tool("act", act), outside=flagged) as house:
            session = await started(house, tmp_path / "desk", "act")
            assert outcomes(await played(house, session.id)) == ["act denied/rejected"]
        return len(act.asked)

    assert asyncio.run(tried()) == 0


@proves("S12")
def test_a_tool_that_looks_like_an_allowed_one_is_another(tmp_path: Path) -> None:
    async def tried() -> tuple[list[str], int]:
        asked = [call(name, None, line="x") for name in LOOK_ALIKES if name]
        config, act = one_act(tmp_path / "home", asks(*asked), says("done"))
        flagged = Environment(is_attended=False, yes_to=frozenset({"act"}))
        async with open_tooled(config, own_tool("act", act), outside=flagged) as house:
            session = await started(house, tmp_path / "desk", "act")
            return outcomes(await played(house, session.id)), len(act.asked)

    told, runs = asyncio.run(tried())

    assert runs == 0
    assert {each.rpartition(" ")[2] for each in told} == {"error/unknown_tool"}


@proves("S12")
def test_the_count_of_runs_would_show_a_second_one(tmp_path: Path) -> None:
    async def tried() -> int:
        same = call("act", None, line="x")
        config, act = one_act(tmp_path / "home", asks(same), asks(same), says("done"))
        flagged = Environment(is_attended=False, yes_to=frozenset({"act"}))
        async with open_tooled(config, own_tool("act", act), outside=flagged) as house:
            session = await started(house, tmp_path / "desk", "act")
            await played(house, session.id)
        return len(act.asked)

    assert asyncio.run(tried()) == 2
    assert hidden("r\u200bm") == {"ZERO WIDTH SPACE"}
