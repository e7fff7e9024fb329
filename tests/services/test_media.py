"""Contents that no row can hold are kept by their hash, for the sessions that hold them."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import DeletePolicy, Holdfast, RunScope, Session, open_holdfast
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.errors import Code, Internal, Invalid, NotFound
from holdfast.domain.ids import Owner, SessionKey
from holdfast.domain.messages import Media as MediaPart
from holdfast.domain.messages import Message, Text, ToolResult, media_handle
from holdfast.ports.tools import Slice
from holdfast.services.media import SessionOutputStore
from tests.houses import key_of, played, raw
from tests.marks import each_case
from tests.tooled import a_config, asks, call, outcomes, says, started

pytestmark = pytest.mark.anyio

LONG = "".join(f"line {number} of a long file\n" for number in range(4_000))
UNKNOWN = f"media://sha256-{'0' * 64}"


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    folder = tmp_path / "desk"
    folder.mkdir()
    (folder / "long.txt").write_text(LONG)
    return folder


def results(rows: tuple[Message, ...]) -> list[Any]:
    parts = [part for row in rows for part in row.parts]
    return [part.result for part in parts if isinstance(part, ToolResult)]


def count(home: Path, table: str) -> int:
    with raw(home) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").get)


async def shelf_of(house: Holdfast, session: Session) -> SessionOutputStore:
    return SessionOutputStore(house.store, await key_of(house, session))


async def read(house: Holdfast, session: Session, handle: str) -> bytes | None:
    found = await (await shelf_of(house, session)).read(handle)
    return found.content if found else None


async def test_a_long_result_is_cut_and_the_rest_can_be_read(home: Path, desk: Path) -> None:
    handle = media_handle(LONG.encode())
    parts = [call("read_output", handle=handle, start=at, end=at + 9) for at in (0, 50_000)]
    config = a_config(home, asks(call("read_file", path="long.txt")), asks(*parts), says("done"))
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        cut, *slices = results(await played(house, session.id))

    assert len(str(cut["content"])) < 48 << 10
    assert f"read_output reads them from {handle}" in cut["content"]
    assert slices == [
        {"content": LONG[at : at + 9], "start": at, "end": at + 9, "total_bytes": len(LONG)}
        for at in (0, 50_000)
    ]


async def test_what_a_write_replaces_can_be_had_back(home: Path, desk: Path) -> None:
    config = a_config(
        home,
        asks(call("write_file", path="long.txt", content="short")),
        says("done"),
        approval=ApprovalMode.AUTO,
    )
    async with open_holdfast(config=config) as house:
        session = await started(house, desk, approval=ApprovalMode.AUTO)
        (written,) = results(await played(house, session.id))
        kept = await read(house, session, written["undo"])

    assert (desk / "long.txt").read_text() == "short"
    assert kept == LONG.encode()


async def test_equal_contents_are_kept_once(home: Path) -> None:
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        first, second = await house.open(), await house.open()
        handles = [
            await (await shelf_of(house, session)).keep(b"the same", mime_type=kind)
            for session in (first, second, first)
            for kind in ("text/plain", "image/png")
        ]

    assert set(handles) == {media_handle(b"the same")}
    assert (count(home, "media"), count(home, "media_uses")) == (1, 2)


async def test_a_handle_of_another_session_is_no_handle(home: Path, desk: Path) -> None:
    handle = media_handle(b"private")
    config = a_config(
        home, asks(call("read_output", handle=handle), call("read_output", handle=UNKNOWN))
    )
    async with open_holdfast(config=config) as house:
        other = await house.open()
        await (await shelf_of(house, other)).keep(b"private")
        session = await started(house, desk)
        await played(house, session.id)
        rows = await house.read(session.id)

    assert outcomes(rows) == ["read_output denied/not_granted"] * 2
    told = [part.error for row in rows for part in row.parts if isinstance(part, ToolResult)]
    assert told[0] == told[1]


@each_case(
    "handle",
    ["", "media://", "media://sha256-", UNKNOWN, UNKNOWN.upper(), f"{UNKNOWN}0", "/etc/passwd"],
)
async def test_what_is_no_handle_finds_nothing(home: Path, handle: str) -> None:
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        session = await house.open()
        await (await shelf_of(house, session)).keep(b"something")
        assert await read(house, session, handle) is None


async def test_a_part_tells_where_it_is_and_how_long_the_whole_is(home: Path) -> None:
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        shelf = await shelf_of(house, await house.open())
        handle = await shelf.keep(b"0123456789")

        assert await shelf.read(handle, start=2, end=5) == Slice(content=b"234", start=2, total=10)
        assert await shelf.read(handle, start=8, end=99) == Slice(content=b"89", start=8, total=10)
        assert await shelf.read(handle, start=99) == Slice(content=b"", start=99, total=10)
        assert await shelf.read(handle, start=-5) == Slice(content=b"0123456789", start=0, total=10)


async def test_a_fork_has_what_its_line_has_kept_and_its_parent_has_not_what_it_keeps(
    home: Path,
) -> None:
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        root = await house.open()
        inherited = await (await shelf_of(house, root)).keep(b"of the root")
        await house.send(root.id, "one")
        child = await house.sessions.fork(house.owner, root.id)
        await house.send(child.id, "two")
        grandchild = await house.sessions.fork(house.owner, child.id)
        own = await (await shelf_of(house, grandchild)).keep(b"of the grandchild")

        assert await read(house, grandchild, inherited) == b"of the root"
        assert await read(house, child, inherited) == b"of the root"
        assert await read(house, grandchild, own) == b"of the grandchild"
        assert [await read(house, each, own) for each in (root, child)] == [None, None]


async def test_a_content_goes_with_the_last_session_that_holds_it(home: Path) -> None:
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        first, second = await house.open(), await house.open()
        for session in (first, second):
            await (await shelf_of(house, session)).keep(b"held by both")
        await house.sessions.delete(house.owner, first.id)
        assert await read(house, second, media_handle(b"held by both")) == b"held by both"
        await house.sessions.delete(house.owner, second.id)

    assert (count(home, "media"), count(home, "media_uses")) == (0, 0)


async def test_a_fork_that_goes_with_its_parent_leaves_no_content(home: Path) -> None:
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        root = await house.open()
        await (await shelf_of(house, root)).keep(b"of the root")
        await house.send(root.id, "one")
        await house.sessions.fork(house.owner, root.id)
        await house.sessions.delete(house.owner, root.id, policy=DeletePolicy.CASCADE)

    assert count(home, "media") == 0


async def test_nothing_is_kept_for_a_session_that_is_gone(home: Path) -> None:
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        session = await house.open()
        shelf = await shelf_of(house, session)
        await house.sessions.delete(house.owner, session.id)
        with pytest.raises(NotFound) as caught:
            await shelf.keep(b"too late")
        assert await shelf.read(media_handle(b"too late")) is None
    assert caught.value.code is Code.SESSION_NOT_FOUND
    assert count(home, "media") == 0


async def test_a_content_that_was_changed_on_disk_is_not_served(home: Path) -> None:
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        session = await house.open()
        handle = await (await shelf_of(house, session)).keep(b"as it was")
    with raw(home) as connection:
        connection.execute("UPDATE media SET content = ?", (b"as it never was",))
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        with pytest.raises(Internal) as caught:
            await read(house, session, handle)
    assert caught.value.code is Code.CORRUPT_ROW


async def test_a_content_can_be_attached_to_the_first_message(home: Path) -> None:
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        session = await house.open()
        handle = await house.media.keep(house.owner, session.id, b"GIF89a", mime_type="image/gif")
        picture = MediaPart(mime_type="image/gif", ref=handle, byte_length=6)
        sent = await house.send(session.id, (Text(text="What is this?"), picture))
        fork = await house.sessions.fork(house.owner, session.id)
        assert await house.media.read(house.owner, fork.id, handle) == b"GIF89a"
        with pytest.raises(NotFound):
            await house.media.read(house.owner, (await house.open()).id, handle)
        with pytest.raises(NotFound):
            await house.media.read(Owner("stranger"), session.id, handle)

    assert sent.parts[1] == picture


async def test_a_shelf_of_a_key_that_never_was_is_empty(home: Path) -> None:
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        assert await SessionOutputStore(house.store, SessionKey(99)).read(UNKNOWN) is None


async def test_the_contents_of_a_message_have_a_limit_together(home: Path) -> None:
    half = b"GIF89a" + bytes(10 << 20)
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        session = await house.open()
        refs = [
            await house.media.keep(house.owner, session.id, content, mime_type="image/gif")
            for content in (half, half + b"!")
        ]
        first, second = (MediaPart(mime_type="image/gif", ref=ref) for ref in refs)
        with pytest.raises(Invalid) as caught:
            await house.send(session.id, (first, second))
        sent = await house.send(session.id, (first,))
        rows = await house.read(session.id)

    assert caught.value.code is Code.MESSAGE_TOO_LARGE
    assert rows == (sent,)
