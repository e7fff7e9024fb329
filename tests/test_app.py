"""A configuration becomes a house: its home, its key, its store, and what it closes again."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Config, RunScope, open_holdfast
from holdfast.api import Holdfast, LocalHoldfast
from holdfast.app import open_store
from holdfast.domain.errors import Code, HoldfastError, Invalid, Unavailable
from holdfast.domain.events import TurnEnded
from holdfast.domain.messages import Part, Text
from holdfast.store.sqlite.connection import is_plain
from tests.houses import news_until, played, script, texts
from tests.marks import demands

pytestmark = pytest.mark.anyio

KEY = "0123456789abcdef" * 4


def _held(home: Path) -> list[str]:
    """Return the files of a home, its folders aside."""
    return sorted(path.name for path in home.iterdir() if path.is_file())


@demands("S0-320")
async def test_a_new_home_has_an_encrypted_store_and_a_key_beside_it(home: Path) -> None:
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        assert (house.config.home, house.key_source, house.owner) == (home, "keyfile", "local")

    assert not is_plain(home / "history.db")
    assert {"history.db", "key"} <= set(_held(home))


async def test_what_a_verb_does_not_take_is_refused_in_words(quiet: Holdfast) -> None:
    session = await quiet.open()
    odd: Any = quiet
    attempts: dict[str, Callable[[], Awaitable[object]]] = {
        "request must be a SessionRequest, not dict.": lambda: odd.open(request={"title": "x"}),
        "agent must be a str, not int.": lambda: odd.open(5),
        "content must be a str, or a tuple of parts, not int.": lambda: odd.send(session.id, 5),
        "content must be a str, or a tuple of parts, not bytes.": (
            lambda: odd.send(session.id, b"x")
        ),
        "content must be a str, or a tuple of parts, not tuple.": (
            lambda: odd.send(session.id, ("x",))
        ),
        "session_id must be a str, not Session.": lambda: odd.send(session, "x"),
        "on_busy must be one of queue, reject, interrupt.": (
            lambda: odd.send(session.id, "x", on_busy="later")
        ),
        "after must be an int, not str.": lambda: odd.read(session.id, after="1"),
        "after must be an int, not bool.": lambda: anext(odd.follow(session.id, after=True)),
    }

    for told, attempt in attempts.items():
        with pytest.raises(Invalid) as caught:
            await attempt()
        assert (caught.value.code, caught.value.message) == (Code.INVALID_INPUT, told)
    assert await quiet.read(session.id) == ()


async def test_the_word_of_a_choice_is_the_choice(quiet: Holdfast) -> None:
    odd: Any = quiet
    session = await quiet.open()

    message = await odd.send(session.id, Code.INTERNAL, on_busy="reject")
    parts = await quiet.send(session.id, (Text(text="and more"),))

    assert (message.turn, message.text) == (1, "internal")
    assert (parts.turn, parts.text) == (1, "and more")


@demands("S1-012", "S2-131")
async def test_the_four_verbs_are_all_that_most_programs_need(home: Path) -> None:
    async with open_holdfast(str(home)) as house:
        session = await house.open()
        sent = await house.send(session.id, "2+2?")
        async for event in house.follow(session.id):
            if isinstance(event.payload, TurnEnded):
                break
        rows = await house.read(session.id)

    assert rows[0] == sent
    assert rows[1].text.startswith("2+2 = 4")
    assert await _read_again(home, session.id) == rows


async def _read_again(home: Path, session_id: str) -> tuple[object, ...]:
    async with open_holdfast(home) as house:
        return await house.read(session_id)


async def test_the_key_may_come_from_the_environment(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_KEY", KEY)
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        session = await house.open()
        assert house.key_source == "environment"
    assert "key" not in _held(home)

    monkeypatch.delenv("HOLDFAST_KEY")
    with pytest.raises(Unavailable) as missing:
        await _read_again(home, session.id)
    monkeypatch.setenv("HOLDFAST_KEY", "f" * 64)
    with pytest.raises(Unavailable) as wrong:
        await _read_again(home, session.id)

    assert (missing.value.code, wrong.value.code) == (Code.STORE_KEY_MISSING, Code.STORE_KEY_WRONG)
    monkeypatch.setenv("HOLDFAST_KEY", KEY)
    assert await _read_again(home, session.id) == ()


async def test_an_invalid_key_makes_no_store(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_KEY", "short")

    with pytest.raises(HoldfastError) as caught:
        async with open_holdfast(home):
            pass

    assert caught.value.code is Code.STORE_KEY_INVALID
    assert _held(home) == []


async def test_a_lost_key_file_leads_to_no_new_store(home: Path) -> None:
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        session = await house.open()
    key = (home / "key").read_text()
    content = (home / "history.db").read_bytes()
    (home / "key").unlink()

    with pytest.raises(Unavailable) as caught:
        await _read_again(home, session.id)

    assert caught.value.code is Code.STORE_KEY_MISSING
    assert (home / "history.db").read_bytes() == content
    assert "key" not in _held(home)
    (home / "key").write_text(key)
    assert await _read_again(home, session.id) == ()


@demands("S0-322", "S0-320")
async def test_a_store_may_be_plain_and_stays_so(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_ENCRYPTION", "off")
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        assert house.key_source == "off"
        session = await house.open()
    assert is_plain(home / "history.db")

    monkeypatch.delenv("HOLDFAST_ENCRYPTION")
    monkeypatch.setenv("HOLDFAST_KEY", KEY)
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        assert house.key_source == "off"
        assert (await house.sessions.get(house.owner, session.id)).id == session.id
    assert is_plain(home / "history.db")


async def test_an_encrypted_store_stays_so_when_encryption_is_off(home: Path) -> None:
    async with open_holdfast(home, scope=RunScope.NONE):
        pass

    config = Config(home=home, encryption="off")
    async with open_holdfast(config=config, scope=RunScope.NONE) as house:
        assert house.key_source == "keyfile"
    assert not is_plain(home / "history.db")


async def test_who_wants_a_keychain_and_has_none_gets_no_store(home: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        async with open_holdfast(config=Config(home=home, encryption="keychain")):
            pass

    assert caught.value.code is Code.KEYCHAIN_UNAVAILABLE
    assert _held(home) == []


async def test_a_home_that_is_a_link_is_refused(home: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", home)

    with pytest.raises(HoldfastError) as caught:
        async with open_holdfast(home):
            pass

    assert caught.value.code is Code.NOT_A_FOLDER
    assert _held(tmp_path / "elsewhere") == []


async def test_the_configured_model_answers(home: Path, tmp_path: Path) -> None:
    model = script(tmp_path, {"text": "from the script"})
    async with open_holdfast(config=Config(home=home, default_model=model)) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        rows = await played(house, session.id)

    assert texts(rows)[-1] == ("assistant", "from the script")


async def test_the_configuration_bounds_the_turns_at_a_time(home: Path, tmp_path: Path) -> None:
    model = script(tmp_path, {"text": "slow", "delay_ms": 60_000, "repeat": 9})
    config = Config(home=home, default_model=model, turns_at_a_time=1)
    async with open_holdfast(config=config) as house:
        sessions = [await house.open() for _ in range(2)]
        for session in sessions:
            await house.send(session.id, "hello")
        await news_until(house, sessions[0].id, object, after=2)

        statuses = [(await house.sessions.get(house.owner, s.id)).status for s in sessions]
    assert statuses == ["running", "pending"]


async def test_leaving_a_house_lets_go_of_everything(home: Path) -> None:
    tasks, threads = asyncio.all_tasks(), _threads()
    async with open_holdfast(home) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await played(house, session.id)
        assert _open_files(home)
        assert len(asyncio.all_tasks()) > len(tasks)

    assert _open_files(home) == []
    assert asyncio.all_tasks() == tasks
    assert _threads() == threads


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if "holdfast" in thread.name}


def _open_files(home: Path) -> list[str]:
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    targets = [os.readlink(link) for link in links if os.path.lexists(link)]
    return [target for target in targets if target.startswith(str(home))]


async def test_what_the_block_raises_reaches_its_caller(home: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_holdfast(home):
            raise ZeroDivisionError

    assert isinstance(await _opened(home), LocalHoldfast)


async def _opened(home: Path) -> Holdfast:
    async with open_holdfast(home) as house:
        return house


async def test_a_house_that_cannot_be_built_closes_its_store(home: Path) -> None:
    config = Config(home=home, default_model="nonsense")

    with pytest.raises(HoldfastError):
        async with open_holdfast(config=config):
            pass

    assert _open_files(home) == []
    _, store = open_store(Config(home=home))
    await store.close()


async def test_a_lack_of_memory_outside_of_the_store_is_refused_like_one_inside(
    home: Path,
) -> None:
    def starve(*_: object, **__: object) -> Any:
        raise MemoryError

    class HungryNumber(int):
        __eq__ = __lt__ = __gt__ = __le__ = __ge__ = starve
        __hash__ = None  # type: ignore[assignment]

    class HungryText(str):
        __slots__ = ()
        __eq__ = __hash__ = starve

    class HungryParts(tuple[Part, ...]):
        __slots__ = ()
        __iter__ = starve

    async with open_holdfast(home, scope=RunScope.NONE) as house:
        session = await house.open()
        verbs: list[Awaitable[object]] = [
            house.open(HungryText("agent")),
            house.send(session.id, HungryParts()),
            house.read(session.id, after=HungryNumber()),
        ]
        told = await asyncio.gather(*verbs, return_exceptions=True)
        sent = await house.send(session.id, "and again")

        assert [getattr(each, "code", each) for each in told] == [Code.OUT_OF_MEMORY] * 3
        assert await house.read(session.id) == (sent,)
