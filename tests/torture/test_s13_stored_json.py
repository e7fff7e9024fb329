"""S13: whatever stands in a stored field, reading it gives data or a refusal, and runs nothing."""

import asyncio
import codecs
import importlib
import pkgutil
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import RunScope, open_holdfast
from holdfast.app import Environment
from holdfast.config import load
from holdfast.store.sqlite.connection import connect
from tests.marks import proves
from tests.mcp.clients import line_to
from tests.stand_ins import SeededRandomness, SettableClock, StandInMachine
from tests.torture.conftest import Sized, Tell
from tests.torture.notebooks import key_beside
from tests.torture.poisons import json_fields, poison
from tests.torture.readings import Things, faults_of_reading, furnished
from tests.torture.watching import effects_watched

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Things]:
    """A home with one of everything."""
    home = tmp_path_factory.mktemp("poisoned") / "home"

    async def made() -> Things:
        async with furnished(home) as (_, things):
            return things

    return home, asyncio.run(made())


@pytest.fixture(params=["as it is", "with right checksums"], autouse=True)
def _proof(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "with right checksums":
        forge(monkeypatch)


@proves("S13")
def test_what_is_stored_stays_data(
    start: tuple[Path, Things],
    tmp_path: Path,
    luck: random.Random,
    sized: Sized,
    tell: Tell,
) -> None:
    count = sized(quick=6, test=50, torture=250)
    fields: Counter[str] = Counter()
    faults: list[str] = []
    # First as it is: what is loaded when it is first needed is not loaded by a poison. So are the
    # codecs, by which the standard library guesses, and by which halves of characters are mended.
    for codec in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be", "utf-8-sig"):
        codecs.lookup(codec)
    asyncio.run(read(*start))
    assert asyncio.run(read(*start)) == ([], [])
    for number in range(count):
        home = Path(shutil.copytree(start[0], tmp_path / str(number)))
        table, column, content = poisoned(home, luck)
        fields[f"{table}.{column}"] += 1
        effects, found = asyncio.run(read(home, start[1]))
        faults += [f"{table}.{column} {content[:80]!r}: {each}" for each in (*effects, *found)]
        shutil.rmtree(home)

    tell(f"{count} poisons in {len(fields)} fields: data or a refusal, nothing was run")
    assert faults == []


async def read(home: Path, things: Things) -> tuple[list[str], list[str]]:
    """Open a home and read everything; return what was run meanwhile, and what had no name."""
    outside = Environment(
        clock=SettableClock(), randomness=SeededRandomness(), machine=StandInMachine("reader")
    )
    config = load({"home": home}, environment={})
    try:
        async with (
            open_holdfast(config=config, outside=outside, scope=RunScope.NONE) as house,
            line_to(house) as line,
        ):
            with effects_watched() as watch:
                found = await faults_of_reading(house, line, things)
            return watch.effects, found
    except BaseExceptionGroup as error:
        return [], [f"the house fell over: {error.exceptions!r}"[:300]]


def poisoned(home: Path, luck: random.Random) -> tuple[str, str, bytes]:
    """Put something else into one stored field, and return where and what."""
    connection = connect(home / "history.db", key_beside(home))
    raw: apsw.Connection = connection.raw
    try:
        table, column = luck.choice(json_fields(raw))
        chosen = raw.execute(
            f'SELECT "{column}" FROM "{table}" WHERE length("{column}") > 1 '
            "ORDER BY random() LIMIT 1"
        ).fetchall()
        stored = chosen[0][0]
        text = stored.encode() if isinstance(stored, str) else stored
        content = poison(text, luck)
        value = content if isinstance(stored, bytes) else content.decode("utf-8", "replace")
        triggers = raw.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for (name,) in triggers:
            # Whoever can write into the file can do that, too.
            raw.execute(f'DROP TRIGGER "{name}"')
        raw.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE "{column}" IS ?', (value, stored))
    finally:
        connection.close()
    return table, column, content


def forge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every row prove itself: whoever can write into the file can compute a checksum."""
    tables = ("observations", "search", "store", "zones")
    for each in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if each.name.split(".")[1] not in tables:
            continue
        module = importlib.import_module(each.name)
        if hasattr(module, "require_sound"):
            monkeypatch.setattr(module, "require_sound", lambda *_, **__: None)


@proves("S13")
def test_what_a_poison_would_do_is_seen() -> None:
    with effects_watched() as watch:
        with pytest.raises(ModuleNotFoundError):
            __import__("nobodys_module")
        subprocess.run([sys.executable, "-c", ""], check=True)
        eval("1 + 1")

    told = " ".join(watch.effects)
    assert all(each in told for each in ("import", "subprocess.Popen", "exec"))
