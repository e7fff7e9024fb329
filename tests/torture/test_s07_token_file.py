"""S07: the token file and the data folder under any umask, with links and worse in their places."""

import asyncio
import os
import random
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import HoldfastError, RunScope, open_holdfast
from holdfast.domain.errors import Code
from holdfast.domain.tokens import secret_of
from tests.marks import proves
from tests.torture.conftest import Sized, Tell

pytestmark = pytest.mark.slow

BAIT = secret_of(7)
SOFTEST = 0o000

Planting = Callable[[Path, Path], None]
Start = Callable[[Path], str]


@proves("S07")
def test_whatever_the_umask_nobody_else_can_reach_anything(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    rounds = sized(quick=5, test=20, torture=20)
    masks = [0o000, 0o022, 0o077, 0o777, *(luck.getrandbits(9) for _ in range(rounds - 4))]
    for number, mask in enumerate(masks):
        home = tmp_path / f"{number}" / "home"
        home.parent.mkdir()

        with umask(mask):
            told = started(home)

        assert told == "", oct(mask)
        assert modes(home)["token"] == 0o600, oct(mask)
        assert modes(home)["."] == 0o700, oct(mask)
        assert open_to_others(home) == [], oct(mask)
    tell(f"{rounds} umasks, a home of {len(modes(home))} files and folders, none open to others")


@proves("S07")
def test_a_folder_that_was_open_before_is_closed(tmp_path: Path, tell: Tell) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o777)

    with umask(SOFTEST):
        assert started(home) == ""
    home.chmod(0o755)
    with umask(SOFTEST):
        assert started(home) == ""

    tell("a home of mode 0777, then of 0755, is of mode 0700")
    assert open_to_others(home) == []


@proves("S07")
def test_what_was_planted_is_neither_followed_nor_believed(tmp_path: Path, tell: Tell) -> None:
    told = {}
    for number, (name, planting) in enumerate(PLANTED.items()):
        home, bait = ground(tmp_path / f"{number}")
        planting(home, bait)
        before = looks(bait.parent)

        with umask(SOFTEST):
            told[name] = started(home)

        assert looks(bait.parent) == before, name
        # Where it was refused, what lay there is the planter's; where not, all is ours.
        if told[name] == "":
            assert (home / "token").read_text().strip() != BAIT, name
            assert modes(home)["token"] == 0o600, name
            assert open_to_others(home) == [], name

    taken = [name for name, refusal in told.items() if refusal == ""]
    tell(f"{len(told)} plantings, {len(told) - len(taken)} refused, none followed")
    assert len(told) >= 20
    assert told == {name: REFUSALS.get(name, Code.TOKEN_FILE_UNSAFE) for name in told}


@proves("S07")
def test_a_planted_token_of_another_user_is_not_believed(tmp_path: Path, tell: Tell) -> None:
    if os.geteuid() != 0:
        tell("only root can give a file away; the judgement is tested with a faked user")
        return
    home, _ = ground(tmp_path)
    written(home / "token", 0o600)
    os.chown(home / "token", 65_534, 65_534)

    assert started(home) == Code.TOKEN_FILE_UNSAFE
    assert (home / "token").stat().st_uid == 65_534


@proves("S07")
def test_a_careless_start_is_caught(tmp_path: Path) -> None:
    home, bait = ground(tmp_path)
    (home / "token").symlink_to(bait)
    before = looks(bait.parent)

    with umask(SOFTEST):
        carelessly(home)

    assert looks(bait.parent) != before
    assert open_to_others(home) != []


def _link(name: str, target: str = "{bait}") -> Planting:
    def plant(home: Path, bait: Path) -> None:
        (home / name).symlink_to(target.format(bait=bait, beside=bait.parent))

    return plant


def _token(mode: int, content: str = BAIT) -> Planting:
    return lambda home, _: written(home / "token", mode, content)


def _socket(home: Path, _: Path) -> None:
    before = Path.cwd()
    # By a short name, because the whole path may be longer than an address can be.
    os.chdir(home)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("token")
    finally:
        os.chdir(before)


def _home_is_a_link(home: Path, bait: Path) -> None:
    home.rmdir()
    home.symlink_to(bait.parent)


PLANTED: dict[str, Planting] = {
    "a link to a token": _link("token"),
    "a link to nothing": _link("token", "{beside}/nothing"),
    "a link to itself": _link("token", "token"),
    "a link to a folder": _link("token", "{beside}"),
    "a link to endless zeros": _link("token", "/dev/zero"),
    "a link to a link": _link("token", "{beside}/link"),
    "a relative link": _link("token", "../beside/bait"),
    "a folder": lambda home, _: (home / "token").mkdir(),
    "a pipe": lambda home, _: os.mkfifo(home / "token", 0o600),
    "a socket": _socket,
    "a token for all to read": _token(0o644),
    "a token for all to write": _token(0o622),
    "a token for the group": _token(0o640),
    "an empty file": _token(0o600, ""),
    "a word that is no token": _token(0o600, "password"),
    "a token with a tail": _token(0o600, f"{BAIT}x"),
    "a link where the draft goes": _link(".token.new"),
    "a file where the draft goes": lambda home, _: written(home / ".token.new", 0o666),
    "a link where the store goes": _link("history.db", "{beside}/nothing"),
    "a link where the log goes": _link("history.db-wal"),
    "a link where the reserve goes": _link("history.db-reserve"),
    "a link where the anchor goes": _link("history.db-anchor"),
    "a link where the key goes": _link("key"),
    "a link where the workspaces go": _link("workspaces", "{beside}"),
    "a link where the home goes": _home_is_a_link,
}
# Everything else is refused as a token.
REFUSALS: dict[str, str] = {
    "a link where the draft goes": "",
    "a file where the draft goes": "",
    "a link where the store goes": Code.NOT_A_FILE,
    "a link where the log goes": Code.NOT_A_FILE,
    "a link where the reserve goes": Code.NOT_A_FILE,
    "a link where the anchor goes": Code.NOT_A_FILE,
    "a link where the key goes": Code.NOT_A_FILE,
    "a link where the workspaces go": Code.NOT_A_FOLDER,
    "a link where the home goes": Code.NOT_A_FOLDER,
}


def started(home: Path) -> str:
    """Open the house, make its local token and a session; return how that was refused."""

    async def start() -> None:
        async with open_holdfast(home, scope=RunScope.NONE) as house:
            await house.tokens.ensure_local()
            await house.open()

    try:
        asyncio.run(start())
    except HoldfastError as error:
        return str(error.code)
    return ""


def carelessly(home: Path) -> None:
    """Do what a program does that thinks of nothing."""
    home.mkdir(exist_ok=True)
    (home / "token").write_text("a token\n")
    (home / "history.db").write_bytes(b"")


def ground(folder: Path) -> tuple[Path, Path]:
    """Make a home, and beside it a token that is not ours."""
    home, beside = folder / "home", folder / "beside"
    for each in (home, beside):
        each.mkdir(parents=True)
    written(beside / "bait", 0o600)
    (beside / "link").symlink_to("bait")
    return home, beside / "bait"


def written(file: Path, mode: int, content: str = BAIT) -> None:
    """Write a file with exactly this mode."""
    file.write_text(content)
    file.chmod(mode)


def modes(home: Path) -> dict[str, int]:
    """Return the modes of a home and all that is in it."""
    every = [home, *home.rglob("*")]
    return {
        str(each.relative_to(home)): stat.S_IMODE(each.lstat().st_mode)
        for each in every
        if not each.is_symlink()
    }


def open_to_others(home: Path) -> list[str]:
    """Return what others than the owner can reach."""
    return [f"{name} {mode:04o}" for name, mode in modes(home).items() if mode & 0o077]


def looks(folder: Path) -> list[tuple[str, int, bytes]]:
    """Return all there is to see of a folder, and of what is in it."""
    found = [("", stat.S_IMODE(folder.stat().st_mode), b"")]
    for path in sorted(folder.rglob("*")):
        is_file = path.is_file() and not path.is_symlink()
        content = path.read_bytes() if is_file else b""
        found.append((path.name, stat.S_IMODE(path.lstat().st_mode), content))
    return found


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Have a umask, and the old one afterwards."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
