"""The file of the local token: private whatever the umask, never reached through a link."""

import asyncio
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.domain.errors import Code, Denied, StorageFull
from holdfast.domain.tokens import secret_of
from holdfast.store.sqlite.token_file import SecretFile
from tests.marks import each_case

pytestmark = pytest.mark.anyio

FIRST, SECOND, THIRD = secret_of(1), secret_of(2), secret_of(3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a home."""
    (tmp_path / "home").mkdir(mode=0o700)
    return tmp_path / "home"


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Have a umask."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


async def test_a_missing_file_holds_nothing(folder: Path) -> None:
    assert await SecretFile(folder).read() is None


async def test_it_is_private_whatever_the_umask(folder: Path, umask: int) -> None:
    file = SecretFile(folder)

    assert await file.put(FIRST, instead_of=None) == FIRST

    assert await file.read() == FIRST
    assert (folder / "token").read_text() == f"{FIRST}\n"
    assert stat.S_IMODE((folder / "token").stat().st_mode) == 0o600
    assert os.listdir(folder) == ["token"]


async def test_a_secret_takes_the_place_of_the_one_that_was_meant(folder: Path) -> None:
    file = SecretFile(folder)
    await file.put(FIRST, instead_of=None)

    assert await file.put(SECOND, instead_of=None) == FIRST
    assert await file.put(SECOND, instead_of=THIRD) == FIRST
    assert await file.put(SECOND, instead_of=FIRST) == SECOND
    assert await file.read() == SECOND


async def test_a_file_that_was_removed_meanwhile_is_made_anew(folder: Path) -> None:
    assert await SecretFile(folder).put(SECOND, instead_of=FIRST) == SECOND


async def test_of_many_who_make_it_at_once_all_have_the_same(folder: Path) -> None:
    secrets = [secret_of(number) for number in range(20)]

    held = await asyncio.gather(
        *(SecretFile(folder).put(secret, instead_of=None) for secret in secrets)
    )

    assert set(held) == {await SecretFile(folder).read()}


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o666, 0o610, 0o620, 0o644])
async def test_a_file_that_others_could_reach_is_not_used(folder: Path, mode: int) -> None:
    file = SecretFile(folder)
    await file.put(FIRST, instead_of=None)
    (folder / "token").chmod(mode)

    refusal = await refused(file)

    assert f"{folder / 'token'} could be read by others (its mode is {mode:04o})" in refusal.message
    assert "remove it" in refusal.message
    assert refusal.details == {"path": str(folder / "token")}
    assert stat.S_IMODE((folder / "token").stat().st_mode) == mode


@pytest.mark.parametrize("target", ["bait", "missing", "token", "/dev/zero", ".."])
async def test_a_link_is_not_followed(folder: Path, target: str) -> None:
    bait = folder / "bait"
    bait.write_text(f"{FIRST}\n")
    bait.chmod(0o600)
    (folder / "token").symlink_to(target)

    refusal = await refused(SecretFile(folder))

    assert "is a link" in refusal.message
    assert (folder / "token").is_symlink()
    assert bait.read_text() == f"{FIRST}\n"
    assert not (folder / "missing").exists()


async def test_a_link_where_the_draft_goes_is_not_followed(folder: Path) -> None:
    bait = folder / "bait"
    bait.write_text("keep")
    (folder / ".token.new").symlink_to(bait)

    assert await SecretFile(folder).put(FIRST, instead_of=None) == FIRST

    assert bait.read_text() == "keep"
    assert not (folder / "token").is_symlink()
    assert not (folder / ".token.new").is_symlink()


async def test_only_a_regular_file_is_read(folder: Path) -> None:
    os.mkfifo(folder / "token", 0o600)
    assert "is not a file" in (await refused(SecretFile(folder))).message

    (folder / "token").unlink()
    (folder / "token").mkdir(mode=0o700)
    assert "is not a file" in (await refused(SecretFile(folder))).message


@each_case(
    "content", [b"", b"\n", b"secret", FIRST.encode()[:-1], FIRST.encode() * 2, b"\xff" * 46]
)
async def test_a_file_without_a_token_is_refused(folder: Path, content: bytes) -> None:
    (folder / "token").write_bytes(content)
    (folder / "token").chmod(0o600)

    refusal = await refused(SecretFile(folder))

    assert "does not hold a token" in refusal.message
    assert FIRST not in refusal.message


@pytest.mark.parametrize("content", [FIRST, f"{FIRST}\n", f" {FIRST}\r\n"])
async def test_what_an_editor_puts_around_a_token_is_no_part_of_it(
    folder: Path, content: str
) -> None:
    (folder / "token").write_text(content)
    (folder / "token").chmod(0o600)

    assert await SecretFile(folder).read() == FIRST


async def test_the_file_of_another_user_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await SecretFile(folder).put(FIRST, instead_of=None)
    # As if somebody else had made it; to give a file away takes rights that a test may not have.
    stranger = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: stranger)

    assert "belongs to another user" in (await refused(SecretFile(folder))).message


@pytest.mark.parametrize(
    ("number", "error", "code"),
    [
        (errno.ENOSPC, StorageFull, Code.STORAGE_FULL),
        (errno.EDQUOT, StorageFull, Code.STORAGE_FULL),
        (errno.EROFS, Denied, Code.STORE_UNWRITABLE),
    ],
)
async def test_a_disk_that_refuses_leaves_the_old_secret(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type, code: Code
) -> None:
    file = SecretFile(folder)
    await file.put(FIRST, instead_of=None)

    def fails(_: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", fails)
        with pytest.raises(error) as refusal:
            await file.put(SECOND, instead_of=FIRST)

    assert refusal.value.code is code
    assert await file.read() == FIRST
    assert await file.put(THIRD, instead_of=FIRST) == THIRD


async def test_a_home_that_is_not_there_is_said(folder: Path) -> None:
    with pytest.raises(Denied) as refusal:
        await SecretFile(folder / "missing").put(FIRST, instead_of=None)

    assert refusal.value.code is Code.STORE_UNWRITABLE


async def test_a_file_that_cannot_be_opened_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", fails)
    with pytest.raises(Denied) as refusal:
        SecretFile(folder)._read()

    assert "cannot be read: Permission denied" in refusal.value.message


async def refused(file: SecretFile) -> Denied:
    """Return how reading and writing are refused, which is the same."""
    with pytest.raises(Denied) as reading:
        await file.read()
    with pytest.raises(Denied) as writing:
        await file.put(SECOND, instead_of=FIRST)
    assert reading.value.body() == writing.value.body()
    assert reading.value.code is Code.TOKEN_FILE_UNSAFE
    return reading.value
