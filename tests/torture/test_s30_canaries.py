"""S30: secrets that we hold travel every path there is, and are nowhere afterwards.

`PATHS` lists the ways a secret can take. A new surface, tool or provider adds its way there, and
every check below holds for it.
"""

import asyncio
import base64
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from holdfast import (
    Event,
    Holdfast,
    HoldfastError,
    SessionId,
    SessionRequest,
    TurnEnded,
    open_holdfast,
)
from holdfast.cli.logs import configure, scrub_with
from holdfast.domain.events import ApprovalRequested, ToolEnded, encode_payload
from holdfast.domain.ids import CallId
from holdfast.domain.messages import ResultStatus, ToolCall, ToolResult
from holdfast.domain.secrets import mask_json
from holdfast.domain.sessions import SessionContext
from holdfast.engine.streaming import ENOUGH
from holdfast.store.sqlite.backup import back_up
from tests.keychains import ENTRIES, Known, using
from tests.marks import demands, proves
from tests.torture.canaries import Canary, Hit, Hunt, canaries
from tests.torture.clients.house import settings
from tests.torture.conftest import Tell
from tests.torture.crew import PATIENCE

log = logging.getLogger("holdfast.row")

COUNT = 40


@dataclass(frozen=True)
class Trip:
    """One canary on its way: through which house, and where there is room for files."""

    house: Holdfast
    canary: Canary
    folder: Path


Way = Callable[[Trip], Awaitable[None]]


async def said_by_a_person(trip: Trip) -> None:
    """Type it into a conversation."""
    await conversed(trip, f"my key is {trip.canary.value} and that is all")


async def repeated_by_the_model(trip: Trip) -> None:
    """Have the offline model say it again."""
    await conversed(trip, f"repeat after me: {trip.canary.value}")


async def said_by_the_model(trip: Trip) -> None:
    """Have a model say it and think it, each in one piece."""
    told = f"the key is {trip.canary.value}, I think"
    await conversed(trip, "which key?", {"text": told, "reasoning": told, "chunks": 1})


async def streamed_by_the_model(trip: Trip) -> None:
    """Have a model say it letter by letter, so that what is written at once ends within it."""
    value = trip.canary.value
    told = f"{'so ' * 100}"[: ENOUGH - len(value) // 2] + value
    await conversed(trip, "which key?", {"text": told, "reasoning": told, "chunks": len(told)})


async def said_in_disguise(trip: Trip) -> None:
    """Have a model say it as JSON, in a URL and in base64."""
    value = trip.canary.value
    forms = [
        json.dumps({"key": value}),
        f"https://example.com/?q={quote(value, safe='')}",
        *(base64.b64encode(f"{'x' * n}{value}yz".encode()).decode() for n in range(3)),
    ]
    await conversed(trip, "which key?", {"text": "\n".join(forms), "chunks": 1})


async def asked_of_a_tool(trip: Trip) -> None:
    """Have a model call a tool that nobody knows with it."""
    call = {"name": "no_such_tool", "arguments": {"header": [f"Bearer {trip.canary.value}"]}}
    await conversed(trip, "use it", {"tool_calls": [call]}, {"text": "done"})


async def asked_about_before(trip: Trip) -> None:
    """Have a model ask for a tool with it, and somebody be asked about that."""
    fields = {"name": "Writer", "tools": [{"name": "write_file"}]}
    agent = await trip.house.agents.create(trip.house.owner, fields)
    call = {"name": "write_file", "arguments": {"path": "a.txt", "content": trip.canary.value}}
    model = scripted(trip, {"tool_calls": [call]}, {"text": "done"})
    session = await trip.house.open(agent.id, SessionRequest(model=model))
    await heard(trip.house, session.id, "write it down", until=(ApprovalRequested, TurnEnded))
    await trip.house.sessions.interrupt(trip.house.owner, session.id)


async def named_a_call_with(trip: Trip) -> None:
    """Have a provider name a call with it; the turn goes on, and the model gets the result."""
    call = {"id": trip.canary.value, "name": "no_such_tool", "arguments": {}}
    again = {"id": f"call-{trip.canary.value}", "name": trip.canary.value, "arguments": {}}
    model = scripted(trip, {"tool_calls": [call, again]}, {"text": "done"})
    house = trip.house
    session = await house.open(request=SessionRequest(model=model))
    await heard(house, session.id, "use it", until=TurnEnded)
    rows = await house.read(session.id)
    parts = [part for row in rows for part in row.parts]
    asked = [part.id for part in parts if isinstance(part, ToolCall)]
    answered = [part.call_id for part in parts if isinstance(part, ToolResult)]
    assert (rows[-1].text, len(asked), asked) == ("done", 2, answered)


async def put_on_a_session(trip: Trip) -> None:
    """Write it on a session's cover."""
    value = trip.canary.value
    # Whole or not at all: half a secret is none that anybody could know.
    tags = (value,) if len(value) <= 64 else ()
    cover: dict[str, Any] = {"title": f"on {value}", "tags": tags, "metadata": {"note": value}}
    house = trip.house
    session = await house.open(request=SessionRequest(**cover))
    await house.sessions.fork(house.owner, session.id, title=value)
    other = await house.open()
    await house.sessions.update(house.owner, other.id, cover)


async def made_an_agent_of(trip: Trip) -> None:
    """Describe an agent with it, and talk to that agent."""
    fields = {"name": "Knows it", "system_prompt": f"The key is {trip.canary.value}."}
    agent = await trip.house.agents.create(trip.house.owner, fields)
    await trip.house.agents.update(
        trip.house.owner, agent.id, {"description": f"knows {trip.canary.value}"}
    )
    session = await trip.house.open(agent.id)
    await trip.house.send(session.id, "hello")


async def put_into_a_variable(trip: Trip) -> None:
    """Make it a variable of a session; what we hold, and what looks like it, is refused."""
    context = SessionContext(working_dir=str(trip.folder), variables={"x": trip.canary.value})
    try:
        await trip.house.open(request=SessionRequest(context=context))
    except HoldfastError as error:
        log.warning("refused: %s", error.body())


async def raised_and_logged(trip: Trip) -> None:
    """Raise an error that quotes it, and log that."""
    value = trip.canary.value
    try:
        raise ValueError(f"401 for {value}")
    except ValueError:
        log.exception("no luck with %s", value, extra={"fields": {"request": {"key": value}}})


PATHS: dict[str, Way] = {
    "said by a person": said_by_a_person,
    "repeated by the model": repeated_by_the_model,
    "said by the model": said_by_the_model,
    "streamed by the model": streamed_by_the_model,
    "said in disguise": said_in_disguise,
    "asked of a tool": asked_of_a_tool,
    "asked about before": asked_about_before,
    "named a call with": named_a_call_with,
    "put on a session": put_on_a_session,
    "put into a variable": put_into_a_variable,
    "made an agent of": made_an_agent_of,
    "raised and logged": raised_and_logged,
}


@demands("S0-278")
@proves("S30")
@pytest.mark.parametrize("path", PATHS)
def test_what_we_hold_is_nowhere_whatever_way_it_took(
    path: str, travelled: "Travelled", luck: random.Random, tell: Tell
) -> None:
    sent = canaries(luck, COUNT)

    found = travelled(PATHS[path], sent, is_managed=True)
    control = travelled(PATHS[path], sent, is_managed=False)

    tell(f"{path}: {len(sent)} canaries, {len(found)} found, {len(control)} without the scrubber")
    assert found == set()
    assert control != set(), "a search that finds nothing proves nothing"


@proves("S30")
def test_what_we_hold_is_nowhere_after_the_command_ran(
    tmp_path: Path, luck: random.Random, tell: Tell
) -> None:
    sent = canaries(luck, COUNT)

    found = commanded(tmp_path / "managed", sent, is_managed=True)
    control = commanded(tmp_path / "control", sent, is_managed=False)

    tell(f"commands: {len(sent)} canaries, {len(found)} found, {len(control)} without the scrubber")
    assert found == set()
    assert control != set()


@proves("S30")
def test_what_tools_print_is_masked_by_its_looks(luck: random.Random, tell: Tell) -> None:
    sent = canaries(luck, COUNT)
    contexts = {
        "alone": "{}",
        "environment": "PATH=/bin\nSERVICE_TOKEN={}\nHOME=/x",
        "header": "< HTTP/1.1 200\n> Authorization: Bearer {}\n",
        "json": '{{"user": "me", "api_key": "{}"}}',
    }

    missed = [
        f"{canary.shape} {name}"
        for canary in sent
        for name, context in contexts.items()
        if Hunt([canary]).in_bytes(masked_event(context.format(canary.value)), name)
    ]

    total = len(sent) * len(contexts)
    tell(f"of {total} credentials that we do not hold, {len(missed)} missed: {sorted(set(missed))}")
    # A guess by looks: random letters alone have none, and a quoted password ends at its quote.
    assert {each for each in missed if not each.startswith("password ")} <= {"aws alone"}


async def conversed(trip: Trip, text: str, *steps: dict[str, Any]) -> None:
    """Say something in a new session and hear the answer, from a script if there is one."""
    model = scripted(trip, *steps) if steps else None
    session = await trip.house.open(request=SessionRequest(model=model))
    await heard(trip.house, session.id, text, until=TurnEnded)


async def heard(
    house: Holdfast, session_id: SessionId, text: str, *, until: type | tuple[type, ...]
) -> None:
    """Say something, and listen until a kind of news comes."""
    await house.send(session_id, text)
    async with aclosing(house.follow(session_id)) as news:
        async for item in news:
            if isinstance(item, Event) and isinstance(item.payload, until):
                return


def scripted(trip: Trip, *steps: dict[str, Any]) -> str:
    """Return a model that says what it is told; its script lies where nobody searches."""
    script = trip.folder / f"{trip.canary.number}.json"
    script.write_text(json.dumps(steps))
    return f"scripted:{script}"


Travelled = Callable[..., set[Hit]]


@pytest.fixture
def travelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Travelled:
    """Send canaries a way, and return what a search of everything finds afterwards."""

    def sent(way: Way, sent: list[Canary], *, is_managed: bool) -> set[Hit]:
        place = tmp_path / ("managed" if is_managed else "control")
        for name in ("left", "left/tmp", "scripts"):
            (place / name).mkdir(parents=True)
        monkeypatch.setenv("TMPDIR", str(place / "left" / "tmp"))
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere")
        for canary in sent:
            monkeypatch.delenv(variable(canary), raising=False)
        chain = Known()
        if is_managed:
            for canary in in_environment(sent):
                monkeypatch.setenv(variable(canary), canary.value)
            chain.entries = {
                ("holdfast", f"mcp:{canary.name}"): canary.value for canary in in_keychain(sent)
            }
        with using(chain):
            hits = asyncio.run(searched(way, sent, place))
        told = capfd.readouterr()
        return hits | Hunt(sent).in_bytes((told.out + told.err).encode(), "the terminal")

    return sent


async def searched(way: Way, sent: list[Canary], place: Path) -> set[Hit]:
    """Play the way with every canary; search while the house is open, and after it was closed."""
    left, home, hunt = place / "left", place / "left" / "home", Hunt(sent)
    config = settings(home, encryption="off", default_model="offline:holdfast")
    with logged_to(left / "log.txt"):
        async with open_holdfast(config=config) as house:
            scrub_with(lambda: house.secrets.scrubber)
            # As whoever needs one does: only what was handed out can come back.
            for canary in in_keychain(sent):
                await house.secrets.of_server(canary.name)
            await asyncio.gather(*(way(Trip(house, each, place / "scripts")) for each in sent))
            found = hunt.below(left)
        back_up(home / "history.db", None, left / "a.backup")
    return found | hunt.below(left)


@contextmanager
def logged_to(file: Path) -> Iterator[None]:
    """Log everything to a file, and nowhere else."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    with file.open("w") as stream:
        configure("debug", stream)
        try:
            yield
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)


def commanded(place: Path, sent: list[Canary], *, is_managed: bool) -> set[Hit]:
    """Run commands with canaries all around them, and return what a search finds afterwards."""
    left = place / "left"
    (left / "tmp").mkdir(parents=True)
    agent = place / "a.agent.yaml"
    first, second, third = sent[:3]
    agent.write_text(f"id: a\nmodel: m\nprovider: p\nsystem_prompt: {json.dumps(third.value)}\n")
    environment = process_environment(place, sent if is_managed else [])
    commands: list[tuple[tuple[str, ...], str]] = [
        (("chat", f"repeat after me: {first.value}"), ""),
        (("-vv", "chat", "--json", f"repeat after me: {second.value}"), ""),
        (("chat", "-"), "".join(f"{each.value} " for each in sent)),
        (("sessions", "list", "--json"), ""),
        (("agents", "import", str(agent)), ""),
        (("key", "set", "openai"), first.value),
        (("key", "list", "--json"), ""),
        (("config", "--json"), ""),
        (("doctor",), ""),
        (("backup", str(left / "a.backup")), ""),
    ]
    hunt = Hunt(sent)
    found: set[Hit] = set()
    for arguments, stdin in commands:
        run = subprocess.run(
            [sys.executable, "-m", "holdfast.cli", *arguments],
            input=stdin.encode(),
            capture_output=True,
            timeout=PATIENCE,
            check=False,
            env=environment,
        )
        found |= hunt.in_bytes(run.stdout + run.stderr, f"what `{arguments[0]}` printed")
    return found | hunt.below(left)


def process_environment(place: Path, managed: list[Canary]) -> dict[str, str]:
    """Return the environment of a command that holds secrets in both places."""
    entries = place / "keychain.json"
    entries.write_text(
        json.dumps({f"mcp:{canary.name}": canary.value for canary in in_keychain(managed)})
    )
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(sys.path),
        "HOLDFAST_HOME": str(place / "left" / "home"),
        "HOLDFAST_ENCRYPTION": "off",
        "TMPDIR": str(place / "left" / "tmp"),
        "DBUS_SESSION_BUS_ADDRESS": "unix:path=/nowhere",
        "PYTHON_KEYRING_BACKEND": "tests.keychains.Filled",
        ENTRIES: str(entries),
        # All of them: a command has no other door through which it would learn of the others.
        **{variable(canary): canary.value for canary in managed},
    }


def masked_event(printed: str) -> bytes:
    """Return what is written of a tool's output as news."""
    ended = ToolEnded(
        call_id=CallId("c"),
        name="run_command",
        status=ResultStatus.OK,
        result={"stdout": printed, "exit_code": 0},
    )
    return mask_json(encode_payload(ended))


def in_environment(sent: list[Canary]) -> list[Canary]:
    """Return those that are held in the environment."""
    return sent[::2]


def in_keychain(sent: list[Canary]) -> list[Canary]:
    """Return those that are held in the keychain."""
    return sent[1::2]


def variable(canary: Canary) -> str:
    """Return the variable that holds a canary."""
    return f"CANARY_{canary.number}_API_KEY"
