"""R44: a text is text, wherever it goes in and wherever it comes out."""

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from holdfast import RunScope, open_holdfast
from holdfast.app import Environment
from holdfast.config import Acp, Config
from holdfast.domain.messages import Role
from tests.http.api.client import Client, client_of
from tests.http.sse_reader import listening
from tests.marks import proves
from tests.stand_ins import SeededRandomness, SettableClock, StandInMachine
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE
from tests.torture.fields import FIELDS, Field
from tests.torture.naughty import naughty, public

pytestmark = pytest.mark.slow

# Always the same ones; the last few are no text that anybody may send.
TEXTS = [*naughty(random.Random(44), 300), "\x00", "a\x00b", "\ud800", "\udfff x", "", " ", "\t\n"]
# NUL, lone surrogates, nothing but blanks, too long for the field.
REASONS = {
    *("agent_invalid", "invalid_body", "invalid_input", "invalid_text"),
    *("message_empty", "model_not_found"),
}
LEGAL = [text for text in TEXTS if Field("any", FIELDS[0].through, is_said=True).is_legal(text)]


@proves("R44")
def test_the_same_text_comes_back_or_is_refused_for_a_reason(
    tmp_path: Path, sized: Sized, tell: Tell
) -> None:
    times = sized(quick=1, test=3, torture=len(FIELDS))

    wrong, refused = asyncio.run(
        passed(tmp_path, times, TEXTS[:: sized(quick=3, test=1, torture=1)])
    )

    came = sum(1 for _ in public())
    tell(
        f"{len(TEXTS)} texts × {times} of {len(FIELDS)} fields, {sum(refused.values())} refused"
        + (f", {came} of a public list" if came else "; HOLDFAST_CORPORA has no list")
    )
    assert wrong == []
    assert len(TEXTS) >= 200
    assert set(refused) <= REASONS


async def passed(folder: Path, times: int, texts: Sequence[str]) -> tuple[list[str], Counter[str]]:
    """Pass every text through so many fields, all of them in turn."""
    wrong: list[str] = []
    refused: Counter[str] = Counter()
    async with visited(folder) as client:
        await client.agent()
        for number, text in enumerate(texts):
            for step in range(times):
                field = FIELDS[(number * times + step) % len(FIELDS)]
                wrong += await faults(client, field, text, refused)
    return wrong, refused


async def faults(client: Client, field: Field, text: str, refused: Counter[str]) -> list[str]:
    """Return what went wrong with a text in a field."""
    answer, found = await field.through(client, text)
    where = f"{field.name} {text[:60]!r}"
    if answer.status == 400:
        refused[answer.document["error"]] += 1
        return [f"{where} was refused: {answer.body!r}"] if field.is_legal(text) else []
    if answer.status >= 300:
        return [f"{where} was answered with {answer.status} {answer.body!r}"]
    if not found:
        return [f"{where} was taken and is nowhere"]
    return [f"{where} came back as {each!r}"[:300] for each in found if each != text]


def visited(folder: Path) -> "_Visit":
    """Visit a house in which everything is written down and no turn is played."""
    return _Visit(folder)


class _Visit:
    def __init__(self, folder: Path) -> None:
        root = folder / "work"
        root.mkdir()
        outside = Environment(
            clock=SettableClock(), randomness=SeededRandomness(), machine=StandInMachine()
        )
        config = Config(home=folder / "home", workspace_root=root, acp=Acp(agent="holdfast"))
        self._house = open_holdfast(config=config, outside=outside, scope=RunScope.NONE)
        self._root = root

    async def __aenter__(self) -> Client:
        house = await self._house.__aenter__()
        self._client = client_of(house, self._root)
        return await self._client.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        await self._client.__aexit__(None, None, None)
        await self._house.__aexit__(None, None, None)


@proves("R44")
def test_what_a_model_says_is_streamed_stored_and_printed_as_it_is(
    tmp_path: Path, sized: Sized, tell: Tell
) -> None:
    texts = LEGAL[:: sized(test=8, torture=1)]

    session_id, stored, streamed = asyncio.run(spoken(tmp_path, texts))
    printed = printed_by_command(tmp_path / "home", session_id)

    tell(f"{len(texts)} texts of a model, streamed, stored, opened again and printed")
    assert stored == texts
    assert streamed == texts
    assert printed == texts


async def spoken(folder: Path, texts: list[str]) -> tuple[str, list[str], list[str]]:
    """Have a model say the texts; return what the store and what the stream have of them."""
    script = folder / "script.json"
    script.write_bytes(msgspec.json.encode([{"text": text} for text in texts]))
    root = folder / "work"
    root.mkdir()
    config = Config(home=folder / "home", default_model=f"scripted:{script}", workspace_root=root)
    async with open_holdfast(config=config) as house, client_of(house, root) as client:
        session = await client.session(turn_cap=len(texts) + 1)
        path = f"/v1/sessions/{session['id']}"
        pieces: dict[str, str] = {}
        async with (
            listening(client.app, f"{path}/events?deltas=message", client.secret) as stream,
            asyncio.timeout(PATIENCE),
        ):
            for _ in texts:
                await client.say(session, "go on")
                for frame in await stream.until("session.completed"):
                    if frame.event == "message.delta":
                        told = frame.data["data"]
                        assert told["offset"] == len(pieces.get(told["message_id"], ""))
                        known = pieces.get(told["message_id"], "")
                        pieces[told["message_id"]] = known + told["delta"]
    # Opened again: what is compared comes from the disk.
    async with open_holdfast(config=config, scope=RunScope.NONE) as house:
        rows = [row for row in await house.read(session["id"]) if row.role is Role.ASSISTANT]
    return session["id"], [row.text for row in rows], [pieces[row.id] for row in rows]


def printed_by_command(home: Path, session_id: str) -> list[str]:
    """Return what the command prints of an agent's answers."""
    command = [sys.executable, "-m", "holdfast.cli", "--json", "sessions", "messages", session_id]
    done = subprocess.run(
        command,
        env={"HOLDFAST_HOME": str(home), "HOME": str(home), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )
    rows = json.loads(done.stdout)["data"]
    return [row["content"]["text"] for row in rows if row["role"] == "assistant"]


@proves("R44")
def test_a_text_that_comes_back_otherwise_would_be_found(tmp_path: Path) -> None:
    async def trimming(client: Client, text: str) -> object:
        answer, found = await FIELDS[0].through(client, text)
        return answer, [each.strip() for each in found]

    async def tried() -> list[str]:
        async with visited(tmp_path) as client:
            await client.agent()
            field = Field("trimmed", trimming)  # type: ignore[arg-type]
            return [
                fault
                for text in (" a", "a")
                for fault in await faults(client, field, text, Counter())
            ]

    assert len(asyncio.run(tried())) == 4
