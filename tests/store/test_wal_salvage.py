"""Salvage of a store with a damaged log: what is whole is kept, what is lost is named."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Config,
    HoldfastError,
    RunScope,
    SessionQuery,
    open_holdfast,
)
from holdfast.store.sqlite import wal_anchor as sqlite_wal_anchor
from holdfast.store.sqlite.backup import open_draft
from holdfast.store.sqlite.salvage import MESSAGE_COUNTS, read_frames, salvage
from tests.cli.processes import beside

pytestmark = pytest.mark.anyio

FRAME = 24 + 4096
WORDS = 12


# An encrypted store in every run; one without encryption where there is more time.
@pytest.fixture(params=["auto", pytest.param("off", marks=pytest.mark.torture)])
async def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return what a kill leaves: sessions whose last messages are in the log only."""
    config = Config(home=tmp_path / "live", encryption=request.param)
    async with open_holdfast(config=config, scope=RunScope.NONE) as house:
        await house.open()
    async with open_holdfast(config=config, scope=RunScope.NONE) as house:
        for name in ("first", "second"):
            session = await house.open()
            for number in range(WORDS):
                await house.send(session.id, f"{name} {number} " + "x" * 1_500)
        shutil.copytree(tmp_path / "live", tmp_path / "home")
    (tmp_path / "home" / "history.db-shm").unlink()
    return tmp_path / "home"


def _log(home: Path) -> Path:
    return home / "history.db-wal"


def _flip(home: Path, place: int) -> None:
    content = bytearray(_log(home).read_bytes())
    content[place] ^= 8
    _log(home).write_bytes(content)


async def _messages(home: Path) -> dict[str, int]:
    config = Config(home=home, encryption="auto")
    async with open_holdfast(config=config, scope=RunScope.NONE) as house:
        sessions = (await house.sessions.list(SessionQuery(owner=house.owner))).items
        return {each.id: len(await house.read(each.id)) for each in sessions}


def _salvaged(home: Path, *more: str, code: int) -> dict[str, Any]:
    before = {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()}
    done = beside(home, "salvage", str(home.parent / "whole.backup"), "--json", *more)
    assert done.returncode == code, done.stderr + done.stdout
    after = {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()}
    assert after == before
    report: dict[str, Any] = json.loads(done.stdout)
    return report


async def _restored(home: Path) -> dict[str, int]:
    done = beside(home, "restore", str(home.parent / "whole.backup"))
    assert done.returncode == 0, done.stderr
    assert beside(home, "doctor").returncode == 0
    return await _messages(home)


def _last(home: Path) -> int:
    record = sqlite_wal_anchor.load(home / "history.db")
    assert record is not None
    return record.frame


async def test_a_damaged_header_or_checksum_costs_nothing(home: Path) -> None:
    whole = await _messages(Path(shutil.copytree(home, home.parent / "truth")))
    # The salts in the header, and the checksum of a frame in the middle.
    _flip(home, 17)
    _flip(home, 32 + 20 * FRAME + 18)

    report = _salvaged(home, code=0)

    assert (report["lost_frames"], report["lost"], report["apart"]) == (0, [], [])
    assert await _restored(home) == whole


async def test_a_page_that_was_written_again_later_costs_nothing(home: Path) -> None:
    whole = await _messages(Path(shutil.copytree(home, home.parent / "truth")))
    frames = read_frames(home / "history.db", _log(home).read_bytes()).whole
    last = {frame.page: frame.number for frame in frames}
    again = next(frame for frame in frames if last[frame.page] > frame.number)
    _flip(home, 32 + (again.number - 1) * FRAME + 24 + 2_000)

    report = _salvaged(home, code=0)

    assert (report["lost_frames"], report["lost"]) == (1, [])
    assert await _restored(home) == whole


async def test_the_first_log_of_a_store_can_be_lost_and_messages_after_a_flip_are_kept_apart(
    tmp_path: Path,
) -> None:
    config = Config(home=tmp_path / "live")
    async with open_holdfast(config=config, scope=RunScope.NONE) as house:
        session = await house.open()
        for number in range(WORDS):
            await house.send(session.id, f"{number} " + "x" * 1_500)
        gone = Path(shutil.copytree(tmp_path / "live", tmp_path / "gone" / "home"))
        flipped = Path(shutil.copytree(tmp_path / "live", tmp_path / "flipped" / "home"))
    os.truncate(_log(gone), 0)
    frames = read_frames(flipped / "history.db", _log(flipped).read_bytes()).whole
    last = {frame.page: frame.number for frame in frames}
    first = next(frame.number for frame in frames if last[frame.page] == frame.number)
    _flip(flipped, 32 + (first - 1) * FRAME + 24 + 2_000)

    nothing = _salvaged(gone, code=1)
    report = _salvaged(flipped, code=1)

    assert nothing["lost_frames"] == len(frames)
    assert await _restored(gone) == {}
    lost = sum(each["last"] - each["first"] + 1 for each in report["lost"])
    kept = await _restored(flipped)
    assert sum(kept.values()) + len(report["apart"]) + lost == WORDS
    assert len(report["apart"]) >= WORDS - 2


async def test_a_flip_in_the_middle_keeps_what_is_before_it_and_names_the_rest(home: Path) -> None:
    whole = await _messages(Path(shutil.copytree(home, home.parent / "truth")))
    frames = read_frames(home / "history.db", _log(home).read_bytes()).whole
    last = {frame.page: frame.number for frame in frames}
    once = [frame.number for frame in frames if last[frame.page] == frame.number]
    middle = next(number for number in once if number > len(frames) // 2)
    _flip(home, 32 + (middle - 1) * FRAME + 24 + 2_000)
    with pytest.raises(HoldfastError, match="salvage"):
        await _messages(home)

    report = _salvaged(home, "--messages", str(home.parent / "apart.jsonl"), code=1)

    kept = await _restored(home)
    assert report["lost_frames"] == 1
    missing = {(name, number) for name, n in whole.items() for number in range(1, n + 1)}
    missing -= {(name, number) for name, n in kept.items() for number in range(1, n + 1)}
    lost = {
        (each["session_id"], number)
        for each in report["lost"]
        for number in range(each["first"], each["last"] + 1)
    }
    apart = {(each["session_id"], each["sequence"]) for each in report["apart"]}
    # Each missing message is named: as lost, or as written to the other file.
    assert lost | apart == missing
    lines = (home.parent / "apart.jsonl").read_text().splitlines()
    assert {(each["session_id"], each["sequence"]) for each in map(json.loads, lines)} == apart
    assert sum(kept.values()) > 0


@pytest.mark.torture
async def test_whatever_frame_is_hit_each_missing_message_is_named(home: Path) -> None:
    whole = await _messages(Path(shutil.copytree(home, home.parent / "truth")))
    file = home.parent / "truth" / "key"
    key = bytes.fromhex(file.read_text()) if file.exists() else None
    frames = read_frames(home / "history.db", _log(home).read_bytes()).whole
    last = {frame.page: frame.number for frame in frames}
    hit = [frame for frame in frames if last[frame.page] == frame.number and frame.number > 60]
    lost = 0

    for frame in hit:
        copy = Path(shutil.copytree(home, home.parent / f"hit{frame.number}"))
        _flip(copy, 32 + (frame.number - 1) * FRAME + 24 + 2_000)
        done = salvage(copy / "history.db", key, copy.parent / f"{frame.number}.backup")
        kept = _spoken(copy.parent / f"{frame.number}.backup", key)
        named = {(each.session_id, each.sequence) for each in done.apart}
        for each in done.lost:
            named |= {(each.session_id, number) for number in range(each.first, each.last + 1)}
        missing = {(name, n) for name in whole for n in range(kept.get(name, 0) + 1, WORDS + 1)}
        missing -= {(name, n) for name, count in whole.items() for n in range(count + 1, WORDS + 1)}
        lost += len(done.lost)
        # Where the page that counts the messages is hit itself, nothing tells how many there were.
        assert named == missing or not named

    assert lost > 0


def _spoken(backup: Path, key: bytes | None) -> dict[str, int]:
    with open_draft(backup, key) as connection:
        return {row[0]: row[2] for row in connection.query(MESSAGE_COUNTS)}


async def test_a_log_that_is_cut_off_keeps_what_is_there(home: Path) -> None:
    last = _last(home)
    os.truncate(_log(home), 32 + (last - 4) * FRAME)

    report = _salvaged(home, code=1)

    assert report["lost_frames"] == 4
    assert sum((await _restored(home)).values()) >= WORDS


async def test_a_missing_log_is_reported_and_the_rest_kept(home: Path) -> None:
    last = _last(home)
    _log(home).unlink()

    report = _salvaged(home, code=1)

    assert report["lost_frames"] == last
    assert len(await _restored(home)) == 1


async def test_a_store_in_use_is_not_salvaged(tmp_path: Path) -> None:
    config = Config(home=tmp_path / "home")
    async with open_holdfast(config=config, scope=RunScope.NONE) as house:
        await house.open()
        done = beside(tmp_path / "home", "salvage", str(tmp_path / "whole.backup"))

    assert done.returncode == 5
    assert "stop the server" in done.stderr
    assert not (tmp_path / "whole.backup").exists()
