"""R43: JSON that everybody takes is taken, JSON that nobody may take is refused, at every door."""

import asyncio
import json
import os
from codecs import BOM_UTF8
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.errors import Invalid
from holdfast.parsing.strict_json import require_plain_json
from tests.http.asgi import Answer
from tests.marks import proves
from tests.torture.conftest import Tell
from tests.torture.documents import DECIDED, REFUSED, TAKEN
from tests.torture.doors import Doors, doors, path_of

pytestmark = pytest.mark.slow

CORPORA = os.environ.get("HOLDFAST_CORPORA")


@proves("R43")
def test_what_everybody_takes_is_taken_and_comes_back(tmp_path: Path, tell: Tell) -> None:
    wrong = asyncio.run(kept(tmp_path, TAKEN))

    tell(f"{len(TAKEN)} texts taken")
    assert wrong == []
    assert [text for text in TAKEN if not is_taken(text)] == []


@proves("R43")
def test_what_nobody_may_take_is_refused_at_every_door(tmp_path: Path, tell: Tell) -> None:
    doors_asked, wrong = asyncio.run(refused(tmp_path, REFUSED))

    tell(f"{len(REFUSED)} texts refused at {doors_asked} doors")
    assert wrong == []
    assert [text[:40] for text in REFUSED if is_taken(text)] == []


@proves("R43")
def test_what_readers_disagree_about_is_decided(tmp_path: Path, tell: Tell) -> None:
    found = {text: is_taken(text) for text in DECIDED}
    _, wrong = asyncio.run(refused(tmp_path, [text for text in DECIDED if not DECIDED[text]]))

    tell(f"{len(DECIDED)} texts decided")
    assert {text[:40] for text in DECIDED if found[text] != DECIDED[text]} == set()
    assert wrong == []


@proves("R43")
def test_another_reader_would_take_what_we_refuse() -> None:
    # The library's own: it is why these texts are in the table, and that they are told apart.
    lenient = [text for text, taken in DECIDED.items() if not taken and _is_read(text)]

    assert len(lenient) > 10


@proves("R43")
def test_a_public_suite_agrees_where_there_is_one(tell: Tell) -> None:
    files = sorted(Path(CORPORA).rglob("test_parsing/*.json")) if CORPORA else []
    wrong = [
        file.name
        for file in files
        if file.name[0] in "yn" and is_taken(file.read_bytes()) != (file.name[0] == "y")
    ]

    tell(f"{len(files)} texts of a public suite" + ("" if files else ": HOLDFAST_CORPORA has none"))
    # Ours is the stricter reader: of two equal keys it takes none.
    assert [
        name for name in wrong if "duplicated_key" not in name and "null_escape" not in name
    ] == []


def is_taken(text: bytes) -> bool:
    """Tell whether a document gets past the reader of bodies."""
    import msgspec

    try:
        require_plain_json(text)
        msgspec.json.decode(text)
    except (Invalid, msgspec.DecodeError):
        return False
    return True


def _is_read(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


async def kept(folder: Path, texts: Iterable[bytes]) -> list[bytes]:
    """Store each text as the metadata of a session; return those that did not come back."""
    wrong = []
    async with doors(folder / "home") as house:
        agent = (await house.visitor.agent())["id"]
        path = f"/v1/agents/{agent}/sessions"
        for text in texts:
            answer = await house.visitor.post(path, b'{"metadata":{"value":' + text + b"}}")
            if answer.status != 201 or not _is_same(answer, text):
                wrong.append(text)
    return wrong


def _is_same(answer: Answer, text: bytes) -> bool:
    back: Any = answer.document["metadata"]["value"]
    # By what is written for it: a reader that loses the sign of nothing still reads the same.
    return bool(back == json.loads(text))


async def refused(folder: Path, texts: Iterable[bytes]) -> tuple[int, list[str]]:
    """Send each text whole to every route that takes JSON; return what was not refused."""
    wrong = []
    async with doors(folder / "home") as house:
        taking = [route for route in house.routes if route.body not in {None, bytes}]
        for route in taking:
            for text in texts:
                # An empty body is none, and some routes take none.
                if text == b"" and route.body_may_be_missing:
                    continue
                # Observations are files of other programs, which may begin with this mark.
                if text.startswith(BOM_UTF8) and route.name.startswith("history."):
                    continue
                answer = await sent(house, route.method, path_of(route), text)
                if answer.status != 400:
                    wrong.append(f"{route.name} {text[:40]!r}: {answer.status}")
        return len(taking), wrong


async def sent(house: Doors, method: str, path: str, text: bytes) -> Answer:
    """Send a body as JSON, whatever it is."""
    return await house.visitor.ask(method, path, text, headers={"content_type": "application/json"})
